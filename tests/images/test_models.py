"""Shipped weights are the ones on their card, public checkpoints load without running, folding keeps the function."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch

from ccfs.images import (
    ConfidenceFilter,
    NoiseStream,
    folded,
    load_checkpoint,
    load_shipped,
    shipped_names,
)
from ccfs.images.counting import Counter
from ccfs.images.fused import fused
from ccfs.images.models import ZOO
from ccfs.images.networks import ARCHITECTURES, Architecture, build, multiply_adds
from ccfs.images.resnet import cifar_resnet

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one


def randomized(model):
    """Give batch normalisation statistics that folding must respect."""
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2.0)
            part.weight.data.uniform_(0.5, 1.5)
            part.bias.data.normal_(0, 0.3)
    return model.eval()


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


@pytest.mark.parametrize("model", [lambda: build(ARCHITECTURES["mnist-small"]), lambda: cifar_resnet(8)])
def test_folding_keeps_the_function_and_leaves_the_original_alone(model):
    original = randomized(model())
    channels = next(p for p in original.parameters() if p.ndim == 4).shape[1]
    images = torch.randn(5, channels, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        before = original(images)
        fast = folded(original)
        assert torch.allclose(fast(images), before, rtol=1e-4, atol=1e-4)
        assert torch.equal(original(images), before)
    assert not any(isinstance(part, torch.nn.BatchNorm2d) for part in fast.modules())


def test_folding_refuses_training_mode():
    with pytest.raises(ValueError, match="evaluation mode"):
        folded(build(ARCHITECTURES["mnist-small"]).train())


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
    torch.save({"arch": "vgg", "state_dict": {}}, tmp_path / "vgg.pth")
    with pytest.raises(ValueError, match="cifar_resnet"):
        load_checkpoint(tmp_path / "vgg.pth")
    with pytest.raises(ValueError, match="does not exist"):
        load_checkpoint(tmp_path / "none.pth")


@pytest.mark.parametrize("depth", [7, 9, 2])
def test_resnet_refuses_depths(depth):
    with pytest.raises(ValueError, match="6 n"):
        cifar_resnet(depth)


@pytest.mark.parametrize("batch", [1, 7, 250])
def test_counts_of_a_shipped_network_do_not_depend_on_the_batch_size(batch):
    """A kernel that rounds differently for another batch would show here."""
    model = folded(load_shipped("mnist-small-sigma1"))
    center = np.random.default_rng(0).random((28, 28, 1), dtype=np.float32)
    noise = NoiseStream(seed=0, index=0, purpose="estimation", dimension=784)
    rule = ConfidenceFilter(0.0, 0.5, 0.9)
    expected = Counter(model, 1.0, rule, 10, 100).count(center, noise, 600)
    assert len({item.rejected for item in expected}) == 3
    assert Counter(model, 1.0, rule, 10, batch).count(center, noise, 600) == expected


@pytest.mark.parametrize("name", ["mnist-small", "cifar-32x2", "cifar-48-full"])
def test_fused_network_gives_the_folded_answers_and_still_has_gradients(name):
    architecture = ARCHITECTURES[name]
    model = randomized(build(architecture))
    images = torch.rand(9, architecture.channels, architecture.size, architecture.size)
    images = images.contiguous(memory_format=torch.channels_last)
    quick, plain = fused(model, architecture.size), folded(model)
    assert type(quick).__name__ == "Fused", "this build of torch lost the fused path: it is only slower, look why"
    with torch.inference_mode():
        assert torch.allclose(quick(images), plain(images), rtol=1e-5, atol=1e-5)
    variable = images.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(quick(variable).sum(), variable)
    assert float(gradient.abs().max()) > 0.0


def test_fused_returns_the_folded_network_where_it_cannot_help():
    assert type(fused(randomized(cifar_resnet(8)), 32)).__name__ == "Normalized"
