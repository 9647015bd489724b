from __future__ import annotations

import warnings
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from toys import Line

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import EnergyRefusedError
from ccfs.attacks.rules import NoShift, OpposedShift, ScriptedShift
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.runtime.components import AcceptAll, BoxVerifier, CenterFallback, FixedFallback
from ccfs.runtime.environment import SixTuple
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.streams import Streams
from ccfs.runtime.wrapper import ProposalWrapper

FOUR = ProposalSchedule(count=4, sigma=0.2, multiplier=1.05)
CENTER = np.array([0.8, 0.1])
NOBODY = BoxVerifier(low=(5.0, 5.0), high=(6.0, 6.0))


def wrap(env=None, *, verifier=None, fallbacks=(), schedule=FOUR, seed=0, **more):
    env = env or Line()
    program = CausalProgram.for_space(env.action_space, verifier=verifier or AcceptAll(), fallbacks=fallbacks)
    return ProposalWrapper(env, program=program, schedule=schedule, seed=seed, **more)


def roll(env, steps=20, seed=3):
    observation, _ = env.reset(seed=seed)
    seen = [observation]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(CENTER)
        seen.append((observation, reward, info["ccfs"]["action"], info["ccfs"]["index"]))
        if terminated or truncated:
            break
    return repr(seen)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wrapper_passes_check_env(dtype):
    with warnings.catch_warnings():
        # Gymnasium advises to check the unwrapped environment, and Line has an unbounded observation space.
        warnings.filterwarnings("ignore", message=r".*WARN.*")
        check_env(wrap(Line(dtype=dtype)), skip_render_check=True)


@pytest.mark.extras
def test_wrapper_passes_the_check_env_of_stable_baselines3():
    from stable_baselines3.common.env_checker import check_env as sb3_check

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*(float64|render).*")
        sb3_check(wrap(Line(dtype=np.float32, steps=10)))


@pytest.mark.extras
def test_wrapper_works_in_evaluate_policy_and_vec_env():
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Policy:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            return np.tile(CENTER, (len(observation), 1)), state

    env = wrap(Line(steps=12))
    rewards, lengths = evaluate_policy(Policy(), Monitor(env), n_eval_episodes=3, return_episode_rewards=True)
    assert lengths == [12, 12, 12]
    assert len(set(rewards)) == 3
    vector = DummyVecEnv([lambda: wrap(Line(steps=5)), lambda: wrap(Line(steps=5), seed=1)])
    vector.reset()
    _, _, done, infos = vector.step(np.tile(CENTER, (2, 1)))
    assert not done.any()
    assert infos[0]["ccfs"]["source"] == "proposal"


@pytest.mark.extras
def test_wrapper_copies_in_a_vec_env_do_not_share_their_noise():
    from stable_baselines3.common.vec_env import DummyVecEnv

    def actions(seed):
        vector = DummyVecEnv([lambda: wrap(Line(noise=0.0, steps=3)) for _ in range(3)])
        if seed is not None:
            vector.seed(seed)
        vector.reset()
        return [
            tuple(info["ccfs"]["action"].tolist())
            for _ in range(7)  # over the ends of episodes, which VecEnv resets without a seed
            for info in vector.step(np.tile(CENTER, (3, 1)))[3]
        ]

    assert len(set(actions(None))) == 21
    assert len(set(actions(5))) == 21
    assert actions(5) == actions(5)
    assert not set(actions(None)) & set(actions(None))


def test_wrapper_with_given_streams_needs_no_seed():
    def first(env):
        env.use_streams(Streams(protocol="test", root=1, arm="a", trial=2))
        env.reset()
        return env.step(CENTER)[4]["ccfs"]["action"].tolist()

    assert first(wrap()) == first(wrap())


def test_wrapper_same_seed_gives_same_bytes_and_other_seeds_do_not():
    assert roll(wrap()) == roll(wrap())
    assert roll(wrap()) != roll(wrap(seed=1))
    env = wrap()
    first = roll(env)
    assert roll(env) == first
    assert roll(env, seed=4) != first


def test_wrapper_episodes_after_one_seed_draw_fresh_noise():
    env = wrap()
    env.reset(seed=0)
    first = env.step(CENTER)[4]["ccfs"]["action"]
    env.reset()
    assert not np.array_equal(first, env.step(CENTER)[4]["ccfs"]["action"])


def test_wrapper_executes_exactly_what_was_verified_in_single_precision():
    verified = []

    class Recording:
        def accepts(self, observation, actions):
            verified.extend(row.tobytes() for row in actions)
            return np.ones(len(actions), dtype=bool)

    env = wrap(Line(dtype=np.float32), verifier=Recording())
    roll(env)
    assert len(env.env.executed) == 20
    assert all(action.dtype == np.float32 for action in env.env.executed)
    assert all(action.astype(np.float64).tobytes() in verified for action in env.env.executed)


def test_wrapper_abstains_without_inner_step():
    env = wrap(verifier=NOBODY, fallbacks=(FallbackEntry(name="stop", fallback=FixedFallback((0.0, 0.0))),))
    before, _ = env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(CENTER)
    assert (reward, terminated, truncated, info["ccfs"]["source"]) == (0.0, True, False, "abstain")
    np.testing.assert_array_equal(observation, before)
    assert env.env.executed == []
    with pytest.raises(RuntimeError, match="`reset` must be called"):
        env.step(CENTER)


def test_wrapper_unverified_fallback_acts_as_the_clipped_center():
    env = wrap(verifier=NOBODY, fallbacks=(FallbackEntry(name="c", fallback=CenterFallback(), unverified=True),))
    env.reset(seed=0)
    info = env.step(np.array([7.0, 0.1]))[4]["ccfs"]
    assert (info["source"], info["index"]) == ("fallback", 0)
    np.testing.assert_array_equal(info["action"], [1.0, 0.1])
    np.testing.assert_array_equal(info["center"], [1.0, 0.1])


def test_wrapper_reads_six_values_and_gives_them_back():
    five, six = wrap(Line()), wrap(Line(six=True))
    assert roll(five) == roll(six)
    back = SixTuple(wrap(Line(six=True)))
    back.reset(seed=3)
    costs = [back.step(CENTER)[2] for _ in range(20)]
    assert max(costs) == 1.0
    assert six.last_step.cost == five.last_step.cost == costs[-1]


def test_wrapper_zero_shift_gives_the_nominal_bytes():
    nominal = wrap(horizon=20)
    attacked = wrap(horizon=20, attack=Attack(rule=NoShift(), limit=1.0, schedule=FOUR))
    zero = wrap(horizon=20, attack=Attack(rule=ScriptedShift(shifts=((0.0, 0.0),) * 20), limit=0.0, schedule=FOUR))
    assert roll(nominal) == roll(attacked) == roll(zero)
    assert zero.last_shift.spent == 0.0


def test_wrapper_shift_moves_the_block_but_never_the_public_center():
    attack = Attack(rule=ScriptedShift(shifts=((-0.5, 0.0),)), limit=100.0, schedule=FOUR)
    nominal, attacked = wrap(horizon=5), wrap(horizon=5, attack=attack)
    nominal.reset(seed=0)
    attacked.reset(seed=0)
    clean = nominal.step(CENTER * 0.1)[4]["ccfs"]
    shifted = attacked.step(CENTER * 0.1)[4]["ccfs"]
    assert clean.keys() == shifted.keys()
    np.testing.assert_array_equal(clean["center"], shifted["center"])
    np.testing.assert_allclose(shifted["action"] - clean["action"], [-0.5, 0.0], atol=1e-12)
    assert attacked.last_shift.energy == pytest.approx(26.25 * 0.25, rel=1e-12)
    assert nominal.last_shift is None


def test_wrapper_fallback_never_sees_the_shift():
    entry = FallbackEntry(name="c", fallback=CenterFallback(), unverified=True)
    attack = Attack(rule=OpposedShift(), limit=50.0, schedule=FOUR)
    attacked = wrap(verifier=NOBODY, fallbacks=(entry,), horizon=5, attack=attack)
    assert roll(attacked) == roll(wrap(verifier=NOBODY, fallbacks=(entry,), horizon=5))


def test_wrapper_overspending_shift_is_refused_before_anything_happens():
    attack = Attack(rule=ScriptedShift(shifts=((0.01, 0.0), (9.0, 0.0))), limit=1.0, schedule=FOUR)
    env = wrap(horizon=5, attack=attack)
    env.reset(seed=0)
    env.step(CENTER)
    spent, generator = env.last_shift.spent, repr(env._rng.bit_generator.state)
    with pytest.raises(EnergyRefusedError):
        env.step(CENTER)
    assert len(env.env.executed) == 1
    assert env.last_shift.spent == spent
    assert repr(env._rng.bit_generator.state) == generator


def test_wrapper_time_varying_schedules_are_charged_step_by_step():
    schedule = [ProposalSchedule(count=1, sigma=0.1), ProposalSchedule(count=1, sigma=0.2)]
    attack = Attack(rule=ScriptedShift(shifts=((0.1, 0.0), (0.1, 0.0))), limit=1.26, schedule=schedule)
    env = wrap(schedule=schedule, attack=attack)
    env.reset(seed=0)
    env.step(CENTER)
    assert env.last_shift.energy == pytest.approx(1.0, rel=1e-12)
    truncated = env.step(CENTER)[3]
    assert truncated
    assert env.last_shift.spent == pytest.approx(1.25, rel=1e-12)


def test_wrapper_inner_exception_ends_the_episode():
    env = wrap(Line(breaks_at=2))
    env.reset(seed=0)
    env.step(CENTER)
    env.step(CENTER)
    with pytest.raises(RuntimeError, match="diverged"):
        env.step(CENTER)
    with pytest.raises(RuntimeError, match="`reset` must be called"):
        env.step(CENTER)


def test_wrapper_keeps_its_own_copy_of_the_observation():
    env = wrap(verifier=NOBODY)
    observation, _ = env.reset(seed=0)
    expected = observation.copy()
    observation[:] = 99.0
    np.testing.assert_array_equal(env.step(CENTER)[0], expected)


def test_wrapper_use_streams_keys_one_episode():
    def action(streams):
        env = wrap()
        env.use_streams(streams)
        env.reset(seed=0)
        return env.step(CENTER)[4]["ccfs"]["action"].tolist()

    one = Streams(protocol="test", root=1, arm="a", trial=0, reset_seed=0)
    assert action(one) == action(one)
    assert action(one) != action(replace(one, trial=1))
    with pytest.raises(ValueError, match="`seed` must be the reset seed of the streams, 7, got 0"):
        action(replace(one, reset_seed=7))


class Seer:
    """A verifier and fallback that keeps what it is shown."""

    def __init__(self):
        self.seen = []

    def accepts(self, observation, actions):
        self.seen.append(observation)
        return np.zeros(len(actions), dtype=np.bool_)

    def action(self, observation, center):
        self.seen.append(observation)
        return center


def test_wrapper_rounds_every_observation_before_anybody_sees_it():
    seer, raw = Seer(), []

    class Noisy(gymnasium.Wrapper):
        def reset(self, **arguments):
            observation, info = self.env.reset(**arguments)
            raw.append(observation + 1e-9)
            return raw[-1], info

        def step(self, action):
            observation, *rest = self.env.step(action)
            raw.append(observation + 1e-9)
            return raw[-1], *rest

    program = CausalProgram.for_space(
        Line().action_space, verifier=seer, fallbacks=[FallbackEntry(name="f", fallback=seer, unverified=True)]
    )
    env = ProposalWrapper(Noisy(Line()), program=program, schedule=FOUR, seed=0, resolution=2.0**-10)
    seen = [env.reset(seed=0)[0]]
    for _ in range(3):
        seen.append(env.step(CENTER)[0])
        assert env.last_step.observation.tobytes() == seen[-2].tobytes()
    expected = [np.rint(np.asarray(one) * 1024) / 1024 + 0.0 for one in raw]
    assert [one.tobytes() for one in seen] == [one.astype(seen[0].dtype).tobytes() for one in expected]
    assert {one.tobytes() for one in seer.seen} == {one.tobytes() for one in seen[:-1]}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wrap(seed=-1), "`seed`"),
        (lambda: wrap(horizon=0), "`horizon`"),
        (lambda: wrap(schedule=[FOUR] * 3, horizon=4), "`schedule` must cover"),
        (lambda: wrap(attack=Attack(rule=NoShift(), limit=1.0, schedule=FOUR)), "`horizon` must be given"),
        (lambda: wrap(schedule=[]), "`schedule` must be a ProposalSchedule or"),
        (lambda: Attack(rule=object(), limit=1.0, schedule=FOUR), "`rule` must have"),
        (lambda: ProposalWrapper(Line(), program="p", schedule=FOUR, seed=0), "`program` must be"),
        (
            lambda: CausalProgram.for_space(gymnasium.spaces.MultiBinary(3), verifier=AcceptAll()),
            "`space` must be a Box",
        ),
        (lambda: CausalProgram(low=[0], high=[1], verifier=AcceptAll(), dtype="float16"), "`dtype`"),
    ],
)
def test_wrapper_refuses(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_wrapper_refuses_dict_observations_and_foreign_dimensions():
    env = Line()
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll())
    with pytest.raises(ValueError, match="action dimension"):
        ProposalWrapper(Line(dimension=3), program=program, schedule=FOUR, seed=0)
    env.observation_space = gymnasium.spaces.Dict({"a": env.observation_space})
    with pytest.raises(TypeError, match="FlattenObservation"):
        ProposalWrapper(env, program=program, schedule=FOUR, seed=0)


@pytest.mark.parametrize("sigma", [1e-13, 1e-150])
def test_wrapper_refuses_noise_that_rounding_would_swallow(sigma):
    env = Line()
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll())
    with pytest.raises(ValueError, match=r"`schedule` must have a sigma of at least .*, 2\^-40 of the action box"):
        ProposalWrapper(env, program=program, schedule=ProposalSchedule(count=1, sigma=sigma), seed=0, horizon=3)


def episodes(wrapped, seeds, *, streams=False):
    """Run whole episodes, each reset with the next seed, and return the warnings of each."""
    told = []
    for number, seed in enumerate(seeds):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if streams:
                wrapped.use_streams(Streams(protocol="test", root=1, arm="", trial=number, reset_seed=seed))
            wrapped.reset(seed=seed)
            while True:
                *_, terminated, truncated, _ = wrapped.step(np.zeros(2))
                if terminated or truncated:
                    break
        told.append([str(entry.message) for entry in caught])
    return told


@pytest.mark.parametrize("how", [{}, {"verifier": BoxVerifier(low=(5.0, 5.0), high=(6.0, 6.0))}])
def test_wrapper_whose_episodes_have_one_seed_warns_once_after_the_second(how):
    told = episodes(wrap(horizon=3, **how), [7, 7, 7, 7])
    assert [len(lines) for lines in told] == [0, 1, 0, 0]
    assert "reset with the same seed, 7" in told[1][0]
    assert [len(lines) for lines in episodes(wrap(horizon=3, **how), [7, None, 7, None])] == [0, 0, 1, 0]


@pytest.mark.parametrize("seeds", [[1, 2, 1, 2], [1, None, None], [None, None, None]])
def test_wrapper_with_different_seeds_or_none_does_not_warn(seeds):
    assert not any(episodes(wrap(horizon=3), seeds))


def test_wrapper_with_given_streams_or_resets_alone_does_not_warn():
    """Streams key each trial by its number, and a check of the environment resets twice without a step."""
    assert not any(episodes(wrap(horizon=3), [7, 7, 7], streams=True))
    wrapped = wrap(horizon=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            wrapped.reset(seed=7)
    assert not any(episodes(wrapped, [7]))
