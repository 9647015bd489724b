"""The random generators that all code of a process shares and those that a part holds, and who draws from them."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from ccfs.files.imports import is_users
from ccfs.runs.store import PremiseError
from ccfs.runtime.remade import generators_kept

__all__ = ["drawn_from", "generators_now", "own_generators", "refuse_drawn_numbers", "refuse_moved"]

_PYTHON, _NUMPY, _TORCH = "Python's `random`", "numpy's `np.random`", "torch's default generator"


def generators_now() -> dict[str, object]:
    """Return the state of each shared generator, by its name. Torch has one only if it is imported."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    states: dict[str, object] = {_PYTHON: random.getstate(), _NUMPY: (kind, np.asarray(keys).tobytes(), *rest)}
    if "torch" in sys.modules:
        states[_TORCH] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states


@generators_kept()
def drawn_from(run: Callable[[], object]) -> tuple[str, ...] | None:
    """Return the shared generators from which `run` draws numbers that nobody has set, None if it touches none.

    It is called with other states than it would find, and once more if a generator moved. A call that seeds a
    generator itself, as an environment does that seeds `np.random` at its reset, leaves the same state both times.
    """
    _set(1)
    before = generators_now()
    run()
    after = generators_now()
    moved = [name for name, state in before.items() if after[name] != state]
    if not moved:
        return None
    _set(2)
    run()
    again = generators_now()
    return tuple(name for name in moved if again[name] != after[name])


def refuse_drawn_numbers(trials: Iterable[Callable[[], object]]) -> None:
    """Raise if a trial draws numbers from a shared generator that the trial does not seed itself.

    The first one that touches a generator at all is looked at.
    """
    names = next((found for found in map(drawn_from, trials) if found is not None), ())
    if names:
        raise PremiseError(
            f"trials draw random numbers from {' and '.join(names)}, which their reset seed does not set. So they do "
            "not repeat. A policy must be deterministic: let it return the mean action, or the scores, and no sample. "
            "An environment must draw from its `np_random` only. Nothing is certified."
        )


def _set(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)


Place = tuple[str, object]
_MOST = 20_000
"""How many objects are looked at. A policy that holds its training data would otherwise take seconds."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.ndarray, np.generic, np.dtype)


def own_generators(parts: Mapping[str, object]) -> dict[str, object]:
    """Return the state of each random generator that these parts hold, by the way to it.

    The way goes through attributes, containers, bound methods and what functions close over. Through code of the user's
    own it also goes through class attributes and through the globals that the code names. Nothing is called, so a
    generator behind a property, in another process or in compiled code is not found. The shared ones are left out.
    """
    shared = {id(made) for made in _shared()}
    found: dict[str, object] = {}
    waiting, seen = deque(parts.items()), set(shared)
    while waiting and len(seen) < _MOST:
        place, made = waiting.popleft()
        if isinstance(made, _PLAIN) or id(made) in seen:
            continue
        seen.add(id(made))
        state = _state(made)
        if state is None:
            waiting.extend(_members(place, made))
        else:
            found[place] = state
    return found


def refuse_moved(before: Mapping[str, object], now: Mapping[str, object], when: str) -> None:
    """Raise if a generator that a part holds is in another state than before."""
    names = [place for place, state in before.items() if now.get(place, state) != state]
    if names:
        told = " and ".join(f"`{name}`" for name in names)
        raise PremiseError(
            f"random numbers are drawn from {told}, which no reset sets: {when}. "
            "Seed it in `reset` from the environment's `np_random`, or draw from that one. An event must not draw at "
            "all. Nothing is certified."
        )


def _shared() -> Iterator[object]:
    yield from (getattr(random.random, "__self__", None), getattr(np.random.rand, "__self__", None))
    if "torch" in sys.modules:
        yield sys.modules["torch"].default_generator


def _state(made: object) -> object | None:
    """Return the state of a generator as a value that can be compared, None if this is none that can be read."""
    torch = sys.modules.get("torch")
    if isinstance(made, random.Random) and not isinstance(made, random.SystemRandom):
        return made.getstate()
    if isinstance(made, np.random.Generator):
        return _frozen(made.bit_generator.state)
    if isinstance(made, np.random.RandomState):
        return _frozen(made.get_state(legacy=False))
    if isinstance(made, np.random.BitGenerator):
        return _frozen(made.state)
    if torch is not None and isinstance(made, torch.Generator):
        return bytes(made.get_state().numpy().tobytes())
    return None


def _frozen(state: object) -> object:
    if isinstance(state, Mapping):
        return tuple((key, _frozen(value)) for key, value in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _members(place: str, made: object) -> Iterator[Place]:
    """Yield what an object holds, each with the way to it."""
    if isinstance(made, Mapping):
        yield from ((f"{place}[{key!r:.40}]", value) for key, value in _listed(getattr(made, "items", tuple)))
    elif isinstance(made, (list, tuple, set, frozenset, deque)):
        yield from ((f"{place}[{number}]", value) for number, value in enumerate(_listed(made.__iter__)))
    elif isinstance(made, (MethodType, BuiltinFunctionType)):
        yield from ((place, part) for part in (made.__self__, getattr(made, "__func__", None)))
    elif isinstance(made, partial):
        yield from ((place, part) for part in (made.func, made.args, made.keywords))
    elif isinstance(made, FunctionType):
        yield from _of_function(place, made)
    elif isinstance(made, type):
        yield from _of_class(place, made)
    elif not isinstance(made, ModuleType):
        names = {**_slots(made), **getattr(made, "__dict__", {})}
        yield from ((f"{place}.{name}", value) for name, value in names.items())
        yield place, type(made)


def _listed(items: Callable[[], Iterable[object]]) -> list[Any]:
    """Return the items of a container of the user's own, whose code may do anything."""
    try:
        return list(items())
    except Exception:
        return []


def _slots(made: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for kind in type(made).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            try:
                found[name] = object.__getattribute__(made, name)
            except AttributeError:  # it has no value yet
                continue
    return found


def _of_function(place: str, function: FunctionType) -> Iterator[Place]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{place}.{name}", cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    yield place, function.__defaults__
    yield place, function.__kwdefaults__
    if not _is_own(function.__module__, function.__code__.co_filename):
        return
    names = _names(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, ModuleType):
            yield name, value
        elif _is_own(value.__name__, getattr(value, "__file__", None)):
            yield from ((f"{name}.{part}", vars(value)[part]) for part in sorted(names & vars(value).keys()))


def _is_own(module: str | None, path: str | None) -> bool:
    """Say whether code is the user's own. What is typed at a prompt has a module and no file."""
    if module is None or module.partition(".")[0] == "ccfs":
        return False
    return module == "__main__" if path is None else is_users(Path(path))


def _names(code: CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _of_class(place: str, kind: type) -> Iterator[Place]:
    """Yield the attributes of a class of the user's own, and of the classes it comes from."""
    for base in kind.__mro__:
        module = getattr(base, "__module__", None)  # classes that SWIG makes, as Box2D's, have none
        if module is None or not _is_own(module, getattr(sys.modules.get(module), "__file__", None)):
            continue
        for name, value in vars(base).items():
            # A static or a class method, or a property, stands for its function.
            yield f"{place}.{name}", getattr(value, "__func__", getattr(value, "fget", value))
