"""Controllers from plain functions, such as a rule or a planner that maps an observation to an action."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import CellType, FunctionType
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.controllers.adapters.content import checked_content, framed, function_text, function_values, value_content
from ccfs.controllers.adapters.environments import Space, decided
from ccfs.runtime.flat import unflattened

__all__ = ["CallableController", "Function", "from_callable"]

Function: TypeAlias = "Callable[..., ArrayLike]"
"""From an observation to an action or to scores."""


def from_callable(
    f: Function,
    name: str,
    *,
    content: bytes | None = None,
    observation_space: Space | None = None,
    action_space: Space | None = None,
) -> CallableController:
    """Return the controller whose center is `f(observation)`.

    The digest covers `name`, the source of `f`, its defaults, the values it closes over and the data it reads from its
    module's globals. It does not cover the modules and functions that `f` calls. Defaults and closed-over values are
    copied, so a later change of them has no effect. If the source cannot be read, or if a value is neither a number,
    a string nor an array, `content` must say what determines `f`.

    Assumes: `f` is deterministic and keeps nothing between calls.

    Args:
        f: from an observation, in the environment's own precision, to an action, or to scores of Discrete actions. What
            it returns may be anything that numpy takes for an array, as tensors of torch and of JAX are.
        name: shown on certificates and part of the hash.
        content: bytes that determine the function's answers, such as a file of parameters. `f` then runs as it is.
        observation_space: for a function of Dict observations. They come as a flat vector (see `flattened`).
        action_space: if it is given, answers of another size are refused.
    """
    if not callable(f):
        raise TypeError(f"`f` must be callable, got {type(f).__name__}.")
    if not (isinstance(name, str) and name):
        raise ValueError(f"`name` must be a non-empty string, got {name!r}.")
    checked_content(content)
    of = (observation_space, action_space)
    reads = b"" if observation_space is None else framed("observations", repr(observation_space).encode())
    if content is not None:
        return CallableController(f, name, _digest(name, framed("content", content) + reads), None, *of)
    if not isinstance(f, FunctionType):
        raise ValueError(f"`content` must be given for a {type(f).__name__}: its behaviour cannot be read off it.")
    values = _values(f)  # before the copy, because this refuses what cannot be hashed
    own, described = _rebuilt(f), function_text(f.__code__) + values + reads
    return CallableController(own, name, _digest(name, described), lambda: _values(own), *of)


class CallableController:
    """A function as a controller. Satisfies `Controller`.

    Args:
        f: the function.
        name: shown in messages.
        digest: empty if nobody can tell what determines the function.
        values: gives the bytes of what the function reads, which must not change.
        observation_space: given if the function wants observations of this space, while they come as a flat vector.
        action_space: given if the environment is known. Then answers of another size are refused.
    """

    def __init__(
        self,
        f: Function,
        name: str,
        digest: str,
        values: Callable[[], bytes] | None = None,
        observation_space: Space | None = None,
        action_space: Space | None = None,
    ) -> None:
        self._f, self.name, self._digest = f, name, digest
        self._whole, self._actions = observation_space, action_space
        self._values = values
        self._first_values = b"" if values is None else values()

    @property
    def digest(self) -> str:
        """SHA-256 of the name and of what determines the function."""
        return self._digest

    def reset(self) -> None:
        """Refuse to go on if a global that the function reads has changed. The function itself has no memory."""
        if self._values is not None and self._values() != self._first_values:
            raise ValueError(f"`{self.name}` must answer as when it was hashed, but a value it reads has changed.")

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the function's answer as float64. NaN and infinities are refused."""
        given: object = np.array(observation)
        if self._whole is not None:
            given = unflattened(self._whole, np.asarray(given))
        answer = self._f(given)
        if isinstance(answer, tuple) and len(answer) == 2 and (np.ndim(answer[0]) or answer[1] is None):
            raise TypeError(
                f"`{self.name}` must return an action, got a pair (action, state), as `predict` returns it. "
                "Pass the model itself, or return the action alone."
            )
        return decided(self.name, answer, self._actions)


def _digest(name: str, described: bytes) -> str:
    return hashlib.sha256(b"ccfs.callable-controller/4" + framed("name", name.encode()) + described).hexdigest()


def _values(f: FunctionType) -> bytes:
    return b"".join(framed(place, value_content(place, value)) for place, value in function_values(f))


def _rebuilt(f: FunctionType) -> FunctionType:
    """Return the function over read-only copies of its defaults and of what it closes over."""
    cells = tuple(
        cell if name == "__class__" else CellType(_frozen(cell.cell_contents))
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
    )
    defaults = None if f.__defaults__ is None else tuple(_frozen(value) for value in f.__defaults__)
    own = FunctionType(f.__code__, f.__globals__, f.__name__, defaults, cells)
    own.__kwdefaults__ = {name: _frozen(value) for name, value in (f.__kwdefaults__ or {}).items()}
    return own


def _frozen(value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, np.ndarray):
        copied = value.copy()
        copied.setflags(write=False)
        return copied
    return value
