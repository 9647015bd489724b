"""Actors from Stable-Baselines3 answer as `predict` does, and what cannot be rebuilt is refused."""

from __future__ import annotations

import base64
import json
import pickle
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import Env
from gymnasium.spaces import Box, Discrete
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


def test_from_sb3_executes_nothing_of_the_file(sb3, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    model = sb3.PPO("MlpPolicy", Still(), seed=3)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    data = json.loads(parts["data"])
    poison = base64.b64encode(pickle.dumps(Trap(), protocol=2)).decode()
    for value in data.values():
        if isinstance(value, dict) and ":serialized:" in value:
            value[":serialized:"] = poison
    parts |= {"data": json.dumps(data).encode(), "pytorch_variables.pth": pickle.dumps(Trap(), protocol=2)}
    with zipfile.ZipFile(tmp_path / "trap.zip", "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    compare_with_predict(from_sb3(tmp_path / "trap.zip"), model)
    with zipfile.ZipFile(tmp_path / "trap.zip", "w") as archive:
        for name, content in (parts | {"policy.pth": pickle.dumps(Trap(), protocol=2)}).items():
            archive.writestr(name, content)
    with pytest.raises(pickle.UnpicklingError, match=r"policy\.pth must hold tensors") as refused:
        from_sb3(tmp_path / "trap.zip")
    assert_no_bad_advice(refused.value)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(pickle.dumps(Trap(), protocol=2))
    assert (tmp_path / "sprung").exists(), "the trap itself must work, or this test shows nothing"


def test_from_sb3_refuses_a_file_that_is_no_model(tmp_path: Path) -> None:
    expected = r"`path_or_model` must be a \.zip written by `model\.save`, got '.*"
    with pytest.raises(ValueError, match=expected + r"nosuch\.zip', nothing there\."):
        from_sb3(tmp_path / "nosuch.zip")
    with pytest.raises(ValueError, match=expected + r"', a folder\."):
        from_sb3(str(tmp_path))
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(ValueError, match=expected + r"text\.zip': File is not a zip file\."):
        from_sb3(tmp_path / "text.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("data", "{}")
    with pytest.raises(ValueError, match=expected + r"other\.zip': .*policy\.pth"):
        from_sb3(tmp_path / "other.zip")


def test_from_sb3_refuses_other_action_spaces_and_other_things(sb3, tmp_path: Path) -> None:
    class Choosing(Still):
        def __init__(self) -> None:
            self.action_space = Discrete(2)

    for model in (sb3.PPO("MlpPolicy", Choosing()), sb3.DQN("MlpPolicy", Choosing(), buffer_size=10)):
        model.save(tmp_path / "model.zip")
        for source in (model, tmp_path / "model.zip"):
            with pytest.raises(TypeError, match=r"`action_space` must be a box, got .*Discrete"):
                from_sb3(source)
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
    from torch import nn

    class Custom(ActorCriticPolicy):
        pass

    cases = [
        (sb3.PPO(Custom, Still()), "must be an MLP policy of SB3"),
        (sb3.PPO("MlpPolicy", Still(), use_sde=True), "`use_sde` must be off"),
        (sb3.PPO("MlpPolicy", Still(), policy_kwargs={"activation_fn": nn.ELU}), "`activation_fn` must be one of"),
        (sb3.SAC("MlpPolicy", Still(high=2.0)), "must be the box"),
    ]
    for model, message in cases:
        model.save(tmp_path / "model.zip")
        for source in (model, tmp_path / "model.zip"):
            with pytest.raises(ValueError, match=message):
                from_sb3(source)
