"""Components with the mistakes of a new user, for protocols that must be refused or explained."""

from __future__ import annotations

import os
import random
from typing import ClassVar

import numpy as np
from toys import Line, Push


class Raising:
    def accepts(self, observation, actions):
        raise ValueError("boom\nand more")


class Exiting:
    def accepts(self, observation, actions):
        raise SystemExit(3)


class Answering:
    """Answers the same whatever is asked; a number stands for itself, a text for a NumPy expression's kind."""

    def __init__(self, answer=None, kind=None):
        self.answer = {
            "float": np.ones(2),
            "square": np.ones((2, 2), dtype=bool),
            "one": np.ones(1, dtype=bool),
            "scalar": np.bool_(True),
            "list": [True, True],
        }.get(kind, answer)

    def accepts(self, observation, actions):
        return self.answer


class Forgetful:
    """A verifier whose memory raises."""

    def reset(self):
        pass

    def observe(self, observation):
        raise KeyError("no such sensor")

    def accepts(self, observation, actions):
        return np.ones(len(actions), dtype=bool)


class Once(Forgetful):
    """A verifier that must be told each observation once, and accepts nothing else."""

    def __init__(self):
        self.told = 0

    def reset(self):
        self.told = 0

    def observe(self, observation):
        self.told += 1

    def accepts(self, observation, actions):
        assert self.told == 1
        return np.ones(len(actions), dtype=bool)


class Center(Push):
    """A controller that answers what it is told to."""

    def __init__(self, center=None, breaks=False):
        self._center, self._breaks = center, breaks

    def center(self, observation):
        if self._breaks:
            raise RuntimeError("no weights")
        return self._center


class Quiet(Line):
    """Reports no cost."""

    def step(self, action):
        *first, info = super().step(action)
        return *first, {"risk": info["cost"]}


class Seeded(Line):
    """Remembers its reset seeds, and refuses those that it is told to."""

    seen: ClassVar[list[int]] = []

    def __init__(self, *, refused=(), above=None, nan=False):
        super().__init__(dimension=2)
        self.refused, self.above, self.nan = refused, above, nan

    def reset(self, *, seed=None, options=None):
        self.seen.append(seed)
        assert seed not in self.refused, "starting cost"
        assert self.above is None or not seed > self.above, "too great"
        observation, info = super().reset(seed=seed, options=options)
        return observation * (np.nan if self.nan else 1.0), info


class Global(Line):
    """Draws from the generators that everybody shares, as no environment should."""

    def step(self, action):
        self.x += 0.1 * random.random() + 0.1 * np.random.rand()  # noqa: NPY002
        return super().step(action)


def narrow(block):
    return block[:, :1]


def make_narrow():
    return narrow


class Reader(Push):
    """A controller that keeps what it reads."""

    seen: ClassVar[list[np.ndarray]] = []

    def center(self, observation):
        self.seen.append(observation)
        return super().center(observation)


class Checker:
    """A verifier that keeps what it reads."""

    seen: ClassVar[list[np.ndarray]] = []

    def accepts(self, observation, actions):
        self.seen.append(observation)
        return np.ones(len(actions), dtype=bool)


class Counting:
    """An event with a memory: it holds until it was asked `most` times."""

    def __init__(self, most=1):
        self.most, self.asked = most, 0

    def holds(self, trace):
        self.asked += 1
        return self.asked <= self.most


class Misspelt:
    """An event that asks for what a trace does not have."""

    def holds(self, trace):
        return bool(trace.rewards.sum() > 0.0)


class Episodes(Line):
    """An environment with a memory: from episode `after` on, something else happens at step `at`."""

    def __init__(self, after=1, at=0, every=None):
        super().__init__(dimension=2)
        self.after, self.at, self.every, self.episodes = after, at, every, -1

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action):
        is_changed = self.episodes >= self.after if self.every is None else self.episodes % self.every == 0
        if is_changed and self.t == self.at:
            self.x += 0.5
        return super().step(action)


class Entropy(Line):
    """An environment with a generator of its own, which the reset seed does not set."""

    def __init__(self, at=0):
        super().__init__(dimension=2)
        self.at, self.own = at, np.random.default_rng()

    def step(self, action):
        if self.t == self.at:
            self.x += 0.01 * self.own.random()
        return super().step(action)


class Coin(Line):
    """An environment that draws one number when it is made, and keeps it for all of its episodes."""

    def __init__(self, dimension=2):
        super().__init__(dimension=dimension)
        self.offset = np.random.default_rng().random()

    def step(self, action):
        self.x += 0.01 * self.offset
        return super().step(action)


class Reseeding(Line):
    """Draws from the generator that everybody shares, but seeds it at each reset. Ugly, and it repeats."""

    def reset(self, *, seed=None, options=None):
        np.random.seed(seed % 2**32)  # noqa: NPY002
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.x += 0.1 * np.random.rand()  # noqa: NPY002
        return super().step(action)


class Idle(Line):
    """Draws from a generator that everybody shares, and does nothing with the number."""

    def step(self, action):
        random.random()
        return super().step(action)


class SometimesIdle(Line):
    """Draws from a generator that everybody shares in the trials of some reset seeds only."""

    def __init__(self, every=2):
        super().__init__(dimension=2)
        self.every = every

    def reset(self, *, seed=None, options=None):
        if seed % self.every == 0:
            random.random()
        return super().reset(seed=seed, options=options)


class Remembering(Push):
    """A controller that counts its calls and forgets to begin anew at a reset."""

    def __init__(self, after=10):
        self.after, self.calls = after, 0

    def center(self, observation):
        self.calls += 1
        return np.array([0.8 if self.calls <= self.after else -0.8, 0.1])


class Grumpy:
    """A verifier that accepts everything in its first `patience` calls, and then only small actions."""

    def __init__(self, patience=10):
        self.left = patience

    def accepts(self, observation, actions):
        self.left -= 1
        return np.ones(len(actions), dtype=bool) if self.left >= 0 else np.abs(actions[:, 1]) < 0.2


class Idler(Line):
    """Draws from a generator of its own with a fixed seed, and does nothing with the number."""

    def __init__(self, dimension=2):
        super().__init__(dimension=dimension)
        self.own = np.random.default_rng(5)

    def step(self, action):
        self.own.random()
        return super().step(action)


class IdlingPush(Push):
    """A controller that does the same."""

    def __init__(self):
        self.own = random.Random(5)

    def center(self, observation):
        self.own.random()
        return super().center(observation)


_COINS = random.Random(8)


class Lucky:
    """An event that holds with probability 0.98, by coins of its own."""

    def holds(self, trace):
        return _COINS.random() < 0.98


class Urandom:
    """An event that holds with probability 0.98, by numbers that no generator in Python holds."""

    def holds(self, trace):
        return os.urandom(1)[0] >= 5
