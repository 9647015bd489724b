"""The digest of a torch module changes whenever its answers could."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from told_apart import ONES, assert_told_apart, loaded
from torch import nn

from ccfs.controllers import from_torch

ANYTHING = object()


class Gain(nn.Module):
    factor = 1.0

    def __init__(self, gain: object) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return self.gain * self.factor * x[:, :2]


class Buffered(nn.Module):
    def __init__(self, mean: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((3,), mean), persistent=False)

    def forward(self, x):
        return (x - self.mean)[:, :2]


class Child(Gain):
    pass


def closed(gain: object) -> nn.Module:
    class Closed(nn.Module):
        def forward(self, x):
            return gain * x[:, :2]

    return Closed()


def decorated(gain: float) -> nn.Module:
    class Decorated(nn.Module):
        @torch.no_grad()
        def forward(self, x, gain=gain):
            return gain * x[:, :2]

    return Decorated()


@pytest.mark.parametrize(
    ("make", "first", "second"),
    [
        (Gain, 1.0, -1.0),
        (Gain, torch.tensor(1.0), torch.tensor(-1.0)),
        (Gain, np.float64(1.0), np.float64(-1.0)),
        (Child, 1, 2),
        (Buffered, 1.0, 5.0),
        (closed, 1.0, -1.0),
        (closed, torch.tensor(1.0), torch.tensor(-1.0)),
        (decorated, 1.0, -1.0),
    ],
)
def test_from_torch_tells_modules_apart(make, first: object, second: object) -> None:
    assert_told_apart(from_torch(make(first)), from_torch(make(second)))
    assert from_torch(make(first)).digest == from_torch(make(first)).digest


def test_from_torch_hashes_containers_order_and_torch_functions() -> None:
    class Listed(nn.Module):
        def __init__(self, gains: object, activation: object) -> None:
            super().__init__()
            self.gains, self.activation = gains, activation

        def forward(self, x):
            return self.activation(self.gains[0] * x[:, :2])

    made = [from_torch(Listed(gains, f)) for gains in ([1.0], [2.0], {0: 1.0}) for f in (torch.tanh, torch.relu)]
    assert len({one.digest for one in made}) == len(made)
    torch.manual_seed(0)
    square, other = nn.Linear(3, 3), nn.Linear(3, 3)
    orders = ([square, other, nn.ELU()], [other, square, nn.ELU()], [square, other, square, nn.ELU()])
    assert len({from_torch(nn.Sequential(*order)).digest for order in orders}) == len(orders)
    named = [{"a": square, "b": nn.ELU(), "c": other}, {"c": other, "b": nn.ELU(), "a": square}]
    assert_told_apart(*(from_torch(nn.Sequential(OrderedDict(parts))) for parts in named))


def test_from_torch_hashes_the_code_of_base_classes(tmp_path: Path) -> None:
    text = """
from torch import nn
class Base(nn.Module):
    def forward(self, x): return {sign}x[:, :2]
class Net(Base):
    pass
"""
    plus, minus = (loaded(tmp_path, text.format(sign=sign), f"base_{i}") for i, sign in enumerate("+-"))
    assert_told_apart(from_torch(plus.Net()), from_torch(minus.Net()))


def test_from_torch_refuses_what_it_cannot_hash_unless_told() -> None:
    traced = torch.fx.symbolic_trace(nn.Linear(3, 2))
    for module in (Gain(ANYTHING), closed(ANYTHING), Gain([nn.Linear(3, 2)]), Gain(lambda: 1.0), traced):
        with pytest.raises(ValueError, match="`content` must be given"):
            from_torch(module)
    typed: dict[str, object] = {"nn": nn}
    exec("class Net(nn.Module):\n    def forward(self, x): return x[:, :2]", typed)
    with pytest.raises(ValueError, match="`content` must be given: the source of 'forward' cannot be read"):
        from_torch(typed["Net"]())
    told = from_torch(typed["Net"](), content=b"the first two")
    assert told.center(ONES).tolist() == [1.0, 1.0]
    assert told.digest == from_torch(typed["Net"](), content=b"the first two").digest
    assert told.digest != from_torch(typed["Net"](), content=b"other").digest
    with pytest.raises(TypeError, match="`content` must be bytes, got str"):
        from_torch(typed["Net"](), content="text")


def test_from_torch_with_content_still_hashes_the_tensors() -> None:
    made = [from_torch(Buffered(mean), content=b"buffered") for mean in (1.0, 5.0)]
    assert_told_apart(*made)
