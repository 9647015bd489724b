"""Controllers from plain functions: a rule, a planner, anything that maps an observation to an action."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from types import FunctionType

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["CallableController", "from_callable"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def from_callable(
    f: Callable[[NDArray[np.float64]], ArrayLike], name: str, *, content: bytes | None = None
) -> CallableController:
    """Return the controller whose center is `f(observation)`.

    Assumes: `f` is deterministic and keeps nothing between calls. Its hash covers `name`, its source, defaults and
    the values it closes over; what it reads from its module's globals is outside the hash. Where the source cannot
    be read, or a closed-over value is neither a number, a string nor an array, say by `content` what determines `f`.

    Args:
        f: from an observation (float64) to an action.
        name: shown on certificates and part of the hash.
        content: bytes that determine the function's answers, such as a file of parameters.
    """
    if not callable(f):
        raise TypeError(f"`f` must be callable, got {type(f).__name__}.")
    if not (isinstance(name, str) and name):
        raise ValueError(f"`name` must be a non-empty string, got {name!r}.")
    described = _describe(f) if content is None else content
    digest = hashlib.sha256(f"ccfs.callable-controller/1 {name};".encode() + described).hexdigest()
    return CallableController(f, name, digest)


class CallableController:
    """A function as a controller. Satisfies `Controller`."""

    def __init__(self, f: Callable[[NDArray[np.float64]], ArrayLike], name: str, digest: str) -> None:
        self._f, self.name, self._digest = f, name, digest

    @property
    def digest(self) -> str:
        """SHA-256 of the name and of what determines the function."""
        return self._digest

    def reset(self) -> None:
        """Do nothing: the function has no memory."""

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the function's answer as float64; NaN or an infinity is refused."""
        answer = np.array(self._f(np.array(observation, dtype=np.float64)), dtype=np.float64)
        if answer.ndim != 1:
            raise ValueError(f"`{self.name}` must return a vector, got shape {answer.shape}.")
        if not bool(np.isfinite(answer).all()):
            raise ValueError(f"`{self.name}` must return finite numbers, got {answer}.")
        return answer


def _describe(f: Callable[..., object]) -> bytes:
    if not isinstance(f, FunctionType):
        raise ValueError(f"`content` must be given for a {type(f).__name__}: its behaviour cannot be read off it.")
    try:
        source = inspect.getsource(f)
    except (OSError, TypeError) as error:
        raise ValueError("`content` must be given: the function's source cannot be read.") from error
    closed = inspect.getclosurevars(f).nonlocals
    values = [*sorted(closed.items()), *enumerate(f.__defaults__ or ()), *sorted((f.__kwdefaults__ or {}).items())]
    return source.encode() + b"".join(f"{key}=".encode() + _value(key, value) for key, value in values)


def _value(key: object, value: object) -> bytes:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return f"{value.dtype.str} {value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, tuple):
        return b"(" + b",".join(_value(key, item) for item in value) + b")"
    if isinstance(value, _PLAIN):
        return repr(value).encode()
    raise ValueError(f"`content` must be given: the function closes over {key!r} of type {type(value).__name__}.")
