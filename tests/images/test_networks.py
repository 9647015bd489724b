"""Shipped weights are the ones on their card, and public checkpoints load without running anything."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from image_toys import randomized

from ccfs.images import load_checkpoint, load_shipped, shipped_names
from ccfs.images.networks import ZOO, Architecture, cifar_resnet, multiply_adds

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one


def test_shipped_networks_load_and_have_the_size_on_their_card():
    assert shipped_names()
    for name in shipped_names():
        model = load_shipped(name)
        card = json.loads((ZOO / name / "card.json").read_text())
        assert not any(part.training for part in model.modules())
        assert sum(p.numel() for p in model.parameters()) == card["parameters"]
        assert multiply_adds(model, Architecture.of(card["architecture"])) == card["multiply_adds"]
        assert card["epochs_trained"] == len(card["history"]) == card["recipe"]["epochs"]


def test_shipped_network_with_changed_weights_is_refused(tmp_path):
    name = shipped_names()[0]
    shutil.copytree(ZOO / name, tmp_path / name)
    path = tmp_path / name / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="its card says"):
        load_shipped(name, folder=tmp_path)


def test_unknown_network_is_refused():
    with pytest.raises(ValueError, match="`name` must be one of"):
        load_shipped("nobody")


@pytest.mark.parametrize("prefix", ["1.", "module.1.", "1.module."])
def test_public_checkpoint_loads(tmp_path, prefix):
    """The public smoothing code saves Sequential(normalisation without state, ResNet)."""
    source = randomized(cifar_resnet(8))
    state = {prefix + name: value for name, value in source.body.state_dict().items()}
    torch.save({"epoch": 90, "arch": "cifar_resnet8", "state_dict": state, "optimizer": {}}, tmp_path / "model.pth.tar")
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        assert torch.equal(load_checkpoint(tmp_path / "model.pth.tar")(images), source(images))


def test_resnet_110_has_the_public_parameter_names():
    names = list(cifar_resnet(110).body.state_dict())
    assert len([name for name in names if name.endswith("conv2.weight")]) == 54
    expected = {"conv1.weight", "layer2.0.downsample.0.weight", "layer3.17.bn2.running_var", "fc.bias"}
    assert expected <= set(names)


def test_public_checkpoint_that_would_run_code_is_refused(tmp_path):
    torch.save({"arch": "cifar_resnet8", "state_dict": {}, "hook": print}, tmp_path / "evil.pth")
    with pytest.raises(Exception, match="Weights only load failed"):
        load_checkpoint(tmp_path / "evil.pth")


def test_checkpoint_of_unknown_form_is_refused(tmp_path):
    torch.save({"weights": {}}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match="state_dict"):
        load_checkpoint(tmp_path / "other.pth")
    torch.save({"arch": "vgg", "state_dict": {"a": torch.zeros(1)}}, tmp_path / "vgg.pth")
    with pytest.raises(ValueError, match="cifar_resnet"):
        load_checkpoint(tmp_path / "vgg.pth")
    with pytest.raises(ValueError, match="does not exist"):
        load_checkpoint(tmp_path / "none.pth")


@pytest.mark.parametrize("depth", [7, 9, 2])
def test_resnet_refuses_depths(depth):
    with pytest.raises(ValueError, match="6 n"):
        cifar_resnet(depth)
