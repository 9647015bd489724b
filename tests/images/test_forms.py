"""Folding and fusing keep the function, and the 8-bit network is another classifier that mostly agrees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from image_toys import randomized
from torch import nn

from ccfs.images import ConfidenceFilter, NoiseStream, folded, load_shipped
from ccfs.images.counts import model_digest
from ccfs.images.forms import fused, quantized
from ccfs.images.networks import ARCHITECTURES, build, cifar_resnet
from ccfs.images.smoother import Counter

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one


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


@pytest.mark.parametrize(
    ("name", "form", "shape", "sigma"),
    [
        ("mnist-small-sigma1", folded, (28, 28, 1), 1.0),
        ("mnist-small-sigma1", lambda model: fused(model, 28), (28, 28, 1), 1.0),
        ("cifar-48-sigma0.25", lambda model: fused(model, 32), (32, 32, 3), 0.25),
    ],
)
def test_counts_of_a_shipped_network_do_not_depend_on_the_batch_size(name, form, shape, sigma):
    """A kernel that rounds differently for another batch would show here."""
    model = form(load_shipped(name))
    center = np.random.default_rng(0).random(shape, dtype=np.float32)
    noise = NoiseStream(run="test", seed=0, index=0, purpose="estimation", dimension=center.size)
    rule = ConfidenceFilter(0.0, 0.9, 0.99)
    expected = Counter(model, sigma, rule, 10, 100).count(center, noise, 600)
    assert len({item.rejected for item in expected}) == 3
    for batch in (1, 7, 250):
        assert Counter(model, sigma, rule, 10, batch).count(center, noise, 600) == expected


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


def test_int8_network_is_another_classifier_that_mostly_agrees():
    model = load_shipped("mnist-small-sigma1")
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(400, 1, 28, 28, generator=generator).contiguous(memory_format=torch.channels_last)
    small = quantized(model, images[:200])
    with torch.inference_mode():
        exact, coded = folded(model)(images[200:]), small(images[200:])
    assert (exact.argmax(1) == coded.argmax(1)).float().mean() > 0.9
    assert not torch.equal(exact, coded)
    assert model_digest(small) != model_digest(folded(model))
    assert model_digest(quantized(model, images[:200])) == model_digest(small)
    assert model_digest(quantized(model, 2 * images[:200])) != model_digest(small)


def test_int8_handles_residual_blocks_and_refuses_other_networks():
    torch.manual_seed(0)
    model = build(ARCHITECTURES["cifar-32x2"]).eval()
    images = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        difference = (quantized(model, images)(images) - model(images)).abs().max()
    assert float(difference) < 0.25 * float(model(images).detach().std()) + 0.05
    with pytest.raises(TypeError, match=r"networks\.build"):
        quantized(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.ReLU()).eval(), images)
