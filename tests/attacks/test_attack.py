from __future__ import annotations

import numpy as np
import pytest
from toys import Line

from ccfs.attacks.attack import Attack, AttackError
from ccfs.attacks.rules import OpposedShift
from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.wrapper import ProposalWrapper

FOUR = ProposalSchedule(count=4, sigma=0.2, multiplier=1.05)
CENTER = np.array([0.8, 0.1])


def wrap(env=None, *, schedule=FOUR, **more):
    env = env or Line()
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll())
    return ProposalWrapper(env, program=program, schedule=schedule, seed=0, **more)


def roll(env, steps=20, seed=3):
    observation, _ = env.reset(seed=seed)
    seen = [observation]
    for _ in range(steps):
        observation, reward, terminated, truncated, info = env.step(CENTER)
        seen.append((observation, reward, info["ccfs"]["action"], info["ccfs"]["index"]))
        if terminated or truncated:
            break
    return repr(seen)


def test_attack_hands_out_copies_only():
    class Vandal:
        def reset(self):
            self.lengths = []

        def shift(self, history, rng, *, allowance):
            self.lengths.append(len(history.steps))
            history.observation[:] = np.nan
            history.center[:] = np.nan
            for step in history.steps:
                step.observation[:] = np.nan
                step.action[:] = np.nan
                step.center[:] = np.nan
            rng.standard_normal(100)
            return np.zeros(2)

    rule = Vandal()
    attacked = wrap(horizon=20, attack=Attack(rule=rule, limit=1.0, schedule=FOUR))
    assert roll(attacked) == roll(wrap(horizon=20))
    assert rule.lengths == list(range(20))


def test_attack_rule_gets_its_own_copy_of_each_finished_step():
    class Vandal:
        def reset(self):
            pass

        def shift(self, history, rng, *, allowance):
            for step in history.steps:
                step.observation[:] = step.action[:] = step.center[:] = np.nan
                step.reward, step.index = np.nan, 99
            return np.zeros(2)

    env = wrap(horizon=5, attack=Attack(rule=Vandal(), limit=1.0, schedule=FOUR))
    env.reset(seed=0)
    env.step(CENTER)
    kept = env.last_step
    env.step(CENTER)  # the rule has seen the first step now
    for values in (kept.observation, kept.action, kept.center):
        assert np.isfinite(values).all()
    assert np.isfinite(kept.reward)
    assert kept.index < 99


def test_attack_begins_each_episode_with_its_whole_energy():
    env = wrap(horizon=3, attack=Attack(rule=OpposedShift(), limit=1.0, schedule=FOUR))
    spent = []
    for seed in (0, 1, 2):
        env.reset(seed=seed)
        for _ in range(3):
            env.step(CENTER)
        spent.append(env.last_shift.spent)
    assert spent == [spent[0]] * 3
    assert spent[0] == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("answer", [np.zeros(3), np.array([np.nan, 0.0]), "left", None])
def test_attack_with_a_broken_rule_stops_before_the_block(answer):
    class Broken:
        def reset(self):
            pass

        def shift(self, history, rng, *, allowance):
            return answer

    env = wrap(horizon=5, attack=Attack(rule=Broken(), limit=1.0, schedule=FOUR))
    env.reset(seed=0)
    with pytest.raises(AttackError, match="failed at step 0"):
        env.step(CENTER)
    assert env.env.executed == []


SENSOR = ProposalSchedule(count=1, sigma=[0.1, 0.0, 0.2])
BOTH = Schedule(action=FOUR, sensor=SENSOR)


class Watching:
    """Keeps what it is asked, and pushes by the least amount in the first coordinate."""

    def reset(self):
        self.asked = []

    def shift(self, history, rng, *, allowance):
        self.asked.append(history)
        shift = np.zeros_like(history.center)
        shift[0] = 2.0**-20
        return shift


def test_attack_asks_at_each_stage_and_says_which_it_is():
    rule = Watching()
    attack = Attack(rule=rule, limit=1.0, schedule=BOTH, stage="all")
    env = wrap(schedule=BOTH, horizon=3, attack=attack)
    observation, _ = env.reset(seed=0)
    sensor = rule.asked[-1]
    assert (sensor.stage, sensor.t, sensor.reading) == (Stage.SENSOR, 0, None)
    np.testing.assert_array_equal(sensor.center, env.observation)
    assert sensor.scales == pytest.approx([0.1, 0.0, 0.2], rel=1e-15)
    assert (sensor.stages, sensor.blocks_left) == ((Stage.SENSOR, Stage.ACTION), 6)
    assert attack.pending.shift is None
    assert attack.pending.sensor[0] == 2.0**-20
    env.step(CENTER)
    decided = rule.asked[1]
    assert (decided.stage, decided.t, decided.blocks_left) == (Stage.ACTION, 0, 5)
    np.testing.assert_array_equal(decided.reading, observation)
    np.testing.assert_array_equal(decided.center, CENTER)
    record = env.last_shift
    assert (record.t, record.sensor[0], record.shift[0]) == (0, 2.0**-20, 2.0**-20)
    exact = 2.0**-40 * 100.0 + 2.0**-40 * FOUR.charge
    assert record.energy == record.spent == pytest.approx(exact, rel=1e-12)
    assert env.pending_shift.t == 1
    assert env.pending_shift.shift is None
    np.testing.assert_array_equal(rule.asked[2].steps[0].reading, observation)
    while not env.step(CENTER)[3]:
        pass
    assert env.pending_shift is None  # nobody reads the observation that ends an episode
    assert [asked.stage for asked in rule.asked] == [Stage.SENSOR, Stage.ACTION] * 3


@pytest.mark.parametrize(
    ("stage", "stages"), [("sensor", [Stage.SENSOR]), ("action", [Stage.ACTION]), (None, [Stage.ACTION])]
)
def test_attack_on_one_stage_is_asked_there_only(stage, stages):
    rule = Watching()
    env = wrap(schedule=BOTH, horizon=4, attack=Attack(rule=rule, limit=1.0, schedule=BOTH, stage=stage))
    roll(env)
    assert [asked.stage for asked in rule.asked] == stages * 4
    assert [asked.blocks_left for asked in rule.asked] == [4, 3, 2, 1]
    assert (env.last_shift.sensor is None) == (stage != "sensor")
    assert (env.last_shift.shift is None) == (stage == "sensor")


def test_attack_does_not_ask_about_an_observation_that_is_not_finite():
    class Fussy(Watching):
        def shift(self, history, rng, *, allowance):
            assert np.isfinite(history.center).all()
            return super().shift(history, rng, allowance=allowance)

    attack = Attack(rule=Fussy(), limit=1.0, schedule=BOTH, stage="sensor")
    env = wrap(Line(nan_at=1), schedule=BOTH, horizon=3, attack=attack)
    env.reset(seed=0)
    spent = attack.pending.spent
    env.step(CENTER)
    assert attack.pending.spent == spent
    assert not attack.pending.sensor.any()
