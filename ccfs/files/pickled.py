"""Read what a pickle says without running it: its opcodes are followed, nothing is imported and nothing is called.

Unpickling runs whatever the file names. Here a name stays a `Named`, and an object stays a `Built` with its name, its
arguments and its state. Plain values and arrays of numbers are read exactly. Everything else is left to the caller, who
says which names it expects.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

__all__ = ["Built", "Named", "PickleError", "array", "dtype", "followed"]


class PickleError(ValueError):
    """A pickle that says something which cannot be understood without running it."""


@dataclass(frozen=True, slots=True)
class Named:
    """Something that unpickling would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Built:
    """An object that unpickling would make by calling `maker`.

    Afterwards it would get `state` and `items`, which are pairs of key and value, with None as the key in a list.
    """

    maker: object
    arguments: object
    state: object = None
    items: list[tuple[object, object]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the class or function, empty if that is something else."""
        return str(self.maker) if isinstance(self.maker, Named) else ""


class _Mark:
    """Where a group of values begins on the stack."""


_MARK: Final = _Mark()
_IGNORED: Final = {"PROTO", "FRAME"}
_VALUES: Final = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
_CONSTANTS: Final[dict[str, Callable[[], object]]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_SET": lambda: Built(Named("builtins", "set"), ()),
    "MARK": lambda: _MARK,
}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def followed(content: bytes) -> object:
    """Return what a pickle says. Lists, tuples, dictionaries, numbers, text and bytes are themselves.

    Raises:
        PickleError: the pickle is damaged, or it uses an opcode that only running it could explain.
    """
    try:
        return _Follower().result(content)
    except PickleError:
        raise
    # A damaged pickle makes the stack run empty, finds no memo, or has an argument of another kind.
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PickleError(f"The pickle must be whole, got {type(error).__name__}: {error}.") from error


class _Follower:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def result(self, content: bytes) -> object:
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name == "STOP":
                return self._pop()
            self._follow(opcode.name, argument)
        raise PickleError("The pickle must end with its STOP opcode.")

    def _pop(self) -> object:
        if not self._stack or self._stack[-1] is _MARK:
            raise PickleError("The pickle must be whole, got too few values.")
        return self._stack.pop()

    def _group(self) -> list[object]:
        """Return the values since the last mark."""
        found: list[object] = []
        while self._stack[-1] is not _MARK:
            found.append(self._stack.pop())
        self._stack.pop()
        return found[::-1]

    def _follow(self, name: str, argument: object) -> None:
        push = self._stack.append
        if name in _IGNORED:
            return
        if name in _VALUES:
            push(argument)
        elif name in _CONSTANTS:
            push(_CONSTANTS[name]())
        elif name in _TUPLES:
            push(tuple([self._pop() for _ in range(_TUPLES[name])][::-1]))
        elif name == "TUPLE":
            push(tuple(self._group()))
        elif name == "LIST":
            push(self._group())
        elif name == "DICT":
            pairs = _pairs(self._group())
            push({})
            self._set(pairs)
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            self._append([self._pop()] if name == "APPEND" else self._group())
        elif name in ("SETITEM", "SETITEMS"):
            self._set(_pairs([self._pop(), self._pop()][::-1] if name == "SETITEM" else self._group()))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[cast(int, argument)] = self._stack[-1]
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            push(self._memo[cast(int, argument)])
        else:
            self._object(name, argument)

    def _object(self, name: str, argument: object) -> None:
        push = self._stack.append
        if name == "GLOBAL":
            module, _, qualified = str(argument).partition(" ")
            push(Named(module, qualified))
        elif name == "STACK_GLOBAL":
            qualified, module = str(self._pop()), str(self._pop())
            push(Named(module, qualified))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, maker = self._pop(), self._pop()
            push(Built(maker, arguments))
        elif name == "FROZENSET":
            push(Built(Named("builtins", "frozenset"), tuple(self._group())))
        elif name == "POP":
            self._stack.pop()
        elif name == "BUILD":
            state, made = self._pop(), self._stack[-1]
            if not isinstance(made, Built) or made.state is not None:
                raise PickleError(f"A pickled object must get its state once, got one for {type(made).__name__}.")
            made.state = state
        else:
            raise PickleError(f"The pickle must consist of plain values, arrays and objects, got the opcode {name}.")

    def _append(self, values: list[object]) -> None:
        target = self._stack[-1]
        if isinstance(target, Built):
            target.items.extend((None, value) for value in values)
        elif isinstance(target, list):
            target.extend(values)
        else:
            raise PickleError(f"Only a list can be extended, got {type(target).__name__}.")

    def _set(self, pairs: list[tuple[object, object]]) -> None:
        target = self._stack[-1]
        if isinstance(target, Built):
            target.items.extend(pairs)
        elif isinstance(target, dict):
            # The hash of a tuple of tuples can take for ever.
            if not all(isinstance(key, (str, int, bytes)) for key, _ in pairs):
                raise PickleError("The keys of a dictionary must be text or numbers.")
            target.update(pairs)
        else:
            raise PickleError(f"Only a dictionary has keys, got {type(target).__name__}.")


def _pairs(values: list[object]) -> list[tuple[object, object]]:
    return list(zip(values[0::2], values[1::2], strict=True))


_RECONSTRUCT: Final = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_FROM_BUFFER: Final = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}
_SCALAR: Final = {"numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"}
_CODES: Final = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
_TYPES: Final = {
    "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
}  # fmt: skip


def array(value: object) -> NDArray[np.generic]:
    """Return a pickled array of numbers, as numpy itself would restore it. A number becomes an array without axes.

    Raises:
        PickleError: the value is not an array of numbers that numpy pickled.
    """
    if isinstance(value, (bool, int, float)):
        return np.array(value)
    if isinstance(value, Built) and value.name in _SCALAR and not value.items and value.state is None:
        kind, content = _unpacked(value.arguments, 2)
        return _filled(kind, (), "C", content)
    if isinstance(value, Built) and value.name in _FROM_BUFFER and not value.items and value.state is None:
        content, kind, shape, order = _unpacked(value.arguments, 4)
        return _filled(kind, shape, order, content)
    if isinstance(value, Built) and value.name in _RECONSTRUCT and not value.items:
        made, *_ = _unpacked(value.arguments, 3)
        version, shape, kind, is_fortran, content = _unpacked(value.state, 5)
        if made == Named("numpy", "ndarray") and version == 1 and isinstance(is_fortran, bool):
            return _filled(kind, shape, "F" if is_fortran else "C", content)
    got = value.name or "an object" if isinstance(value, Built) else type(value).__name__
    raise PickleError(f"The value must be an array of numbers as numpy pickles it, got {got}.")


def dtype(value: object) -> np.dtype[np.generic]:
    """Return a pickled type of numbers."""
    if isinstance(value, Named) and value.module == "numpy" and value.name in _TYPES:
        return np.dtype(value.name)
    if isinstance(value, Built) and value.name == "numpy.dtype" and not value.items:
        code, *_ = _unpacked(value.arguments, 3)
        order = value.state[1] if isinstance(value.state, tuple) and len(value.state) in (8, 9) else None
        if isinstance(code, str) and code in _CODES and order in ("<", ">", "|", "="):
            return np.dtype(f"{order}{code}")
    raise PickleError("The type of an array must be a type of numbers as numpy pickles it.")


def _filled(kind: object, shape: object, order: object, content: object) -> NDArray[np.generic]:
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or order not in ("C", "F"):
        raise PickleError(f"The shape of an array must consist of sizes, got {shape!r} in order {order!r}.")
    written, of = _bytes(content), dtype(kind)
    if len(written) != of.itemsize * int(np.prod(sizes, dtype=object)):
        raise PickleError(f"An array of shape {shape} must have as many bytes, got {len(written)}.")
    flat = np.frombuffer(written, of) if written else np.zeros(0, of)
    return np.array(flat.reshape(cast(tuple[int, ...], sizes), order="F" if order == "F" else "C"))


def _bytes(content: object) -> bytes:
    if isinstance(content, (bytes, bytearray)):
        return bytes(content)
    # Before protocol 3 there were no bytes: they stand as text that is to be encoded.
    if isinstance(content, Built) and content.name == "_codecs.encode":
        text, encoding = _unpacked(content.arguments, 2)
        if isinstance(text, str) and encoding == "latin1":
            return text.encode("latin1")
    raise PickleError(f"The content of an array must be bytes, got {type(content).__name__}.")


def _unpacked(values: object, count: int) -> tuple[object, ...]:
    if not (isinstance(values, tuple) and len(values) == count):
        raise PickleError(f"A pickled object must have {count} arguments, got {type(values).__name__}.")
    return values
