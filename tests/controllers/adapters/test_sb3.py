"""Actors from Stable-Baselines3 answer as `predict` does, and what cannot be rebuilt is refused."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import types
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import Env
from gymnasium.spaces import Box, Discrete, MultiBinary
from told_apart import assert_no_bad_advice

from ccfs.controllers import (
    Controller,
    NumpyActor,
    from_sb3,
)
from ccfs.controllers.adapters.sb3 import normalizer_from_sb3

pytestmark = pytest.mark.slow
OBSERVATIONS = np.random.default_rng(8).normal(0.0, 2.0, size=(40, 6)).astype(np.float32)


class Still(Env):
    """Six numbers in, two out, nothing happens; the action box is [-high, high]."""

    observation_space = Box(-np.inf, np.inf, (6,))

    def __init__(self, high: float = 1.0) -> None:
        self.action_space = Box(-high, high, (2,))

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, True, {}


class Choosing(Still):
    """Two actions to choose from."""

    def __init__(self) -> None:
        self.action_space = Discrete(2)


@pytest.fixture(scope="module")
def sb3():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import stable_baselines3
    return stable_baselines3


def compare_with_predict(actor: NumpyActor, model: object) -> None:
    for observation in OBSERVATIONS:
        expected, _ = model.predict(observation, deterministic=True)
        # 2e-6: torch adds up to 64 products in float32.
        np.testing.assert_allclose(np.clip(actor.center(observation), -1.0, 1.0), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("PPO", {}),
        ("PPO", {"activation_fn": "ReLU", "net_arch": [16, 8]}),
        ("PPO", {"net_arch": []}),
        ("A2C", {"net_arch": {"pi": [8], "vf": [4]}}),
        ("SAC", {"net_arch": [16, 16]}),
        ("TD3", {"net_arch": [16, 8], "activation_fn": "Tanh"}),
        ("DDPG", {"net_arch": [8]}),
    ],
)
def test_from_sb3_equals_predict(sb3, tmp_path: Path, name: str, policy: dict[str, object]) -> None:
    from torch import nn

    settings = policy | ({"activation_fn": getattr(nn, policy["activation_fn"])} if "activation_fn" in policy else {})
    model = getattr(sb3, name)("MlpPolicy", Still(), policy_kwargs=settings, seed=3)
    model.policy.set_training_mode(False)
    model.save(tmp_path / "model.zip")
    read = from_sb3(tmp_path / "model.zip")
    assert isinstance(read, Controller)
    compare_with_predict(read, model)
    assert from_sb3(model).digest == read.digest


def test_from_sb3_brings_vec_normalize(sb3) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    around = VecNormalize(DummyVecEnv([Still]), clip_obs=3.0)
    model = sb3.PPO("MlpPolicy", around, seed=3)
    around.obs_rms.update(np.random.default_rng(0).normal(2.0, 5.0, size=(1000, 6)))
    actor = from_sb3(model)
    for observation in OBSERVATIONS:
        expected, _ = model.predict(around.normalize_obs(observation), deterministic=True)
        np.testing.assert_allclose(np.clip(actor.center(observation), -1.0, 1.0), expected, atol=2e-6)
    before = actor.digest
    around.obs_rms.update(np.ones((100, 6)))
    assert actor.digest == before
    assert from_sb3(model, normalizer_from_sb3(around)).digest != before


def poisoned(tmp_path: Path, spared: tuple[str, ...]) -> tuple[dict[str, bytes], bytes]:
    """Return the parts of a saved model with a trap in every pickle of its JSON that is not spared, and the trap."""

    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    data, trap = json.loads(parts["data"]), pickle.dumps(Trap(), protocol=2)
    for name, value in data.items():
        if isinstance(value, dict) and ":serialized:" in value and name not in spared:
            value[":serialized:"] = base64.b64encode(trap).decode()
    return parts | {"data": json.dumps(data).encode(), "pytorch_variables.pth": trap}, trap


def written(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def test_from_sb3_executes_nothing_of_the_file(sb3, tmp_path: Path) -> None:
    model = sb3.PPO("MlpPolicy", Still(), seed=3)
    model.save(tmp_path / "model.zip")
    needed = ("policy_class", "observation_space", "action_space")
    parts, trap = poisoned(tmp_path, needed)
    compare_with_predict(from_sb3(written(tmp_path / "trap.zip", parts)), model)
    for name, words in zip(needed, ["must be an MLP policy", *["must be readable without running"] * 2], strict=True):
        parts, _ = poisoned(tmp_path, tuple(other for other in needed if other != name))
        with pytest.raises(ValueError, match=words):
            from_sb3(written(tmp_path / "trap.zip", parts))
    parts, _ = poisoned(tmp_path, ("policy_class",))
    env = Still()
    given = {"observation_space": env.observation_space, "action_space": env.action_space}
    compare_with_predict(from_sb3(written(tmp_path / "trap.zip", parts), **given), model)
    with pytest.raises(pickle.UnpicklingError, match=r"policy\.pth must hold tensors") as refused:
        from_sb3(written(tmp_path / "trap.zip", parts | {"policy.pth": trap}))
    assert_no_bad_advice(refused.value)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(trap)
    assert (tmp_path / "sprung").exists(), "the trap itself must work, or this test shows nothing"


class Space:
    """Stands for a class of the old gym, which is not installed."""

    def __init__(self, **state: object) -> None:
        vars(self).update(state)


def under_old_gym(monkeypatch: pytest.MonkeyPatch, name: str, protocol: int, **state: object) -> bytes:
    """Return the pickle of a space as the old gym's class wrote it."""
    home, kind = f"gym.spaces.{name.lower()}", type(name, (Space,), {"__module__": f"gym.spaces.{name.lower()}"})
    module = types.ModuleType(home)
    setattr(module, name, kind)
    for part in ("gym", "gym.spaces"):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    monkeypatch.setitem(sys.modules, home, module)
    written = pickle.dumps(kind(**state), protocol=protocol)
    for part in ("gym", "gym.spaces", home):
        monkeypatch.delitem(sys.modules, part)
    return written


def old_box(monkeypatch: pytest.MonkeyPatch, low: float, high: float, size: int, protocol: int) -> bytes:
    """Return the pickle of a Box of gym 0.19, with the generator that it had."""
    bounds = {"low": np.full(size, low, np.float32), "high": np.full(size, high, np.float32)}
    flags = {"bounded_below": np.isfinite(bounds["low"]), "bounded_above": np.isfinite(bounds["high"])}
    noise = np.random.RandomState(3)
    state = {"dtype": np.dtype(np.float32), "shape": (size,), **bounds, **flags, "_np_random": noise}
    return under_old_gym(monkeypatch, "Box", protocol, **state)


@pytest.mark.parametrize("protocol", [3, 4])
@pytest.mark.parametrize("name", ["PPO", "SAC", "DQN"])
def test_from_sb3_reads_a_file_made_under_old_gym(sb3, tmp_path, monkeypatch, name, protocol) -> None:
    is_choice = name == "DQN"
    env = Choosing() if is_choice else Still(high=2.0)
    model = getattr(sb3, name)("MlpPolicy", env, seed=3)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    actions = (
        under_old_gym(monkeypatch, "Discrete", protocol, n=2, shape=(), dtype=np.dtype(np.int64))
        if is_choice
        else old_box(monkeypatch, -2.0, 2.0, 2, protocol)
    )
    data = json.loads(parts["data"])
    for place, content in {
        "observation_space": old_box(monkeypatch, -np.inf, np.inf, 6, protocol),
        "action_space": actions,
    }.items():
        kind = "gym.spaces.discrete.Discrete" if place == "action_space" and is_choice else "gym.spaces.box.Box"
        data[place] = {":type:": f"<class '{kind}'>", ":serialized:": base64.b64encode(content).decode()}
    assert "gym" not in sys.modules
    actor = from_sb3(written(tmp_path / "old.zip", parts | {"data": json.dumps(data).encode()}))
    for observation in OBSERVATIONS:
        expected, _ = model.predict(observation, deterministic=True)
        found = actor.center(observation)
        if is_choice:
            assert found.argmax() == expected
        else:
            # Twice the 2e-6 of a network in single precision, because the box is twice as wide.
            np.testing.assert_allclose(np.clip(found, -2.0, 2.0), expected, atol=4e-6)


def test_from_sb3_reads_layers_that_older_versions_shared(sb3, tmp_path: Path) -> None:
    """Before version 1.8 the first layers could be shared by policy and value. The same layers stand first here."""
    import torch

    model = sb3.PPO("MlpPolicy", Still(), policy_kwargs={"net_arch": [16, 8]}, seed=3)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        parts = {part: archive.read(part) for part in archive.namelist()}
    old = {
        name.replace("policy_net.0", "shared_net.0").replace("policy_net.2", "policy_net.0"): value
        for name, value in model.policy.state_dict().items()
    }
    torch.save(old, tmp_path / "policy.pth")
    parts["policy.pth"] = (tmp_path / "policy.pth").read_bytes()
    compare_with_predict(from_sb3(written(tmp_path / "old.zip", parts)), model)


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_from_sb3_says_that_statistics_are_lost(sb3, tmp_path: Path, name: str) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    settings = {"n_steps": 8, "batch_size": 8} if name == "PPO" else {"buffer_size": 20, "learning_starts": 100}
    model = getattr(sb3, name)("MlpPolicy", VecNormalize(DummyVecEnv([Still])), seed=3, **settings)
    model.learn(8)
    model.save(tmp_path / "model.zip")
    loaded = getattr(sb3, name).load(tmp_path / "model.zip")
    for source in (tmp_path / "model.zip", loaded):
        if name == "PPO":  # its file shows it
            with pytest.raises(ValueError, match=r"trained under `VecNormalize`.*Pass `normalizer=`"):
                from_sb3(source)
        else:  # an off-policy algorithm's does not
            with pytest.warns(UserWarning, match=r"does not show whether .* `VecNormalize`. Pass `normalizer=`"):
                from_sb3(source)
        assert from_sb3(source, "none").normalizer is None
        around = model.get_vec_normalize_env()
        around.save(str(tmp_path / "vecnormalize.pkl"))
        for given in (around, normalizer_from_sb3(around), tmp_path / "vecnormalize.pkl"):
            assert from_sb3(source, given).digest == from_sb3(model).digest
    plain = getattr(sb3, name)("MlpPolicy", Still(), seed=3, **settings)
    plain.learn(8)
    plain.save(tmp_path / "plain.zip")
    if name == "PPO":
        assert from_sb3(tmp_path / "plain.zip").normalizer is None


def test_from_sb3_refuses_a_file_that_is_no_model(tmp_path: Path) -> None:
    expected = r"`path_or_model` must be a \.zip written by `model\.save`, got '.*"
    with pytest.raises(ValueError, match=expected + r"nosuch\.zip', nothing there\."):
        from_sb3(tmp_path / "nosuch.zip")
    with pytest.raises(ValueError, match=expected + r"', a folder\."):
        from_sb3(str(tmp_path))
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(ValueError, match=expected + r"text\.zip': File is not a zip file\."):
        from_sb3(tmp_path / "text.zip")
    with pytest.raises(ValueError, match=expected + r"bad\.zip': Expecting"):
        from_sb3(written(tmp_path / "bad.zip", {"data": b"{", "policy.pth": b""}))
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("data", "{}")
    with pytest.raises(ValueError, match=expected + r"other\.zip': .*policy\.pth"):
        from_sb3(tmp_path / "other.zip")


def test_from_sb3_refuses_other_action_spaces_and_other_things(sb3, tmp_path: Path) -> None:
    env = Still()
    env.action_space = MultiBinary(3)
    model = sb3.PPO("MlpPolicy", env)
    model.save(tmp_path / "model.zip")
    for source in (model, tmp_path / "model.zip"):
        with pytest.raises(TypeError, match=r"got MultiBinary\(.*Make it MultiDiscrete"):
            from_sb3(source)
    model = sb3.SAC("MlpPolicy", Still(high=2.0))
    model.save(tmp_path / "model.zip")
    for source in (model, tmp_path / "model.zip"):
        with pytest.raises(ValueError, match=r"must have the action space of the environment.*same wrappers"):
            from_sb3(source, action_space=Box(-1.0, 1.0, (2,)))
        with pytest.raises(ValueError, match=r"must read the observations of the environment"):
            from_sb3(source, observation_space=Box(-1.0, 1.0, (5,)))
    with pytest.raises(TypeError, match=r"`path_or_model` must be .*got int"):
        from_sb3(3)
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        weights = archive.read("policy.pth")
    for data in ("{}", "[]"):
        with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
            archive.writestr("data", data)
            archive.writestr("policy.pth", weights)
        with pytest.raises(ValueError, match="`data` must describe the model"):
            from_sb3(tmp_path / "other.zip")


def test_from_sb3_refuses_a_policy_without_its_layers(sb3, tmp_path: Path) -> None:
    import torch

    model = sb3.PPO("MlpPolicy", Still())
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        data = archive.read("data")
    for state in ({}, {"action_net.weight": torch.zeros(2, 6)}, {"action_net.other.name": torch.zeros(2)}):
        torch.save(state, tmp_path / "policy.pth")
        with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
            archive.writestr("data", data)
            archive.write(tmp_path / "policy.pth", "policy.pth")
        with pytest.raises(ValueError, match="must be linear with bias"):
            from_sb3(tmp_path / "other.zip")


def test_from_sb3_refuses_what_it_cannot_rebuild(sb3, tmp_path: Path) -> None:
    from stable_baselines3.common.policies import ActorCriticPolicy
    from stable_baselines3.common.torch_layers import FlattenExtractor
    from torch import nn

    class Custom(ActorCriticPolicy):
        pass

    class Halved(FlattenExtractor):
        def forward(self, observations):
            return super().forward(observations) / 2.0

    kwargs = "policy_kwargs"
    model = sb3.PPO(Custom, Still())
    model.save(tmp_path / "model.zip")
    for source in (model, tmp_path / "model.zip"):
        with pytest.raises(ValueError, match=r"must be an MLP policy of SB3, got .*Use `as_controller` with the live"):
            from_sb3(source)
    with pytest.raises(ValueError, match="`activation_fn` must be one of"):
        from_sb3(sb3.PPO("MlpPolicy", Still(), policy_kwargs={"activation_fn": nn.ELU}))
    model = sb3.PPO("MlpPolicy", Still(), **{kwargs: {"features_extractor_class": Halved}})
    model.save(tmp_path / "model.zip")
    with pytest.raises(ValueError, match=r"`policy_kwargs` must hold plain values|`features_extractor_class` must be"):
        from_sb3(tmp_path / "model.zip")
    with pytest.raises(ValueError, match="features extractor of SB3 that only flattens, got Halved"):
        from_sb3(model)
