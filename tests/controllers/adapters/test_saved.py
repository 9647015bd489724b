"""Statistics and spaces that Stable-Baselines3 pickled: the library's own loading of files we make is the oracle."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from gymnasium import Env, spaces

from ccfs.controllers import FrozenNormalizer
from ccfs.controllers.adapters.saved import as_normalizer, space_of, statistics
from ccfs.files.pickled import PickleError, followed

pytestmark = [pytest.mark.slow, pytest.mark.extras]
SPACES = [
    spaces.Box(-2.0, 3.0, (3,)),
    spaces.Box(np.array([-0.1, -np.inf]), np.array([0.1, 7.0]), dtype=np.float64),
    spaces.Box(0, 255, (4, 5, 3), dtype=np.uint8),
    spaces.Discrete(5),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 7]),
    spaces.MultiBinary(4),
    spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Dict({"c": spaces.Discrete(3)})}),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(3))]),
]


class Parts(Env):
    observation_space = spaces.Dict(
        {
            "far": spaces.Box(-9, 9, (2,)),
            "gear": spaces.Discrete(3),
            "near": spaces.Box(-1, 1, (2, 2), dtype=np.float64),
        }
    )
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {"some": {1, 2}}


class Flat(Parts):
    observation_space = spaces.Box(-9, 9, (3,), dtype=np.float64)


@pytest.fixture
def vec_env():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from stable_baselines3.common import vec_env
    return vec_env


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("place", range(len(SPACES)))
def test_space_of_restores_what_gymnasium_pickled(place, protocol):
    given = SPACES[place]
    given.seed(3)
    found = space_of(followed(pickle.dumps(given, protocol=protocol)))
    assert found == given
    assert type(found) is type(given)
    if isinstance(given, spaces.Dict):
        assert list(found.spaces) == list(given.spaces), "the order decides what a flat vector means"


class Odd(spaces.Box):
    """A subclass may contain anything."""


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (Odd(-1, 1, (2,)), "must be a Box, Discrete, .*got '.*Odd'"),
        (spaces.Text(3), "must be a Box, Discrete, .*got 'gymnasium.spaces.text.Text'"),
        (spaces.Tuple([spaces.Discrete(2)]), "must be a Box, Discrete"),
        ({"low": 1}, "must be a space, got dict"),
        (None, "must be a space, got NoneType"),
    ],
)
def test_space_of_refuses_everything_else(saved, words):
    with pytest.raises(PickleError, match=words):
        space_of(followed(pickle.dumps(saved)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("low", np.zeros(3, np.float32)),
        ("low", np.array([5.0, 5.0], np.float32)),
        ("low", np.array([np.nan, 0.0], np.float32)),
        ("high", "text"),
        ("dtype", object),
        ("_shape", (1, 2)),
    ],
)
def test_space_of_refuses_a_box_that_is_none(name, value):
    box = spaces.Box(-1, 1, (2,))
    vars(box)[name] = value
    with pytest.raises(PickleError):
        space_of(followed(pickle.dumps(box)))


def test_space_of_refuses_a_space_inside_of_itself():
    whole = spaces.Dict({"a": spaces.Discrete(2)})
    whole.spaces["a"] = whole
    with pytest.raises(PickleError, match="must be a space"):
        space_of(followed(pickle.dumps(whole)))


def learned(vec_env, kind, **settings):
    around = vec_env.VecNormalize(vec_env.DummyVecEnv([kind]), **settings)
    around.seed(3)
    around.reset()
    for _ in range(30):
        around.step(np.zeros((1, 1), np.float32))
    return around


def test_statistics_are_what_the_library_loads(vec_env, tmp_path):
    around = learned(vec_env, Flat, clip_obs=1.2, epsilon=0.01)
    around.save(str(tmp_path / "vecnormalize.pkl"))
    found = statistics(tmp_path / "vecnormalize.pkl")
    loaded = vec_env.VecNormalize.load(str(tmp_path / "vecnormalize.pkl"), vec_env.DummyVecEnv([Flat]))
    for seen in np.random.default_rng(3).normal(0.0, 6.0, size=(40, 3)):
        # The same operations in the same precision: nothing is left to rounding.
        np.testing.assert_array_equal(found(seen), loaded.normalize_obs(seen))
        assert found(seen).dtype == np.float32
    assert as_normalizer(str(tmp_path / "vecnormalize.pkl")).std.tobytes() == as_normalizer(around).std.tobytes()


def test_statistics_of_a_dict_are_for_its_flat_vector(vec_env, tmp_path):
    around = learned(vec_env, Parts, norm_obs_keys=["near", "far"], clip_obs=0.9)
    around.save(str(tmp_path / "vecnormalize.pkl"))
    found = statistics(tmp_path / "vecnormalize.pkl")
    env = Parts()
    env.reset(seed=8)
    for _ in range(20):
        seen, *_ = env.step(None)
        expected = spaces.flatten(
            spaces.Dict(
                {
                    key: part if key == "gear" else spaces.Box(-9, 9, part.shape)
                    for key, part in env.observation_space.spaces.items()
                }
            ),
            around.normalize_obs(seen),
        )
        np.testing.assert_array_equal(found(spaces.flatten(env.observation_space, seen).astype(np.float64)), expected)


def test_statistics_of_rewards_alone_change_no_observation(vec_env, tmp_path):
    around = learned(vec_env, Flat, norm_obs=False)
    around.save(str(tmp_path / "vecnormalize.pkl"))
    assert statistics(tmp_path / "vecnormalize.pkl") == as_normalizer(around) == "none"


class OwnStatistics:
    def __init__(self, **state):
        vars(self).update(state)


@pytest.mark.parametrize(
    "change",
    [
        lambda around: vars(around).update(extra=1),
        lambda around: vars(around).update(norm_obs="yes"),
        lambda around: vars(around).update(epsilon="1e-8"),
        lambda around: vars(around).update(clip_obs=np.array([1.0, 2.0])),
        lambda around: vars(around).update(obs_rms=OwnStatistics(mean=np.zeros(3), var=np.ones(3), count=1.0)),
        lambda around: vars(around.obs_rms).update(more=1),
        lambda around: vars(around.obs_rms).update(mean=np.zeros(2)),
        lambda around: vars(around.obs_rms).update(mean=[0.0, 0.0, 0.0]),
        lambda around: vars(around.obs_rms).update(var=-np.ones(3)),
        lambda around: vars(around.obs_rms).update(var=np.full(3, np.nan)),
        lambda around: vars(around).update(observation_space=spaces.Text(3)),
    ],
)
def test_statistics_refuse_anything_else(vec_env, tmp_path, change):
    around = learned(vec_env, Flat)
    change(around)
    around.save(str(tmp_path / "vecnormalize.pkl"))
    with pytest.raises(ValueError, match=r"vecnormalize.pkl must be what `VecNormalize.save` writes.*It is not run"):
        statistics(tmp_path / "vecnormalize.pkl")


def test_statistics_run_nothing(vec_env, tmp_path):
    class Trap:
        def __reduce__(self):
            return ((tmp_path / "sprung").touch, ())

    around = learned(vec_env, Flat)
    vars(around).update(old_obs=Trap())  # a part that is not read
    around.save(str(tmp_path / "vecnormalize.pkl"))
    assert isinstance(statistics(tmp_path / "vecnormalize.pkl"), FrozenNormalizer)
    for content in (pickle.dumps(Trap()), b"not a pickle", b""):
        (tmp_path / "other.pkl").write_bytes(content)
        with pytest.raises(ValueError, match=r"other.pkl must be what"):
            statistics(tmp_path / "other.pkl")
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap()))
    assert (tmp_path / "sprung").exists(), "the trap itself must work, or this test shows nothing"


def test_as_normalizer_refuses_other_things():
    with pytest.raises(TypeError, match=r"`normalizer` must be a FrozenNormalizer, .* or 'none', got int"):
        as_normalizer(3)
    assert as_normalizer(None) is None
    with pytest.raises(FileNotFoundError):
        as_normalizer("nowhere.pkl")
