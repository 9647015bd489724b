"""A second environment is made as the first one was, or not at all."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from toys import Line, limited

from ccfs.envs.toys.corridor import make as corridor
from ccfs.runtime.remade import MadeAnew, arguments_of, layers, make_anew, remaker


class Plain(Line):
    """Takes nothing."""

    def __init__(self):
        super().__init__()


class Kept(Line):
    """Keeps what it takes, one of them under an underscore."""

    def __init__(self, noise, speed=1.0):
        super().__init__(noise=noise)
        self._speed = speed


class Hidden(Line):
    """Takes something that nobody can find again."""

    def __init__(self, secret=3):
        super().__init__(noise=secret)


class Loose(Line):
    """Takes anything."""

    def __init__(self, **settings):
        super().__init__(**settings)


class Scale(gymnasium.Wrapper):
    """A wrapper without Gymnasium's record of its arguments."""

    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor


class Fussy(Line):
    """Can be made once."""

    made = 0

    def __init__(self):
        super().__init__()
        Fussy.made += 1
        if Fussy.made > 1:
            raise OSError("the port is taken")


def kinds(env):
    return [type(layer) for layer in layers(env)]


@pytest.mark.parametrize(
    "env",
    [
        Plain(),
        Kept(0.5, speed=2.0),
        Scale(Kept(0.5), 3.0),
        corridor(horizon=7, post=0.2),
        gymnasium.make("Pendulum-v1"),
        gymnasium.make("Pendulum-v1", g=3.0),
        gymnasium.wrappers.FlattenObservation(gymnasium.make("MountainCarContinuous-v0", max_episode_steps=7)),
        Scale(gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), *np.float32([-0.5, 0.5])), 2.0),
    ],
    ids=lambda env: "-".join(kind.__name__ for kind in kinds(env)),
)
def test_remade_environment_behaves_as_the_first(env):
    again = remaker(env)()
    assert again is not env
    assert kinds(again) == kinds(env)
    np.testing.assert_array_equal(again.reset(seed=4)[0], env.reset(seed=4)[0])
    for _ in range(5):
        action = np.full(env.action_space.shape, 0.1, env.action_space.dtype)
        for one, other in zip(again.step(action)[:4], env.step(action)[:4], strict=True):
            np.testing.assert_array_equal(one, other)


def test_remade_environment_has_the_arguments_of_the_first():
    again = remaker(Scale(Kept(0.5, speed=2.0), 3.0))()
    assert (again.factor, again.env._speed, again.env.noise) == (3.0, 2.0, 0.5)
    assert remaker(gymnasium.make("Pendulum-v1", g=3.0))().unwrapped.g == 3.0
    assert arguments_of(remaker(corridor(horizon=7, post=0.2))())["post"] == 0.2


@pytest.mark.parametrize("env", [Hidden(), Loose(), limited(4), Scale(Hidden(), 2.0)])
def test_nothing_is_guessed(env):
    with pytest.raises(TypeError, match=r"nobody can tell what .*`env=lambda: MyEnv\(3\)`"):
        remaker(env)


def test_environment_that_can_be_made_once_is_refused_with_its_own_reason():
    with pytest.raises(TypeError, match=r"made a second time.*the port is taken"):
        remaker(Fussy())


def test_remade_environment_with_other_spaces_is_refused():
    env = Plain()
    env.action_space = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64)
    with pytest.raises(TypeError, match="it has other spaces"):
        remaker(env)


def test_arguments_are_copies():
    class Holds(Line):
        def __init__(self, places):
            super().__init__()
            self.places = places

    env = Holds([1, 2])
    arguments_of(env)["places"].append(3)
    assert env.places == [1, 2]


def test_monitor_of_stable_baselines3_is_made_again_without_its_log(tmp_path):
    from stable_baselines3.common.monitor import Monitor

    first = Monitor(gymnasium.make("Pendulum-v1"), str(tmp_path / "log"), info_keywords=("TimeLimit.truncated",))
    second = remaker(first)()
    assert [type(layer) for layer in layers(second)] == [type(layer) for layer in layers(first)]
    assert second.info_keywords == first.info_keywords
    assert second.results_writer is None
    first.close()


class Remembers(Line):
    """Rewards the number of its episodes, and begins at a random place."""

    episodes = 0

    def __init__(self):
        super().__init__()

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        super().reset(seed=seed, options=options)
        return np.array([self.np_random.normal()], np.float32), {}

    def step(self, action):
        return (*super().step(action)[:1], float(self.episodes), False, False, {})


def rewards(env, seeds):
    found = []
    for seed in seeds:
        first, _ = env.reset(seed=seed)
        found.append((float(first[0]), env.step(np.zeros(env.action_space.shape, env.action_space.dtype))[1]))
    return found


def test_environment_that_is_made_anew_remembers_no_episode():
    plain, anew = Remembers(), MadeAnew(Remembers())
    assert [reward for _, reward in rewards(plain, [4, 5, 4])] == [1.0, 2.0, 3.0]
    first, second, third = rewards(anew, [4, 5, 4])
    assert first == third
    assert (first[0] != second[0], first[1], second[1]) == (True, 1.0, 1.0)


def test_environment_that_is_made_anew_goes_on_with_its_random_numbers():
    """Two resets without a seed must not begin at the same place, nor at one that the first seed does not determine."""
    found = [rewards(MadeAnew(Remembers()), [4, None, None]) for _ in range(2)]
    assert found[0] == found[1] == [(place, 1.0) for place, _ in rewards(Remembers(), [4, None, None])]
    assert len(set(found[0])) == 3


def test_environment_that_is_made_anew_can_be_remade_and_has_its_time_limit():
    env = make_anew("Pendulum-v1", max_episode_steps=7, g=3.0)
    again = remaker(env)()
    assert kinds(again) == kinds(env)
    assert (again.unwrapped.g, again.spec.max_episode_steps) == (3.0, 7)
    again.reset(seed=1)
    again.reset(seed=2)
    ends = [again.step(np.zeros(1, np.float32))[3] for _ in range(7)]
    assert ends == [False] * 6 + [True]


def test_environment_that_nobody_can_make_again_is_not_made_anew():
    with pytest.raises(TypeError, match="nobody can tell what"):
        MadeAnew(Hidden())


class Dicey(Line):
    """Draws a number from a generator that everybody shares, while it is made."""

    def __init__(self):
        super().__init__()
        self.luck = np.random.randint(10_000)  # noqa: NPY002

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return np.array([self.luck], np.float32), {}


def test_numbers_drawn_at_construction_follow_from_the_seed_and_move_no_shared_generator():
    one, other = MadeAnew(Dicey()), MadeAnew(Dicey())
    before = np.random.get_state()[1:3]  # noqa: NPY002
    lucks = [float(env.reset(seed=seed)[0][0]) for env, seed in [(one, 3), (one, 4), (one, 3), (other, 3)]]
    after = np.random.get_state()[1:3]  # noqa: NPY002
    assert lucks[0] == lucks[2] == lucks[3] != lucks[1]
    np.testing.assert_array_equal(before[0], after[0])
    assert before[1] == after[1]
