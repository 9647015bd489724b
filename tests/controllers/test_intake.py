"""The one way in: every kind of policy becomes the right controller, or is refused with what to do."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import ccfs
from ccfs.certificates.schedule import Schedule
from ccfs.controllers import NumpyActor, as_controller, flattened, zoo
from ccfs.runtime.interfaces import Controller

SEEN = np.array([0.5, -1.0, 2.0])


class World(gymnasium.Env):
    """Shows a sample and takes anything."""

    def __init__(self, observations=None, actions=None):
        self.observations, self.actions = observations, actions
        self.observation_space = spaces.Box(-5, 5, (3,)) if observations is None else observations
        self.action_space = spaces.Box(-1, 1, (2,)) if actions is None else actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, False, False, {"cost": 0.0}


class Own:
    digest = "own"

    def reset(self):
        pass

    def center(self, observation):
        return observation[:2]


def test_as_controller_leaves_a_controller_alone():
    own = Own()
    assert as_controller(own, env=World()) is own
    with pytest.raises(ValueError, match="`normalizer` must be None for a Controller"):
        as_controller(own, normalizer="none")


def test_as_controller_hashes_a_function_if_it_can():
    gain = np.array([2.0, 3.0])
    made = as_controller(lambda o: gain * o[:2], env=World())
    assert isinstance(made, Controller)
    assert len(made.digest) == 64
    assert made.center(SEEN).tolist() == [1.0, -3.0]
    helper = object()
    other = as_controller(lambda o: (helper, o[:2])[1])
    assert other.digest == ""
    assert other.center(SEEN).tolist() == [0.5, -1.0]
    with pytest.raises(ValueError, match="`normalizer` must be None for a function"):
        as_controller(lambda o: o, normalizer="none")


def test_as_controller_gives_a_function_what_its_environment_gives():
    parts = spaces.Dict({"goal": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)})
    env = World(parts)
    flat = flattened(env)
    made = as_controller(lambda o: o["goal"] + o["gear"], env=env)
    seen, _ = flat.reset(seed=2)
    whole, _ = env.reset(seed=2)
    assert made.center(seen).tolist() == (whole["goal"] + whole["gear"]).tolist()
    numbers = as_controller(lambda o: np.full(2, o, dtype=float), env=World(spaces.Discrete(4)))
    assert numbers.center(np.array([0, 0, 1, 0])).tolist() == [2.0, 2.0]


def test_as_controller_reads_actors_and_entries_of_the_zoo(tmp_path):
    name = zoo.names()[0]
    actor = zoo.actor(name)
    actor.save(tmp_path / "actor.npz")
    assert as_controller(tmp_path / "actor.npz") == actor
    assert isinstance(as_controller(str(tmp_path / "actor.npz")), NumpyActor)
    assert as_controller(name) == as_controller(Path(zoo.__file__).parent / "zoo" / name) == actor
    with pytest.raises(ValueError, match=r"`normalizer` must be None for actor.npz, which holds its own"):
        as_controller(tmp_path / "actor.npz", normalizer="none")


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        (Own, TypeError, "`policy` must be made first, got the class Own. Call it with its arguments"),
        (3, TypeError, r"`policy` must be a Controller, .* got 3"),
        (None, TypeError, r"`policy` must be .* got None"),
        ("nowhere", ValueError, r"got the path 'nowhere', nothing there"),
        ("nowhere.zip", ValueError, r"must be a \.zip written by `model\.save`, got 'nowhere\.zip', nothing there"),
    ],
)
def test_as_controller_refuses_what_is_no_policy(policy, error, words):
    with pytest.raises(error, match=words):
        as_controller(policy, env=World())


def test_as_controller_refuses_files_of_other_kinds(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"notes\.txt', another file"):
        as_controller(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match=r"a folder of another kind"):
        as_controller(tmp_path)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        (spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]), r"got Tuple\(.*one Box or one MultiDiscrete"),
        (spaces.Dict({"a": spaces.Discrete(2)}), r"got Dict\(.*one Box or one MultiDiscrete"),
        (spaces.MultiBinary(2), r"got MultiBinary\(2\).*Make it MultiDiscrete\(\[2, 2, \.\.\.\]\)"),
        (spaces.Box(-1, 1, (2, 2)), r"must have actions of shape \(d,\), got shape \(2, 2\).*takes a flat vector"),
        (spaces.Text(3), r"got Text\(.*Give it one of these"),
    ],
)
def test_as_controller_refuses_actions_that_nothing_certifies(actions, words):
    with pytest.raises(TypeError, match=words):
        as_controller(Own(), env=World(actions=actions))


def test_as_controller_refuses_an_environment_that_is_none():
    with pytest.raises(TypeError, match=r"`env` must be a Gymnasium environment, got 'World-v0'. Make it first"):
        as_controller(Own(), env="World-v0")
    several = gymnasium.vector.SyncVectorEnv([World])
    with pytest.raises(TypeError, match="must be one environment, got the vector environment SyncVectorEnv"):
        as_controller(Own(), env=several)


class Whole:
    """A model of one's own that reads dicts."""

    def predict(self, observation, *, deterministic):
        return observation["goal"], None


def test_as_controller_gives_a_model_of_ones_own_what_its_environment_gives():
    parts = spaces.Dict({"goal": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)})
    made = as_controller(Whole(), env=World(parts))
    assert made.center(np.array([0.0, 1.0, 0.0, 0.5, -0.5])).tolist() == [0.5, -0.5]


@pytest.mark.extras
def test_as_controller_takes_a_torch_module_with_a_predict_of_its_own():
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x)

        def predict(self, x):
            raise AssertionError("nobody asks it")

    made = as_controller(Net(), env=World())
    assert made.center(SEEN).shape == (2,)
    net = Net()
    net.helper = object()
    with pytest.raises(
        ValueError, match=r"`content` must be given: 'helper' .*ccfs.controllers.from_torch\(module, content"
    ):
        as_controller(net)


CLAIM = {
    "schedule": ccfs.ProposalSchedule(count=2, rho=0.3, sigma=0.1),
    "horizon": 4,
    "trials": 7,
    "target": 0.5,
    "delta": 0.01,
    "seed": 3,
}


@pytest.mark.parametrize("answer", ["scores", "number"])
def test_certify_policy_takes_scores_and_refuses_numbers_under_score_noise(answer):
    env = World(actions=spaces.Discrete(3))

    def scores(o):
        return np.array([o[0], o[1], 0.1])

    def number(o):
        return int(np.argmax(scores(o)))

    if answer == "number":
        with pytest.raises(ValueError, match="A score stage needs the policy's logits or Q-values, not an action"):
            ccfs.certify_policy(env, number, event=ccfs.NoAbstention(horizon=4), **CLAIM)
        return
    assert ccfs.certify_policy(env, scores, event=ccfs.NoAbstention(horizon=4), **CLAIM).successes == 7


def test_certify_policy_flattens_dicts_for_noise_and_gives_them_back():
    parts = spaces.Dict({"goal": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)})
    kinds, shapes = set(), set()

    def rule(o):
        kinds.add(tuple(o))
        return 0.5 * o["goal"]

    def record(trace):
        shapes.add(trace.centers.shape)
        return True

    noise = Schedule(
        action=ccfs.ProposalSchedule(count=2, rho=0.3, sigma=0.1),
        sensor=ccfs.ProposalSchedule(count=1, sigma={"goal": 0.05}),
    )
    for plan in (CLAIM["schedule"], noise):
        made = ccfs.certify_policy(World(parts), rule, event=record, **CLAIM | {"schedule": plan})
        assert made.successes == 7
    assert kinds == {("gear", "goal")}
    assert shapes == {(4, 2)}
