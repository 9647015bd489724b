"""Policies that are made anew in their library's own class: nothing of the file runs, what is doubtful is refused."""

from __future__ import annotations

import base64
import json
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from supported import BOX, NUMBERS, PARTS, Line, Shown

from ccfs.controllers import as_controller, from_sb3
from ccfs.files.pickled import Named

pytestmark = [pytest.mark.slow, pytest.mark.extras]
LSTM = Line(model="RecurrentPPO", policy="MlpLstmPolicy")


class ReLU:
    """A class of somebody's own, called like one of torch."""


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.mkdir, (self.path,)


def saved(model, path, **changes):
    """Write the model's file with other entries in `data`. Return its path."""
    model.save(path / "whole.zip")
    with zipfile.ZipFile(path / "whole.zip") as whole, zipfile.ZipFile(path / "model.zip", "w") as changed:
        data = json.loads(whole.read("data"))
        changed.writestr("data", json.dumps(data | changes))
        changed.writestr("policy.pth", whole.read("policy.pth"))
    return path / "model.zip"


def kwargs(shown, **pickled):
    """Return `policy_kwargs` as the library writes them: a pickle, and beside it a text for people."""
    written = base64.b64encode(pickle.dumps(pickled)).decode()
    return {":type:": "<class 'dict'>", ":serialized:": written, **shown}


def test_making_a_policy_anew_runs_nothing_and_moves_no_generator(tmp_path):
    import torch

    model = LSTM.make()
    sprung = tmp_path / "sprung"
    entry = base64.b64encode(pickle.dumps(Trap(sprung))).decode()
    path = saved(model, tmp_path, lr_schedule={":type:": "function", ":serialized:": entry})
    before = torch.get_rng_state()
    controller = from_sb3(path, env=LSTM.environment())
    assert torch.equal(torch.get_rng_state(), before)
    assert not sprung.exists()
    assert np.isfinite(controller.center(np.ones(3))).all()
    again = saved(model, tmp_path, policy_kwargs=kwargs({}, lstm_hidden_size=Trap(sprung)))
    with pytest.raises(ValueError, match=r"must hold plain values and classes of the library, got `lstm_hidden_size`"):
        from_sb3(again)
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists(), "the trap itself must work, or this test shows nothing"


def test_settings_that_do_not_fit_the_weights_are_refused_before_memory_is_used(tmp_path):
    model = LSTM.make()
    for settings, words in (
        ({"lstm_hidden_size": 8}, "must hold the weights of a RecurrentActorCriticPolicy with its settings"),
        ({"lstm_hidden_size": 200_000}, r"ask for more than the \d+ numbers of the file"),
        ({"lstm_hidden_size": 8, "n_lstm_layers": 2, "other": 1}, "unexpected keyword argument 'other'"),
    ):
        with pytest.raises(ValueError, match=words):
            from_sb3(saved(model, tmp_path, policy_kwargs=settings))


def test_a_class_of_ones_own_is_not_taken_for_the_librarys(tmp_path):
    ppo = Line(model="PPO", settings={"policy_kwargs": {"activation_fn": "ReLU"}}).make()
    for line, model in ((LSTM, LSTM.make()), (Line(model="PPO"), ppo)):
        settings = kwargs({"activation_fn": "<class 'torch.nn.modules.activation.ReLU'>"}, activation_fn=ReLU)
        with pytest.raises(ValueError, match=r"`activation_fn` must be a class of torch .*got .*test_rebuilt.ReLU"):
            from_sb3(saved(model, tmp_path, policy_kwargs=settings), env=line.environment())


def test_settings_are_those_of_the_pickle_and_not_of_the_text_beside_it(tmp_path):
    from torch import nn

    model = Line(model="PPO", settings={"policy_kwargs": {"activation_fn": "ReLU"}}).make()
    honest = from_sb3(saved(model, tmp_path))
    text = {"activation_fn": "<class 'torch.nn.modules.activation.Tanh'>"}
    assert from_sb3(saved(model, tmp_path, policy_kwargs=kwargs(text, activation_fn=nn.ReLU))) == honest
    other = from_sb3(saved(model, tmp_path, policy_kwargs=kwargs({}, activation_fn=nn.Tanh)))
    assert other != honest


def test_an_activation_that_the_actor_lacks_is_the_librarys_own(tmp_path):
    line = Line(model="PPO", settings={"policy_kwargs": {"activation_fn": "ELU"}})
    model = line.make()
    controller = from_sb3(saved(model, tmp_path), env=line.environment())
    for seen in np.random.default_rng(3).normal(0.0, 2.0, (10, 3)).astype(np.float32):
        np.testing.assert_array_equal(controller.center(seen), model.predict(seen, deterministic=True)[0])


def test_a_missing_library_is_named_with_how_to_install_it(tmp_path, monkeypatch):
    path = saved(LSTM.make(), tmp_path)
    monkeypatch.setitem(sys.modules, "sb3_contrib.common.recurrent.policies", None)
    with pytest.raises(ImportError, match=r"A saved RecurrentActorCriticPolicy needs .*pip install sb3-contrib"):
        from_sb3(path)


@pytest.mark.parametrize("order", ["stack over normalize", "normalize over stack"])
def test_frames_and_statistics_are_applied_in_the_order_of_training(order, tmp_path):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

    def around(venv):
        return VecNormalize(venv, clip_obs=1.5, epsilon=1e-3)

    venv = DummyVecEnv([LSTM.environment])
    venv = VecFrameStack(around(venv), 2) if order == "stack over normalize" else around(VecFrameStack(venv, 2))
    venv.seed(5)
    venv.reset()
    for _ in range(20):
        venv.step(np.array([BOX.low]))
    model = Line(model="PPO", observations=venv.observation_space).make()
    model.set_env(venv)
    statistics = model.get_vec_normalize_env()
    statistics.training = False
    statistics.save(str(tmp_path / "vecnormalize.pkl"))
    path = saved(model, tmp_path)
    live = as_controller(model, env=LSTM.environment())
    controller = from_sb3(path, tmp_path / "vecnormalize.pkl", env=LSTM.environment(), frames=2)
    without = from_sb3(path, tmp_path / "vecnormalize.pkl", frames=2)  # one observation is half of the file's
    for part in (live, controller, without):
        part.reset()
    for seen in np.random.default_rng(3).normal(0.0, 4.0, (10, 3)).astype(np.float32):
        expected = live.center(seen)
        np.testing.assert_array_equal(controller.center(seen), expected)
        np.testing.assert_array_equal(without.center(seen), expected)


def test_frames_that_do_not_fit_are_refused(tmp_path):
    line = Line(model="PPO", wrap="VecFrameStack")
    path = saved(line.make(), tmp_path)
    with pytest.raises(ValueError, match=r"2 of Box.*\(3,\).*at once, got a policy for Box.*\(9,\)"):
        from_sb3(path, env=line.environment(), frames=2)
    with pytest.raises(ValueError, match="`env` must be given for `frames`"):
        from_sb3(path, frames=2)
    with pytest.raises(ValueError, match="`frames` must be 1 for observations that are no Box"):
        from_sb3(path, env=Shown(PARTS, BOX), frames=3)
    with pytest.raises(ValueError, match="`frames` must be at least 1"):
        from_sb3(path, frames=0)
    with pytest.raises(ValueError, match="must have the action space of the environment"):
        from_sb3(path, env=Shown(NUMBERS, spaces.Box(-1.0, 1.0, (2,))), frames=3)


def test_the_names_of_classes_are_those_that_the_library_has():
    import importlib

    from ccfs.controllers.adapters.rebuilt import REBUILT

    for module, names in REBUILT.items():
        for name in names:
            made = getattr(importlib.import_module(module), name)
            assert Named(made.__module__, made.__qualname__) == Named(module, name)
