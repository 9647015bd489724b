"""Actors from OmniSafe runs answer as OmniSafe's own actor does, and other files are refused."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box
from told_apart import assert_no_bad_advice

from ccfs.controllers import as_controller, from_omnisafe

pytestmark = pytest.mark.slow


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
    with pytest.raises(FileNotFoundError, match=r"`epoch` must be one that was saved \(0, 1, 2\), got 77"):
        from_omnisafe(omnisafe_run, 77)
    with pytest.raises(FileNotFoundError, match=r"`run_dir` must be a run folder of OmniSafe, with config.json in it"):
        from_omnisafe(tmp_path / "nowhere", 1)
    (tmp_path / "torch_save" / "epoch-2.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"`run_dir` must hold torch_save/epoch-N.pt, got none"):
        from_omnisafe(tmp_path, 2)


def test_as_controller_takes_a_run_and_its_last_epoch(omnisafe_run: Path) -> None:
    last = from_omnisafe(omnisafe_run, 2)
    assert as_controller(omnisafe_run) == as_controller(str(omnisafe_run)) == from_omnisafe(omnisafe_run) == last
    one = as_controller(omnisafe_run / "torch_save" / "epoch-1.pt")
    assert one == from_omnisafe(omnisafe_run, 1) != last
    with pytest.raises(ValueError, match=r"`normalizer` must be None for .*, which holds its own"):
        as_controller(omnisafe_run, normalizer="none")


def test_from_omnisafe_lists_many_epochs_shortly(tmp_path: Path) -> None:
    (tmp_path / "torch_save").mkdir()
    (tmp_path / "config.json").write_text("{}")
    for epoch in range(0, 500, 10):
        (tmp_path / "torch_save" / f"epoch-{epoch}.pt").touch()
    with pytest.raises(FileNotFoundError, match=r"one that was saved \(0, 10, \.\.\., 490\), got 7"):
        from_omnisafe(tmp_path, 7)


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
