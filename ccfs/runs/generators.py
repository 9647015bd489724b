"""The random generators that all code of a process shares, and whether a trial draws from them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from ccfs.runs.store import PremiseError

__all__ = ["drawn_from", "generators_kept", "generators_now", "refuse_drawn_numbers"]

_PYTHON, _NUMPY, _TORCH = "Python's `random`", "numpy's `np.random`", "torch's default generator"


def generators_now() -> dict[str, object]:
    """Return the state of each shared generator, by its name. Torch has one only if it is imported."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    states: dict[str, object] = {_PYTHON: random.getstate(), _NUMPY: (kind, np.asarray(keys).tobytes(), *rest)}
    if "torch" in sys.modules:
        states[_TORCH] = sys.modules["torch"].get_rng_state().numpy().tobytes()
    return states


@contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the shared generators afterwards, so that code which uses them draws the same numbers as without this."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch = sys.modules["torch"].get_rng_state() if "torch" in sys.modules else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            sys.modules["torch"].set_rng_state(torch)


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
            "not repeat. Draw from the environment's `np_random` only. Nothing is certified"
        )


def _set(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)
