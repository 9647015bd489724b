"""Winograd's convolution is the convolution: exactly on small integers, else up to rounding, in any batch or thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from ccfs.images import load_shipped, winograd
from ccfs.images.counts import model_digest
from ccfs.images.forms import folded, fused
from ccfs.images.winograd import Winograd, shortcut

torch.set_num_threads(1)  # two threads beside a busy core are far slower than one


def layer(inputs, outputs, seed=0):
    made = nn.Conv2d(inputs, outputs, 3, padding=1)
    generator = torch.Generator().manual_seed(seed)
    made.weight.data = torch.randn(made.weight.shape, generator=generator) / (3 * inputs**0.5)
    made.bias.data = torch.randn(outputs, generator=generator)
    return made.requires_grad_(False)


def convolved(made, images, size):
    """Images (batch, channels, rows, columns) through `Winograd`, with the bias that it leaves to the caller."""
    found = Winograd(made, size)(images.permute(2, 3, 0, 1).contiguous())
    return found.permute(2, 3, 0, 1) + made.bias.view(1, -1, 1, 1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 16])
def test_winograd_is_exact_on_small_integers(size):
    """The kernel's transform divides by 24 per side. With weights that are multiples of 576 nothing is ever rounded."""
    generator = torch.Generator().manual_seed(size)
    made = layer(2, 3)
    made.weight.data = 576.0 * torch.randint(-1, 2, made.weight.shape, generator=generator)
    made.bias.data = torch.randint(-9, 10, (3,), generator=generator).float()
    images = torch.randint(-1, 2, (4, 2, size, size), generator=generator).float()
    assert torch.equal(convolved(made, images, size), made(images))


@pytest.mark.parametrize(("size", "channels"), [(4, 192), (8, 96), (7, 48)])
def test_winograd_differs_from_the_exact_sum_by_rounding_only(size, channels, monkeypatch):
    made = layer(channels, channels)
    images = torch.randn(5, channels, size, size, generator=torch.Generator().manual_seed(1))
    exact = nn.functional.conv2d(images.double(), made.weight.double(), made.bias.double(), padding=1)
    error = (convolved(made, images, size) - exact).abs()
    # The classical bound: roundings on the way of a term, times the same sums with all signs positive. On the way are
    # two transforms of six terms on either side, a rounded weight, a product, the sum over channels and the bias.
    roundings = 12 + 1 + 1 + channels + 12 + 1
    for name in ("_ENTER", "_KERNEL", "_LEAVE"):
        absolute = tuple(tuple(abs(value) for value in row) for row in getattr(winograd, name))
        monkeypatch.setattr(winograd, name, absolute)
    made.weight.data, made.bias.data = made.weight.abs(), made.bias.abs()
    scale = convolved(made, images.abs(), size)
    assert torch.all(error <= 1.01 * roundings * 2.0**-24 * scale)
    assert float(error.max()) < 1e-4


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, padding=1, bias=False),
        nn.Conv2d(4, 4, 3, padding=1, stride=2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 5, padding=2),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
    ],
)
def test_winograd_refuses_other_convolutions(other):
    with pytest.raises(ValueError, match="kernel 3, stride 1, padding 1"):
        Winograd(other, 8)


@pytest.mark.parametrize("batch", [1, 7, 126, 260])
def test_residual_block_is_the_same_in_any_batch_and_mode(batch):
    first, second = layer(8, 8, 1), layer(8, 8, 2)
    images = torch.randn(batch, 8, 5, 5, generator=torch.Generator().manual_seed(3))
    images = images.contiguous(memory_format=torch.channels_last)
    pair = Winograd(first, 5), Winograd(second, 5)
    wanted = (images + second(first(images).relu())).relu()
    with torch.inference_mode():
        inside = shortcut(*pair, images)
    # The scratch memory was taken in inference mode, and is used outside of it now.
    outside = shortcut(*pair, images)
    assert torch.equal(inside, outside)
    assert outside.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(outside, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_threads_that_share_a_network_do_not_share_its_scratch_memory():
    network = fused(load_shipped("cifar-48-sigma0.25"), 32)
    batches = [torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    batches = [batch.contiguous(memory_format=torch.channels_last) for batch in batches]

    def answer(batch):
        with torch.inference_mode():
            return network(batch)

    alone = [answer(batch) for batch in batches]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(answer, batches * 3))
    assert all(torch.equal(a, b) for a, b in zip(together, alone * 3, strict=True))


@pytest.mark.slow
def test_digest_names_the_layers_that_round_in_another_way(monkeypatch):
    model = load_shipped("cifar-48-sigma0.25")
    wide = fused(model, 32)
    assert "winograd=4,6" in str(wide)
    monkeypatch.setattr("ccfs.images.forms.LEAST", 10_000)
    direct = fused(model, 32)
    assert len({model_digest(form) for form in (wide, direct, folded(model))}) == 3
    monkeypatch.undo()
    assert "winograd" not in str(fused(load_shipped("mnist-small-sigma1"), 28))
