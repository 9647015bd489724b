from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ccfs.attacks.learned as module
from ccfs.attacks.attack import Attack, AttackError
from ccfs.attacks.learned import (
    CostCritic,
    DangerBurstShift,
    LearnedShift,
    SensitivityShift,
    critic_greedy,
    critic_sensitivity,
    danger,
    learned,
    network,
    shift_of,
    shipped,
)
from ccfs.attacks.ledger import EnergyLedger
from ccfs.attacks.rules import GreedyShift
from ccfs.certificates.schedule import ProposalSchedule, as_schedule
from ccfs.controllers import zoo
from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.protocol.errors import ProtocolError
from ccfs.protocol.model import AttackSpec
from ccfs.runs.build import build_attack
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import ShiftRule

SCHEDULE = ProposalSchedule(count=1, sigma=0.2)
CRITIC = "critic-pointgoal2"


def observation(*, ahead=0.0, left=0.0, speed=0.0):
    """A Point robot with a hazard in the bin ahead and a vase in the bin to the left, by closeness."""
    values = np.zeros(60)
    values[3] = speed
    values[28], values[28 + 16 + 4] = ahead, left
    return values


def history(seen=None, t=0, center=(0.0, 0.0), horizon=500):
    seen = observation() if seen is None else seen
    return PublicHistory(t=t, horizon=horizon, observation=seen, center=np.array(center), steps=())


def random_network(outputs, inputs, seed=0):
    rng = np.random.default_rng(seed)
    return NumpyActor(
        weights=(rng.standard_normal((8, inputs)), rng.standard_normal((outputs, 8))),
        biases=(rng.standard_normal(8), rng.standard_normal(outputs)),
        activation="tanh",
        normalizer=FrozenNormalizer(mean=np.zeros(inputs), std=np.ones(inputs), clip=np.float32(5.0)),
    )


def digest_of(name):
    return json.loads((Path(module.__file__).parent / "networks" / name / "card.json").read_text())["digest"]


def call(rule, seen, *, allowance=0.1):
    return rule.shift(seen, np.random.default_rng(0), allowance=allowance)


RULES = {
    "danger": lambda: DangerBurstShift(threshold=1.0, sigma=0.2, steps=5),
    "sensitivity": lambda: SensitivityShift(critic=CostCritic(actor=random_network(1, 62)), gain=0.3),
    "learned": lambda: LearnedShift(actor=random_network(3, 64)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 1000), budget=st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_rule_stays_within_its_ledger_and_repeats_itself(name, seed, budget):
    rule = RULES[name]()
    assert isinstance(rule, ShiftRule)
    runs = []
    for _ in range(2):
        rng = np.random.default_rng(seed)
        ledger = EnergyLedger(limit=SCHEDULE.charge * budget**2, schedule=SCHEDULE)
        rule.reset()
        shifts = []
        for t in range(12):
            seen = history(rng.random(60), t, rng.uniform(-1.0, 1.0, 2))
            shifts.append(rule.shift(seen, np.random.default_rng(0), allowance=ledger.allowance(t)))
            ledger.commit(t, shifts[-1])  # raises if the rule overspends
        runs.append(np.array(shifts).tobytes())
    assert runs[0] == runs[1]


def test_danger_is_the_inverse_time_to_contact():
    # A hazard 0.7 m ahead (closeness 1 - 0.7 / 3), contact at 0.2 m, at 1 m/s along the middle of the first bin.
    score, bearing = danger(observation(ahead=1.0 - 0.7 / 3.0, speed=1.0 / math.cos(math.pi / 16)))
    assert score == pytest.approx(1.0 / 0.5, rel=1e-12)
    assert bearing == pytest.approx(math.pi / 16)


@given(near=st.floats(0.1, 0.99), far=st.floats(0.0, 1.0), speed=st.floats(0.0, 1.5), more=st.floats(0.0, 1.0))
def test_danger_grows_with_closeness_and_speed_of_approach(near, far, speed, more):
    score = danger(observation(ahead=near, speed=speed))[0]
    assert danger(observation(ahead=near * far, speed=speed))[0] <= score
    assert score <= danger(observation(ahead=near, speed=speed + more))[0]


def test_danger_of_an_empty_world_is_zero_even_at_speed():
    assert danger(observation(speed=1.5))[0] == 0.0


@pytest.mark.parametrize("wrong", [np.zeros(59), np.full(60, np.nan), np.full(60, np.inf)])
def test_danger_refuses_what_is_no_point_observation(wrong):
    with pytest.raises(ValueError, match="`observation` must be the 60 finite numbers"):
        danger(wrong)


def test_danger_burst_waits_spends_all_in_its_steps_and_is_done():
    rule = DangerBurstShift(threshold=2.0, sigma=0.2, steps=3)
    ledger = EnergyLedger(limit=SCHEDULE.charge * 0.1**2, schedule=SCHEDULE)
    spent = []
    for t in range(8):
        seen = observation(ahead=0.9, speed=1.0) if t >= 2 else observation(ahead=0.2)
        ledger.commit(t, call(rule, history(seen, t), allowance=ledger.allowance(t)))
        spent.append(ledger.spent / ledger.limit)
    np.testing.assert_allclose(spent, [0, 0, 1 / 3, 2 / 3, 1, 1, 1, 1], rtol=1e-9)
    rule.reset()
    assert not call(rule, history(observation(ahead=0.2))).any()


def test_danger_burst_pushes_thrust_where_it_can_flip_and_turn_where_it_cannot():
    rule = DangerBurstShift(threshold=0.0, sigma=0.2)
    ahead = observation(ahead=0.9, speed=1.0)
    undecided = call(rule, history(ahead, center=(0.0, 0.0)))
    rule.reset()
    decided = call(rule, history(ahead, center=(1.0, 0.0)))
    rule.reset()
    beside = call(rule, history(observation(left=0.9), center=(0.0, 0.0)))
    assert undecided[0] > 0.9 * np.linalg.norm(undecided)
    assert decided[1] > 0.9 * np.linalg.norm(decided)
    assert beside[1] > 0.0 > beside[0]  # the middle of that bin lies a little behind


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threshold": math.nan, "sigma": 0.2}, "`threshold`"),
        ({"threshold": 1.0, "sigma": 0.0}, "`sigma` must be positive"),
        ({"threshold": 1.0, "sigma": 0.2, "steps": 0}, "`steps` must be at least 1"),
    ],
)
def test_danger_burst_refuses_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        DangerBurstShift(**arguments)


def test_sensitivity_shift_follows_the_slope_in_proportion():
    def critic(seen, actions):
        return seen[0] * (actions @ np.array([0.6, -0.8]))

    rule = SensitivityShift(critic=critic, gain=0.5)
    steep, flat = (history(np.array([slope]), center=(0.3, 0.1)) for slope in (1.0, 0.25))
    np.testing.assert_allclose(call(rule, steep), 0.1 * 0.5 * np.array([0.6, -0.8]), rtol=1e-9)
    np.testing.assert_allclose(call(rule, flat), 0.1 * 0.125 * np.array([0.6, -0.8]), rtol=1e-9)


def test_sensitivity_shift_refuses_a_critic_that_answers_nan_and_wrong_arguments():
    with pytest.raises(ValueError, match="`critic` must return 4 finite scores"):
        call(SensitivityShift(critic=lambda o, a: np.full(len(a), np.nan), gain=1.0), history())
    with pytest.raises(TypeError, match="`critic` must be callable"):
        SensitivityShift(critic=None, gain=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`gain` must be positive"):
        SensitivityShift(critic=lambda o, a: a[:, 0], gain=0.0)


def test_shift_of_spends_nothing_at_minus_one_and_everything_at_one():
    assert not shift_of(np.array([1.0, 0.0, -1.0]), 0.1).any()
    assert not shift_of(np.array([1.0, 0.0, -7.0]), 0.1).any()
    np.testing.assert_allclose(shift_of(np.array([3.0, 0.0, 5.0]), 0.1), [0.1, 0.0], rtol=1e-12)
    np.testing.assert_allclose(shift_of(np.array([0.0, -0.2, 0.0]), 0.8), [0.0, -0.1], rtol=1e-12)


def test_learned_shift_does_not_see_the_budget_itself():
    rule, seen = LearnedShift(actor=random_network(3, 64)), history(np.linspace(0.0, 1.0, 60))
    small = call(rule, seen, allowance=0.01)
    rule.reset()
    np.testing.assert_allclose(call(rule, seen, allowance=0.3), 30.0 * small, rtol=1e-9)


def test_networks_with_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="1 outputs to be a critic"):
        CostCritic(actor=random_network(2, 62))
    with pytest.raises(ValueError, match="a direction and a spend"):
        LearnedShift(actor=random_network(1, 64))
    with pytest.raises(ValueError, match="3 outputs to be an adversary"):
        call(LearnedShift(actor=random_network(4, 64)), history())
    attack = Attack(rule=LearnedShift(actor=random_network(3, 10)), limit=1.0, schedule=SCHEDULE)
    attack.begin(np.random.default_rng(0))
    with pytest.raises(AttackError, match="`observation` must have shape"):
        attack.commit(0, 500, observation(), np.zeros(2))


@pytest.mark.parametrize("name", shipped())
def test_shipped_network_matches_its_card_and_answers_on_its_grid(name):
    actor = network(name, digest_of(name))
    rule = critic_greedy(name=name, digest=actor.digest) if actor.action_size == 1 else learned(
        name=name, digest=actor.digest
    )  # fmt: skip
    shift = call(rule, history(observation(ahead=0.9, speed=1.0), center=(0.2, 0.1)))
    assert shift.shape == (2,)
    assert np.linalg.norm(shift) <= 0.1


def test_shipped_networks_hold_a_critic_and_an_adversary():
    outputs = {network(name, digest_of(name)).action_size for name in shipped()}
    assert outputs == {1, 3}


def test_network_refuses_another_digest_an_unknown_name_and_a_changed_file(tmp_path):
    with pytest.raises(ValueError, match="`digest` must be that of the network"):
        network(CRITIC, "0" * 64)
    with pytest.raises(ValueError, match="`name` must be one of"):
        network("nobody", "0" * 64)
    with pytest.raises(TypeError, match="must be strings"):
        network(CRITIC, None)  # type: ignore[arg-type]
    copy = tmp_path / "copy"
    shutil.copytree(Path(module.__file__).parent / "networks" / CRITIC, copy)
    digest = digest_of(CRITIC)
    assert network(str(copy), digest).digest == digest
    written = bytearray((copy / "actor.npz").read_bytes())
    written[len(written) // 2] ^= 1
    (copy / "actor.npz").write_bytes(written)
    with pytest.raises(zoo.ZooError, match=r"actor\.npz has SHA-256"):
        network(str(copy), digest)


def spec(rule, **arguments):
    return AttackSpec(name="attack", rule=rule, budget=0.1, arguments=arguments)


class _Named:
    """As much of a protocol and an arm as building an attack needs."""

    def __init__(self, *attacks):
        self.attacks = attacks
        self.schedule = self
        self.plan = as_schedule(SCHEDULE)


@pytest.mark.parametrize(
    ("rule", "arguments", "kind"),
    [
        ("critic-greedy", {}, GreedyShift),
        ("critic-sensitivity", {"gain": 2.0}, SensitivityShift),
    ],
)
def test_protocol_can_name_the_rules(rule, arguments, kind):
    named = spec(rule, name=CRITIC, digest=digest_of(CRITIC), **arguments)
    attack = build_attack(_Named(named), named, _Named())  # type: ignore[arg-type]
    assert isinstance(attack._rule, kind)
    attack.begin(np.random.default_rng(0))
    attack.commit(0, 500, observation(ahead=0.9, speed=1.0), np.zeros(2))


def test_protocol_with_another_digest_is_refused():
    named = spec("critic-greedy", name=CRITIC, digest="0" * 64)
    with pytest.raises(ProtocolError, match="has changed since the protocol was written"):
        build_attack(_Named(named), named, _Named())  # type: ignore[arg-type]


def test_critic_finds_driving_into_a_hazard_worse_than_backing_off():
    critic = critic_sensitivity(name=CRITIC, digest=digest_of(CRITIC), gain=1.0).critic
    seen = observation(ahead=0.88, speed=0.8)
    seen[2], seen[9] = 9.81, -0.5
    into, off = critic(seen, np.array([[1.0, 0.0], [-1.0, 0.0]]))
    assert 0.0 <= off < into <= 1.0
