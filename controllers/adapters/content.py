"""The bytes that determine a value or a function. The digest of a controller made from code covers them."""

from __future__ import annotations
import __future__

import ast
import dis
import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import NoReturn

import numpy as np

from ccfs.files.code import code_content, parsed

__all__ = ["Known", "checked_content", "framed", "function_text", "function_values", "refuse", "value_content"]

Known = Callable[[str, object], bytes]
"""From a place and a value that is not plain to its bytes. It raises for a value that it does not know either."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type, np.ufunc, type(np.clip))
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def checked_content(content: object) -> None:
    """Refuse a `content` that is neither None nor bytes."""
    if content is not None and not isinstance(content, bytes):
        raise TypeError(f"`content` must be bytes, got {type(content).__name__}. Read the file that determines it.")


def framed(tag: str, content: bytes) -> bytes:
    """Return `content` after its tag and its length, so that different sequences of parts never give the same bytes."""
    return f"{len(tag)} {len(content)} {tag}=".encode() + content


def refuse(place: str, value: object) -> NoReturn:
    """Refuse a value whose behaviour cannot be read from it."""
    raise ValueError(f"`content` must be given: {place!r} is of type {type(value).__name__}, which cannot be hashed.")


def value_content(place: str, value: object, known: Known = refuse) -> bytes:
    """Return the bytes of a number, string, numeric array or tuple of them. Anything else is left to `known`.

    Types are compared exactly, because a subclass can behave differently from its bytes (a masked array has a mask).
    """
    if type(value) in _PLAIN:
        return framed(type(value).__name__, repr(value).encode())
    if type(value) is np.ndarray or isinstance(value, np.generic):
        array = np.asarray(value)
        if array.dtype.kind in "biufc":
            header = f"{type(value).__name__} {array.dtype.str} {array.shape}"
            return framed(header, np.ascontiguousarray(array).tobytes())
    if type(value) is tuple:
        return framed("tuple", b"".join(value_content(place, item, known) for item in value))
    return known(place, value)


def function_text(code: CodeType) -> bytes:
    """Return what the source of a function does, and which of the functions on its line it is.

    The file or notebook cell is compiled again and must contain the very code that runs. A file that was edited after
    it was loaded is refused, and so is a rewritten function. Comments, docstrings, layout and the Python version do not
    count.
    """
    try:
        text = "".join(inspect.findsource(code)[0])
        readings = _compiled(text, code.co_filename, code.co_flags & _FUTURE)
    except (OSError, TypeError, SyntaxError, ValueError, IndexError) as error:
        raise ValueError(f"`content` must be given: the source of {code.co_name!r} cannot be read.") from error
    start = (code.co_name, code.co_firstlineno)
    inside = next((reading for reading in readings if code in reading), ())
    beside = [other for other in inside if (other.co_name, other.co_firstlineno) == start]
    written = [content for name, line, content in _functions(text) if (name, line) == start]
    if code not in beside or not written:
        raise ValueError(f"`content` must be given: {code.co_name!r} is not the code in {code.co_filename} now.")
    return framed(f"code {beside.index(code)} of {len(beside)}", b"".join(written))


@lru_cache(maxsize=8)
def _functions(text: str) -> tuple[tuple[str, int, bytes], ...]:
    """Return name, first line and content of every function in a source. A decorator counts as the first line."""
    tree = parsed(text)
    found = []
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Lambda):
            name, first = "<lambda>", node.lineno
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name, first = node.name, min(part.lineno for part in (node, *node.decorator_list))
        else:
            continue
        found.append((name, first, code_content(node, has_docstrings="__doc__" in text)))
    return tuple(found)


def function_values(f: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the values that a function closes over, its defaults, and the data it reads from its module's globals.

    Modules are skipped, and so are functions and classes among the globals. A function that assigns to an outer
    variable is refused, because it remembers its calls.
    """
    read, written = _outer_names(f.__code__)
    if written:
        raise ValueError(f"`content` must be given: {f.__name__!r} assigns to {written[0]!r} outside of it.")
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        if name != "__class__":
            try:
                value = cell.cell_contents
            except ValueError:
                raise ValueError(f"`content` must be given: {name!r} has no value yet.") from None
            if not isinstance(value, ModuleType):  # imported inside of the function around it
                yield name, value
    yield from ((str(place), value) for place, value in enumerate(f.__defaults__ or ()))
    yield from sorted((f.__kwdefaults__ or {}).items())
    for name in read:
        value = f.__globals__.get(name)
        if name in f.__globals__ and not isinstance(value, _CODE) and not name.startswith("__"):
            yield f"global {name}", value


@lru_cache(maxsize=8)
def _compiled(text: str, filename: str, flags: int) -> tuple[tuple[CodeType, ...], ...]:
    """Return every code object in a source, compiled as a file and then statement by statement.

    A notebook compiles each statement of a cell by itself. The compiler then does not see that the cell imports `np`,
    and makes another code of `np.clip(...)`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = compile(text, filename, "exec", flags, dont_inherit=True)
        tree = compile(text, filename, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        alone = [ast.Module(body=[statement], type_ignores=[]) for statement in tree.body]
        parts = [compile(module, filename, "exec", flags, dont_inherit=True) for module in alone]
    return tuple(_within(whole)), tuple(code for part in parts for code in _within(part))


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _within(constant)


@lru_cache(maxsize=1024)
def _outer_names(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the global names that a function reads, and the names outside of it that it assigns to."""
    read, written = set(), set()
    for part in _within(code):
        for step in dis.get_instructions(part):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read.add(str(step.argval))
            is_outer = step.opname in ("STORE_DEREF", "DELETE_DEREF") and step.argval in code.co_freevars
            if is_outer or step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                written.add(str(step.argval))
    return tuple(sorted(read)), tuple(sorted(written))
