"""Training goes on after an interruption exactly as if there had been none, and never touches held-out images."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ccfs.files.atomic import write_atomically
from ccfs.images import ImageSet, load_shipped

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "images" / "train.py"


@pytest.fixture(scope="module")
def training():
    spec = importlib.util.spec_from_file_location("image_training", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def strokes(count=160):
    """Bright left halves against bright right halves: learnable in a few steps."""
    images = np.random.default_rng(0).integers(0, 60, (count, 28, 28, 1), dtype=np.uint8)
    labels = np.arange(count) % 2
    for image, label in zip(images, labels, strict=True):
        image[:, 14 * label : 14 * (label + 1)] += 150
    return ImageSet(name="made-up", images=images, labels=labels, classes=tuple("0123456789"))


def recipe(module, **changes):
    fields = {
        "dataset": "mnist",
        "architecture": "mnist-small",
        "epochs": 3,
        "sigma": 0.25,
        "batch": 32,
        "peak_rate": 0.05,
        "weight_decay": 5e-4,
        "shift": 1,
        "flip": False,
        "bfloat16": True,
        "seed": 0,
        "held_out": 32,
    }
    return module.Recipe(**{**fields, **changes})


def scores(history):
    return [(row["epoch"], row["loss"], row["validation"]) for row in history]


def test_training_resumes_bit_for_bit_and_learns(training, tmp_path, monkeypatch):
    whole, history = training.train(recipe(training), tmp_path / "whole", strokes())
    saves = []

    def stop(path, content):
        write_atomically(path, content)
        saves.append(path)
        if len(saves) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "write_atomically", stop)
    with pytest.raises(KeyboardInterrupt):
        training.train(recipe(training), tmp_path / "parts", strokes())
    again, resumed = training.train(recipe(training), tmp_path / "parts", strokes())
    assert len(saves) == 3
    assert scores(resumed) == scores(history)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert history[-1]["validation"] > 0.9


def test_training_refuses_a_folder_of_another_recipe(training, tmp_path):
    images, plan = strokes(), recipe(training, epochs=0)
    training.train(plan, tmp_path, images)
    with pytest.raises(SystemExit, match="another recipe"):
        training.train(dataclasses.replace(plan, seed=1), tmp_path, images)


def test_held_out_images_are_disjoint_and_fixed(training):
    chosen, held = training.split(strokes(), 32)
    assert sorted([*chosen, *held]) == list(range(160))
    again = training.split(strokes(), 32)[1]
    assert held.tolist() == again.tolist()


def test_shipping_writes_a_card_that_loads(training, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "ZOO", tmp_path)
    monkeypatch.setattr(training, "load_images", lambda dataset, split: strokes(40))
    plan = recipe(training, epochs=1)
    model, history = training.train(plan, tmp_path / "run", strokes())
    training.ship(plan, model, history, "tiny", "the command")
    loaded = load_shipped("tiny", folder=tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    card = json.loads((tmp_path / "tiny" / "card.json").read_text())
    assert card["epochs_trained"] == 1
    assert 0.0 <= card["accuracy_under_noise"]["test_images"] <= 1.0
