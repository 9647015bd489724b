"""Stages of the wrapper: who reads the noisy observation, what is drawn when, and discrete actions by their scores."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.utils.env_checker import check_env
from toys import Buttons, Line

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import EnergyRefusedError
from ccfs.attacks.rules import NoShift, OpposedShift, ScriptedShift
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.runtime.components import AcceptAll, CenterFallback, FixedFallback
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.streams import Purpose, Streams
from ccfs.runtime.wrapper import ProposalWrapper, Widths

FOUR = ProposalSchedule(count=4, sigma=0.2, multiplier=1.05)
SENSOR = ProposalSchedule(count=1, sigma=[0.1, 0.0, 0.3])
BOTH = Schedule(action=FOUR, sensor=SENSOR)
CENTER = np.array([0.8, 0.1])
STREAMS = Streams(protocol="test", root=1, arm="a", trial=0, reset_seed=3)


class Seer:
    """A verifier and fallback with a memory that keeps what it is shown, and accepts what it is told to."""

    def __init__(self, accepts=True):
        self.accepted = accepts

    def reset(self):
        self.seen, self.observed = [], []

    def observe(self, observation):
        self.observed.append(observation)

    def accepts(self, observation, actions):
        self.seen.append(observation)
        return np.full(len(actions), self.accepted)

    def action(self, observation, center):
        self.seen.append(observation)
        return center


def wrap(env=None, *, schedule=BOTH, verifier=None, fallbacks=(), **more):
    env = env or Line(noise=0.0)
    program = CausalProgram.for_space(env.action_space, verifier=verifier or AcceptAll(), fallbacks=fallbacks)
    return ProposalWrapper(env, program=program, schedule=schedule, seed=0, **more)


def begin(env, streams=STREAMS):
    env.use_streams(streams)
    return env.reset(seed=streams.reset_seed)[0]


def test_sensor_stage_returns_the_observation_plus_the_noise_of_its_own_stream():
    """Oracle: the block drawn here from the stream that is keyed by the purpose `sensor`."""
    env = wrap()
    readings, truths = [begin(env)], [env.observation]
    for _ in range(3):
        readings.append(env.step(CENTER)[0])
        truths.append(env.observation)
    rng = STREAMS.generator(Purpose.SENSOR)
    expected = [SENSOR.sample_block(truth, rng)[0] for truth in truths]
    assert [one.tobytes() for one in readings] == [one.tobytes() for one in expected]
    assert all(reading[1] == truth[1] for reading, truth in zip(readings, truths, strict=True))


def test_sensor_stage_leaves_the_noise_of_the_actions_alone():
    """The same actions are proposed with and without a sensor stage: no two stages share a stream."""
    sensed, plain = wrap(), wrap(schedule=FOUR)
    begin(sensed)
    begin(plain)
    for _ in range(3):
        one, other = sensed.step(CENTER)[4]["ccfs"], plain.step(CENTER)[4]["ccfs"]
        assert one["action"].tobytes() == other["action"].tobytes()


@pytest.mark.parametrize("readers", ["all", "controller"])
def test_sensor_stage_shows_the_reading_to_its_readers_and_the_truth_to_the_others(readers):
    verifier, fallback = Seer(accepts=False), Seer()
    entries = (FallbackEntry(name="f", fallback=fallback, unverified=True),)
    schedule = Schedule(action=FOUR, sensor=SENSOR, readers=readers)
    env = wrap(schedule=schedule, verifier=verifier, fallbacks=entries)
    reading = begin(env)
    for _ in range(3):
        truth = env.observation
        assert reading.tobytes() != truth.tobytes()
        following = env.step(CENTER)[0]
        shown = reading if readers == "all" else truth
        for part in (verifier, fallback):
            assert part.seen[-1].tobytes() == part.observed[-1].tobytes() == shown.tobytes()
        step = env.last_step
        assert step.observation.tobytes() == truth.tobytes()
        assert step.reading.tobytes() == reading.tobytes()
        reading = following


def test_sensor_stage_keeps_reward_cost_and_the_ends_of_the_environment():
    class Watched(Line):
        def _see(self):
            return super()._see() + 100.0  # far above, so that a cost read off the noisy copy would show

    env = wrap(Watched(noise=0.0), schedule=Schedule(sensor=ProposalSchedule(count=1, sigma=50.0)))
    plain = Watched(noise=0.0)
    begin(env)
    plain.reset(seed=STREAMS.reset_seed)
    for _ in range(12):
        _, reward, terminated, truncated, info = env.step(CENTER)
        expected = plain.step(CENTER)
        assert (reward, terminated, truncated, info["cost"]) == (*expected[1:4], expected[4]["cost"])
        assert env.observation.tobytes() == expected[0].tobytes()


def test_sensor_stage_alone_proposes_the_policys_own_action():
    seer = Seer()
    env = wrap(schedule=Schedule(sensor=SENSOR), verifier=seer)
    begin(env)
    info = env.step(np.array([3.0, 0.1]))[4]["ccfs"]
    np.testing.assert_array_equal(info["action"], [1.0, 0.1])
    assert (info["source"], info["index"]) == ("proposal", 0)
    assert env.widths == Widths(2, 2, 3)


@pytest.mark.parametrize("end", [{"ends_at": 3}, {"steps": 3}, {}])
def test_sensor_stage_draws_and_charges_nothing_for_the_observation_that_ends_an_episode(end):
    attack = Attack(rule=OpposedShift(norm=0.01), limit=9.0, schedule=BOTH, stage="sensor")
    env = wrap(Line(noise=0.0, **end), horizon=3, attack=attack)
    begin(env)
    for _ in range(2):
        env.step(CENTER)
    before = env.pending_shift.spent
    last = env.step(CENTER)
    assert last[2] or last[3]
    assert last[0].tobytes() == env.observation.tobytes()
    assert env.pending_shift is None
    assert env.last_shift.spent == before


def test_sensor_stage_of_single_precision_gives_readings_of_single_precision():
    env = wrap(Buttons(), schedule=Schedule(sensor=ProposalSchedule(count=1, sigma=0.5)))
    reading = begin(env)
    assert (reading.dtype, reading.shape) == (np.float32, (2,))
    expected = ProposalSchedule(count=1, sigma=0.5).sample_block(np.zeros(2), STREAMS.generator(Purpose.SENSOR))
    assert reading.tobytes() == expected[0].astype(np.float32).tobytes()
    assert env.observation_space == Box(-np.inf, np.inf, (2,), np.float32)


def test_sensor_noise_comes_after_rounding():
    env = wrap(resolution=0.25, schedule=Schedule(sensor=ProposalSchedule(count=1, sigma=0.01)))
    reading = begin(env)
    assert (env.observation % 0.25 == 0.0).all()
    assert (reading % 0.25 != 0.0).all()


def test_zero_shift_of_any_stage_gives_the_nominal_bytes():
    def roll(attack):
        env = wrap(horizon=6, attack=attack)
        seen = [begin(env)]
        for _ in range(6):
            observation, reward, _, _, info = env.step(CENTER)
            seen.append((observation, reward, info["ccfs"]["action"]))
        return repr(seen)

    attacks = [Attack(rule=NoShift(), limit=1.0, schedule=BOTH, stage=stage) for stage in ("sensor", "action", "all")]
    assert len({roll(attack) for attack in (None, *attacks)}) == 1


def test_sensor_shift_moves_the_reading_and_neither_observation_nor_action_noise():
    schedule = Schedule(sensor=SENSOR)
    rule = ScriptedShift(shifts=((0.5, 0.0, -0.25),))
    nominal = wrap(schedule=schedule)
    attacked = wrap(schedule=schedule, horizon=5, attack=Attack(rule=rule, limit=100.0, schedule=schedule))
    clean, shifted = begin(nominal), begin(attacked)
    np.testing.assert_allclose(shifted - clean, [0.5, 0.0, -0.25], atol=1e-15)
    assert nominal.observation.tobytes() == attacked.observation.tobytes()
    attacked.step(CENTER)
    assert attacked.last_shift.energy == pytest.approx(25.0 + (0.25 / 0.3) ** 2, rel=1e-12)


@pytest.mark.parametrize("shift", [(0.0, 1e-9, 0.0), (9.0, 0.0, 0.0)])
def test_sensor_shift_that_is_refused_leaves_the_episode_ended_and_nothing_drawn(shift):
    rule = ScriptedShift(shifts=((0.0, 0.0, 0.0), shift))
    env = wrap(horizon=5, attack=Attack(rule=rule, limit=1.0, schedule=BOTH, stage="sensor"))
    begin(env)
    state = repr(env._sensor_rng.bit_generator.state)
    with pytest.raises(EnergyRefusedError):
        env.step(CENTER)
    assert repr(env._sensor_rng.bit_generator.state) == state
    with pytest.raises(RuntimeError, match="`reset` must be called"):
        env.step(CENTER)


def test_sensor_names_are_found_in_the_environment_or_given():
    named = Schedule(sensor=ProposalSchedule(count=1, sigma={"place": 0.1, "square": 0.3}))
    layout = {"place": (0, 1), "time": (1, 2), "square": (2, 3)}
    with pytest.raises(ValueError, match=r"the sensor stage: .*`observation_layout`"):
        wrap(schedule=named)
    with pytest.raises(ValueError, match="must name slices of the observation, place, got 'square'"):
        wrap(schedule=named, layout={"place": (0, 1)})
    given = wrap(schedule=named, layout=layout)
    env = Line(noise=0.0)
    env.observation_layout = layout
    found, listed = wrap(env, schedule=named), wrap(schedule=Schedule(sensor=SENSOR))
    assert begin(given).tobytes() == begin(found).tobytes() == begin(listed).tobytes()
    attack = Attack(rule=OpposedShift(), limit=1.0, schedule=named)
    attacked = wrap(schedule=named, layout=layout, horizon=4, attack=attack)
    begin(attacked)
    assert attack.pending.sensor[1] == 0.0
    assert 0.0 < attack.pending.spent <= 0.25 * (1 + 1e-12)


def test_wrapper_with_a_sensor_stage_passes_check_env():
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*WARN.*")
        check_env(wrap(), skip_render_check=True)


def test_sensor_stage_refuses_observations_that_are_no_floats_and_those_of_another_size():
    class Whole(Line):
        def __init__(self):
            super().__init__()
            self.observation_space = Box(0, 255, (3,), np.uint8)

    with pytest.raises(TypeError, match="observations in a Box of floats for a sensor stage"):
        wrap(Whole())

    class Growing(Line):
        def _see(self):
            return np.zeros(3 + self.t)

    env = wrap(Growing())
    begin(env)
    with pytest.raises(TypeError, match="must return observations of 3 floats"):
        env.step(CENTER)
    with pytest.raises(ValueError, match=r"the sensor stage: .*one for each of the 3 coordinates, got 2"):
        wrap(schedule=Schedule(sensor=ProposalSchedule(count=1, sigma=[0.1, 0.1])))


THREE = ProposalSchedule(count=5, sigma=0.5, rho=0.2)


@pytest.mark.parametrize(
    ("space", "scores"),
    [(Discrete(3), 3), (Discrete(3, start=-4), 3), (MultiDiscrete([2, 3]), 5), (Discrete(1), 1)],
)
def test_score_stage_runs_the_greatest_noisy_score_as_the_space_has_it(space, scores):
    """Oracle: argmax per group of the block drawn here, plus the space's start."""
    env = wrap(Buttons(space=space), schedule=THREE)
    assert env.action_space == Box(-np.inf, np.inf, (scores,), np.float64)
    center = np.linspace(0.0, 0.3, scores)
    begin(env)
    rng = STREAMS.generator(Purpose.PROPOSAL)
    for _ in range(8):
        info = env.step(center)[4]["ccfs"]
        first = THREE.sample_block(center, rng)[0]
        groups = [first] if isinstance(space, Discrete) else [first[:2], first[2:]]
        starts = np.broadcast_to(getattr(space, "start", 0), len(groups))
        expected = [int(np.argmax(group)) + int(start) for group, start in zip(groups, starts, strict=True)]
        assert info["action"].tolist() == expected
        assert np.atleast_1d(env.env.pressed[-1]).tolist() == expected
        assert info["source"] == "proposal"
    assert env.widths == Widths(scores, len(expected), 0)


def test_score_stage_verifier_sees_numbers_and_the_first_accepted_one_runs():
    asked = []

    class Only:
        def accepts(self, observation, actions):
            asked.append(actions.copy())
            return actions == 2

    env = wrap(
        Buttons(), schedule=THREE, verifier=Only(), fallbacks=[FallbackEntry(name="f", fallback=FixedFallback((2,)))]
    )
    begin(env)
    for _ in range(30):
        info = env.step(np.array([0.3, 0.0, 0.2]))[4]["ccfs"]
        assert info["action"].tolist() == [2]
    assert {one.dtype for one in asked} == {np.dtype(np.int64)}
    assert {one.shape for one in asked} == {(5,), (1,)}
    assert set(env.env.pressed) == {2}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(2, [2]), (np.int32(1), [1]), (np.array([0]), [0]), (2.0, [2]), (np.array([0.1, 0.9, 0.2]), [1]), ("center", [1])],
)
def test_score_stage_fallback_answers_with_a_number_or_with_scores(answer, expected):
    class Fixed:
        def action(self, observation, center):
            return answer

    class Nobody:
        def accepts(self, observation, actions):
            return np.zeros(len(actions), dtype=bool)

    fallback = CenterFallback() if isinstance(answer, str) else Fixed()
    entries = [FallbackEntry(name="f", fallback=fallback, unverified=True)]
    env = wrap(Buttons(), schedule=THREE, verifier=Nobody(), fallbacks=entries)
    begin(env)
    assert env.step(np.array([0.0, 1.0, 0.5]))[4]["ccfs"]["action"].tolist() == expected


@pytest.mark.parametrize("answer", [3, -1, 0.5, np.nan, [0.1, 0.2], "2", None, True, [[1]], [np.nan, 0.0, 0.0]])
def test_score_stage_fallback_that_gives_no_action_is_skipped(answer):
    class Fixed:
        def action(self, observation, center):
            return answer

    class Nobody:
        def accepts(self, observation, actions):
            return np.zeros(len(actions), dtype=bool)

    entries = [FallbackEntry(name="f", fallback=Fixed(), unverified=True)]
    env = wrap(Buttons(), schedule=THREE, verifier=Nobody(), fallbacks=entries)
    begin(env)
    info = env.step(np.array([0.0, 1.0, 0.5]))[4]["ccfs"]
    assert (info["source"], info["skipped"]) == ("abstain", ("f",))
    assert env.env.pressed == []


@pytest.mark.parametrize(
    ("scores", "source"),
    [
        ([0.0, np.nan, 0.0], "abstain"),
        ([-np.inf, -np.inf, -np.inf], "abstain"),
        ([np.inf, 0.0, 0.0], "abstain"),
        ([-np.inf, 0.0, -np.inf], "proposal"),
    ],
)
def test_score_stage_runs_nothing_without_a_greatest_finite_score(scores, source):
    env = wrap(Buttons(), schedule=THREE)
    begin(env)
    assert env.step(np.array(scores))[4]["ccfs"]["source"] == source
    assert env.env.pressed in ([], [1])


def test_discrete_actions_without_a_score_stage_may_be_numbers_or_scores():
    schedule = Schedule(sensor=ProposalSchedule(count=1, sigma=0.1))
    env = wrap(Buttons(start=5), schedule=schedule)
    assert env.action_space == Discrete(3, start=5)
    begin(env)
    for answer, expected in ((6, 6), (np.int64(7), 7), (np.array([5]), 5), (np.array([0.1, 0.0, 0.3]), 7)):
        env.step(answer)
        assert env.env.pressed[-1] == expected
        assert env.last_step.center.shape == (3,)
    with pytest.raises(ValueError, match="`center` must be 3 scores"):
        env.step(8)
    many = wrap(Buttons(groups=[2, 3]), schedule=schedule)
    begin(many)
    many.step(np.array([1, 2]))
    assert many.env.pressed[-1].tolist() == [1, 2]


def test_score_stage_refuses_an_action_in_the_place_of_scores():
    env = wrap(Buttons(), schedule=THREE)
    begin(env)
    with pytest.raises(ValueError, match=r"`center` must be 3 scores, .* got 1\. With a score stage the policy must"):
        env.step(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wrap(Buttons(), schedule=Schedule(action=FOUR)), "`schedule` must have the stage `score`"),
        (lambda: wrap(schedule=Schedule(score=FOUR)), "`schedule` must have the stage `action`"),
        (
            lambda: ProposalWrapper(
                Buttons(count=4),
                program=CausalProgram.for_space(Discrete(3), verifier=AcceptAll()),
                schedule=THREE,
                seed=0,
            ),
            "`program` must be made for the actions of `env`",
        ),
        (
            lambda: ProposalWrapper(
                Line(), program=CausalProgram.for_space(Discrete(2), verifier=AcceptAll()), schedule=THREE, seed=0
            ),
            "`program` must be made for the actions of `env`",
        ),
        (lambda: wrap(attack=Attack(rule=NoShift(), limit=1.0, schedule=FOUR), horizon=3), "wrapper's own schedule"),
        (
            lambda: wrap(Buttons(space=MultiDiscrete(np.array([[2, 2]]))), schedule=THREE),
            "MultiDiscrete with one dimension",
        ),
        (lambda: wrap(schedule=ProposalSchedule(count=2, sigma=[0.1])), "the action stage: .* 2 coordinates, got 1"),
    ],
)
def test_stages_that_do_not_fit_the_environment_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_action_stage_without_noise_on_one_coordinate_proposes_it_as_it_is():
    env = wrap(schedule=ProposalSchedule(count=4, sigma=[0.2, 0.0], multiplier=1.05))
    begin(env)
    for _ in range(5):
        action = env.step(CENTER)[4]["ccfs"]["action"]
        assert action[1] == 0.1
        assert action[0] != 0.8


@pytest.mark.extras
def test_score_stage_works_on_cartpole():
    env = wrap(
        gymnasium.make("CartPole-v1"), schedule=Schedule(score=THREE, sensor=ProposalSchedule(count=1, sigma=0.1))
    )
    observation, _ = env.reset(seed=0)
    for _ in range(5):
        observation, _, terminated, _, _ = env.step(np.array([-observation[2], observation[2]]))
        assert observation.dtype == np.float32
        if terminated:
            break
