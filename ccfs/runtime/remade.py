"""Make further environments as a given one was made, as far as the object itself tells how."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

__all__ = ["MadeAnew", "arguments_of", "generators_kept", "layers", "make_anew", "remaker"]

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]
# Wrappers that do not keep all of their arguments, with those that matter to a trial. The others of SB3's Monitor say
# where its log goes, and what is run again need not be logged.
_ENOUGH = {"stable_baselines3.common.monitor.Monitor": ("allow_early_resets", "reset_keywords", "info_keywords")}


def layers(env: AnyEnv) -> list[AnyEnv]:
    """Return an environment and everything that it wraps, the outermost first.

    >>> [type(layer).__name__ for layer in layers(gymnasium.make("Pendulum-v1", disable_env_checker=True))]
    ['TimeLimit', 'OrderEnforcing', 'PendulumEnv']
    """
    found = [env]
    while isinstance(found[-1], gymnasium.Wrapper):
        found.append(found[-1].env)
    return found


def remaker(env: AnyEnv) -> Callable[[], AnyEnv]:
    """Return a function that makes environments like `env`. Raise TypeError if nobody can tell how.

    The innermost environment is made by its spec or by its class. Then each wrapper is put around it again. Arguments
    are those that Gymnasium recorded or, by the usual habit, the attributes of the same name. If one cannot be found,
    nobody can tell. The result must consist of the same classes and have the same spaces.
    """

    def make() -> AnyEnv:
        found = _inner(env)
        outer = layers(env)[: len(layers(env)) - len(layers(found))]
        for layer in reversed(outer):
            found = type(layer)(found, **arguments_of(layer))  # type: ignore[call-arg]
        if [type(layer) for layer in layers(found)] != [type(layer) for layer in layers(env)]:
            raise TypeError("it consists of other classes")
        if (found.observation_space, found.action_space) != (env.observation_space, env.action_space):
            raise ValueError("it has other spaces")
        return found

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the constructor had to say, it has said
            close: Callable[[], object] = make().close
            close()
    except Exception as error:  # the constructor is the user's own, and a guess at its arguments may fail in any way
        raise TypeError(
            "`env` must be an environment that can be made a second time, because some trials are run again in new "
            f"ones, got {env}, and {error}. Pass a function that makes it instead, such as "
            "`env=lambda: MyEnv(3)`, or what gymnasium.make gives for a registered id."
        ) from error
    return make


class MadeAnew(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Makes its environment anew at each reset, because its simulator remembers earlier episodes.

    Such trials do not follow from the reset seed, and nothing is certified about them. Box2D is such a simulator before
    Gymnasium 1.0: two of 100 episodes of LunarLander-v2 are others in another order.

    Some environments draw numbers while they are made. These follow from the seed of the reset too, and nobody else's
    generators move.

    Args:
        env: an environment that tells how it was made, see `remaker`.
    """

    def __init__(self, env: AnyEnv) -> None:
        with _seeded(None):
            make = remaker(env)
        super().__init__(env)
        self._make = make

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Without a seed, its random numbers follow those of the last one."""
        former = self.env
        with _seeded(seed):
            self.env = self._make()
        if seed is None:
            self.env.unwrapped.np_random = former.unwrapped.np_random
        close: Callable[[], object] = former.close
        close()
        return self.env.reset(seed=seed, options=options)


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


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Let `random` and `np.random` follow from a seed, and restore them afterwards."""
    with generators_kept():
        random.seed(seed or 0)
        np.random.seed((seed or 0) % 2**32)  # noqa: NPY002
        yield


def make_anew(id: str, max_episode_steps: int | None = None, **arguments: Any) -> MadeAnew:
    """Return an environment of Gymnasium by its id, as `gymnasium.make` does, that is made anew at each reset."""
    return MadeAnew(gymnasium.make(id, max_episode_steps=max_episode_steps, **arguments))


def _inner(env: AnyEnv) -> AnyEnv:
    """Return an environment like the innermost layers of `env`."""
    own = layers(env)
    spec = own[-1].spec
    if spec is None:
        return type(own[-1])(**arguments_of(own[-1]))
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    if creator is None:
        raise TypeError(f"{spec.id} has no entry point")
    found = creator(**deepcopy(spec.kwargs))
    if not isinstance(found, gymnasium.Env):
        raise TypeError(f"{spec.id} makes no single environment")
    found.unwrapped.spec = spec
    return found


def arguments_of(layer: AnyEnv) -> dict[str, object]:
    """Return the arguments with which a layer was made, without what it wraps. Raise TypeError if one is unknown."""
    values = vars(layer)
    saved = values.get("_saved_kwargs")  # of Gymnasium's `RecordConstructorArgs`
    if isinstance(saved, dict):
        return deepcopy(saved)
    enough = _ENOUGH.get(f"{type(layer).__module__}.{type(layer).__qualname__}")
    if enough is not None:
        return {name: deepcopy(values[name]) for name in enough}
    parameters = list(inspect.signature(type(layer)).parameters.values())
    found: dict[str, object] = {}
    for parameter in parameters[1:] if isinstance(layer, gymnasium.Wrapper) else parameters:
        names = [name for name in (parameter.name, f"_{parameter.name}") if name in values]
        if not names or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"nobody can tell what {parameter.name!r} was")
        found[parameter.name] = deepcopy(values[names[0]])
    return found
