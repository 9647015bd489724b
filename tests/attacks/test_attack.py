from __future__ import annotations

import numpy as np
import pytest
from toys import Line

from ccfs.attacks.attack import Attack, AttackError
from ccfs.attacks.rules import OpposedShift
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.wrapper import ProposalWrapper

FOUR = ProposalSchedule(count=4, sigma=0.2, multiplier=1.05)
CENTER = np.array([0.8, 0.1])


def wrap(**more):
    env = Line()
    program = CausalProgram.for_space(env.action_space, verifier=AcceptAll())
    return ProposalWrapper(env, program=program, schedule=FOUR, seed=0, **more)


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
