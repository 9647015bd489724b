"""Each adapter against its own library's output on random observations, and what each refuses."""

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

from ccfs.controllers import (
    Controller,
    FrozenNormalizer,
    NumpyActor,
    from_callable,
    from_omnisafe,
    from_sb3,
    from_torch,
)
from ccfs.controllers.adapters.sb3 import normalizer_from_sb3
from ccfs.controllers.adapters.torch import TorchController

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


def assert_no_bad_advice(error: BaseException) -> None:
    assert "weights_only" not in str(error)
    assert error.__suppress_context__
    assert error.__cause__ is None


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


@pytest.fixture(scope="module")
def omnisafe_run(_omnisafe: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real OmniSafe run of two epochs on its own toy environment."""
    import omnisafe
    from omnisafe.envs import custom_env  # noqa: F401 registers Simple-v0

    folder = tmp_path_factory.mktemp("omnisafe")
    settings = {
        "train_cfgs": {"total_steps": 64, "vector_env_nums": 1, "torch_threads": 1},
        "algo_cfgs": {"steps_per_epoch": 32, "update_iters": 1},
        "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "save_model_freq": 1, "log_dir": str(folder)},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        omnisafe.Agent("PPOLag", "Simple-v0", custom_cfgs=settings).learn()
    (run,) = {path.parent for path in folder.rglob("config.json")}
    return run


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_from_omnisafe_equals_omnisafe(omnisafe_run: Path, epoch: int) -> None:
    import torch
    from omnisafe.common.normalizer import Normalizer
    from omnisafe.models.actor.gaussian_learning_actor import GaussianLearningActor

    saved = torch.load(omnisafe_run / "torch_save" / f"epoch-{epoch}.pt", weights_only=True)
    size = saved["pi"]["mean.0.weight"].shape[1]
    actions = saved["pi"]["log_std"].shape[0]
    theirs = GaussianLearningActor(Box(-1, 1, (size,)), Box(-1, 1, (actions,)), [64, 64], "tanh")
    theirs.load_state_dict(saved["pi"])
    scale = Normalizer((size,), clip=5)
    scale.load_state_dict(saved["obs_normalizer"])
    if epoch == 0:
        with pytest.raises(ValueError, match="`std` must be positive"):  # saved before any observation was seen
            from_omnisafe(omnisafe_run, epoch)
        return
    ours = from_omnisafe(omnisafe_run, epoch)
    for observation in np.random.default_rng(4).normal(size=(40, size)):
        x = torch.as_tensor(observation, dtype=torch.float32)
        frozen = torch.clamp((x - scale.mean) / scale.std, -5.0, 5.0)
        with torch.no_grad():
            expected = theirs.predict(frozen, deterministic=True).numpy()
        # 5e-7: DESIGN's 2e-7 of a float32 forward pass plus half a grid step.
        np.testing.assert_allclose(ours.center(observation), expected, atol=5e-7)


def test_from_omnisafe_refuses(omnisafe_run: Path, tmp_path: Path) -> None:
    config = json.loads((omnisafe_run / "config.json").read_text())
    (tmp_path / "torch_save").mkdir()
    written = (omnisafe_run / "torch_save" / "epoch-2.pt").read_bytes()
    (tmp_path / "torch_save" / "epoch-2.pt").write_bytes(written)
    for section, key, value, message in (
        ("model_cfgs", "actor_type", "gaussian_sac", "`actor_type` must be 'gaussian_learning'"),
        ("algo_cfgs", "obs_normalize", False, "says otherwise"),
        ("model_cfgs", "actor", {"activation": "swish"}, "`activation` must be one of"),
    ):
        changed = config | {section: config[section] | {key: value}}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            from_omnisafe(tmp_path, 2)
    with pytest.raises(FileNotFoundError):
        from_omnisafe(omnisafe_run, 77)


def test_from_omnisafe_refuses_files_of_others(tmp_path: Path) -> None:
    import torch

    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    good = {
        "model_cfgs": {"actor_type": "gaussian_learning", "actor": {"activation": "tanh"}},
        "algo_cfgs": {"obs_normalize": True},
    }
    file = tmp_path / "torch_save" / "epoch-1.pt"
    file.parent.mkdir()
    torch.save({"pi": {}, "obs_normalizer": {}}, file)
    for config, message in (
        ("no json", "must be the JSON that OmniSafe writes"),
        ("{}", "one without 'model_cfgs.actor_type'"),
        ("[]", "one without 'model_cfgs.actor_type'"),
        (json.dumps(good | {"algo_cfgs": 3}), "one without 'algo_cfgs.obs_normalize'"),
        (json.dumps(good), "must be linear with bias"),
    ):
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(ValueError, match=message):
            from_omnisafe(tmp_path, 1)
    layers = {"mean.0.weight": torch.zeros(2, 3), "mean.0.bias": torch.zeros(2)}
    for saved, message in (
        ([1], "must hold a dictionary of tensors, got list"),
        ({"obs_normalizer": {}}, "must hold the dictionary 'pi'"),
        ({"pi": [], "obs_normalizer": {}}, "must hold the dictionary 'pi'"),
        ({"pi": {"net.weight": 1, "mean.x": 2}, "obs_normalizer": {}}, "must be linear with bias"),
        ({"pi": layers, "obs_normalizer": {"_mean": torch.zeros(3)}}, r"one without \['_clip', '_std'\]"),
    ):
        torch.save(saved, file)
        with pytest.raises(ValueError, match=message):
            from_omnisafe(tmp_path, 1)
    for write in (lambda: torch.save({"pi": Trap()}, file), lambda: file.write_bytes(pickle.dumps({"pi": Trap()}))):
        write()
        with pytest.raises(pickle.UnpicklingError, match=r"epoch-1\.pt must hold tensors") as refused:
            from_omnisafe(tmp_path, 1)
        assert_no_bad_advice(refused.value)
    assert not (tmp_path / "sprung").exists()


def test_from_torch_turns_an_mlp_into_numpy() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    scale = FrozenNormalizer(mean=np.ones(6), std=np.full(6, 2.0), clip=np.full(6, 1.5))
    for module in (
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 2)),
    ):
        made = from_torch(module, scale)
        assert isinstance(made, NumpyActor)
        check_torch(made, module, scale)


def test_from_torch_runs_anything_else_frozen() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    scale = FrozenNormalizer(mean=np.ones(6), std=np.full(6, 2.0), clip=np.full(6, 1.5))
    modules = [
        nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Dropout(0.5), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(6, 8), nn.Softplus(beta=3.0), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 2)),
    ]
    for module in modules:
        made = from_torch(module, scale)
        assert isinstance(made, TorchController)
        assert isinstance(made, Controller)
        check_torch(made, module.eval(), scale)
        before, answer = made.digest, made.center(OBSERVATIONS[0])
        with torch.no_grad():
            module[0].weight.add_(1.0)
        assert made.center(OBSERVATIONS[0]).tobytes() == answer.tobytes()
        assert from_torch(module, scale).digest != before
    assert len({from_torch(module, scale).digest for module in modules}) == len(modules)


def check_torch(made: NumpyActor | TorchController, module: object, scale: FrozenNormalizer) -> None:
    import torch

    made.reset()
    for observation in OBSERVATIONS:
        with torch.no_grad():
            expected = module(torch.from_numpy(scale(observation))[None])[0].numpy()
        np.testing.assert_allclose(made.center(observation), expected, atol=2e-6)


def test_from_torch_refuses() -> None:
    from torch import nn

    with pytest.raises(TypeError, match="`module` must be a torch"):
        from_torch(lambda x: x)
    with pytest.raises(ValueError, match="`observation` must be finite"):
        from_torch(nn.Sequential(nn.Linear(6, 2), nn.ELU())).center([np.nan] * 6)


def test_from_callable_answers_and_hashes() -> None:
    gain = np.array([[1.0, 2.0], [0.0, -1.0]])
    made = from_callable(lambda observation: gain @ observation, "linear")
    assert isinstance(made, Controller)
    made.reset()
    assert made.center(np.array([1.0, 1.0], np.float32)).tolist() == [3.0, -1.0]
    digests = set()
    for factor in (1.0, 2.0):
        other = factor * gain
        digests.add(from_callable(lambda observation, other=other: other @ observation, "linear").digest)
    digests.add(from_callable(lambda observation: gain @ observation, "renamed").digest)
    digests.add(from_callable(np.tanh, "tanh", content=b"numpy.tanh").digest)
    assert len(digests | {made.digest}) == 5
    again = from_callable(np.tanh, "tanh", content=b"numpy.tanh")
    assert again.digest in digests


def test_from_callable_hands_out_a_copy() -> None:
    def spoil(observation):
        observation[:] = 0.0
        return observation

    given = np.ones(2)
    from_callable(spoil, "spoil").center(given)
    assert given.tolist() == [1.0, 1.0]


def test_from_callable_refuses() -> None:
    helper = object()
    with pytest.raises(TypeError, match="`f` must be callable"):
        from_callable(3, "three")
    with pytest.raises(ValueError, match="`name` must be a non-empty string"):
        from_callable(lambda o: o, "")
    with pytest.raises(ValueError, match="`content` must be given for a ufunc"):
        from_callable(np.tanh, "tanh")
    with pytest.raises(ValueError, match="`content` must be given: 'helper' is of type object"):
        from_callable(lambda o: (helper, o)[1], "closed")
    with pytest.raises(ValueError, match="must return finite numbers"):
        from_callable(lambda o: o * np.nan, "nan").center([1.0])
    with pytest.raises(ValueError, match="must return a vector"):
        from_callable(lambda o: 1.0, "scalar").center([1.0])
