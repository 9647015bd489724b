"""Controllers from torch modules answer as the module does, stay frozen, and refuse a module that moves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from told_apart import ONES
from torch import nn

from ccfs.controllers import (
    Controller,
    FrozenNormalizer,
    NumpyActor,
    from_torch,
)
from ccfs.controllers.adapters.torch import TorchController

OBSERVATIONS = np.random.default_rng(8).normal(0.0, 2.0, size=(40, 6)).astype(np.float32)


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


class Gain(nn.Module):
    factor = 1.0

    def __init__(self, gain: object) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x):
        return self.gain * self.factor * x[:, :2]


def test_from_torch_refuses_a_module_that_learns() -> None:
    class Live(nn.Module):
        def __init__(self, write: str) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(1))
            self.write, self.calls = write, 0

        def forward(self, x):
            if self.write == "in place":
                self.n += 1
            elif self.write == "behind torch's back":
                self.n.data += 1
            elif self.write == "replaced":
                self.n = self.n + 1
            else:
                self.calls += 1
            return x[:, :2] / 2.0

    for write in ("in place", "behind torch's back", "replaced", "attribute"):
        with pytest.raises(ValueError, match="`module` must keep its tensors and attributes"):
            from_torch(Live(write)).center(ONES)
        with pytest.raises(ValueError, match="`module` must keep its tensors and attributes"):
            from_torch(Live(write), content=b"live").center(ONES)


def test_from_torch_refuses_a_module_that_draws() -> None:
    class Noisy(nn.Module):
        def forward(self, x):
            return x[:, :2] + torch.randn(2)

    with pytest.raises(ValueError, match="`module` must be deterministic"):
        from_torch(Noisy()).center(ONES)


def test_from_torch_refuses_at_reset_what_changed_outside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = from_torch(Gain(1.0))
    made.center(ONES)
    made.reset()
    monkeypatch.setattr(Gain, "factor", -1.0)
    with pytest.raises(ValueError, match="have changed since it was hashed"):
        made.reset()
    assert from_torch(Gain(1.0)).digest != made.digest


def test_from_torch_does_not_convert_a_module_with_hooks() -> None:
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        for place in (0, None):
            module = nn.Sequential(nn.Linear(3, 2))
            target = module if place is None else module[place]
            if register == "register_forward_hook":
                target.register_forward_hook(lambda _module, _given, answer: -answer)
            else:
                target.register_forward_pre_hook(lambda _module, given: (-given[0],))
            with pytest.raises(ValueError, match="the module has hooks"):
                from_torch(module)
            made = from_torch(module, content=b"hook: minus")
            expected = module(torch.ones(1, 3)).detach().numpy()[0]
            np.testing.assert_allclose(made.center(ONES), expected, atol=1e-6)
    module = nn.Sequential(nn.Linear(3, 2))
    module.forward = lambda x: x[:, :2]
    with pytest.raises(ValueError, match="the module has hooks"):
        from_torch(module)


def test_from_torch_runs_parametrizations_and_refuses_the_old_weight_norm() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    made = from_torch(module)
    assert isinstance(made, TorchController)
    np.testing.assert_allclose(made.center(ONES), module(torch.ones(1, 3)).detach().numpy()[0], atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="remove_weight_norm"):
        from_torch(old)
    nn.utils.remove_weight_norm(old[0])
    assert isinstance(from_torch(old), NumpyActor)


def test_from_torch_converts_only_what_answers_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReLU(nn.Module):
        def forward(self, x):
            return -x

    torch.manual_seed(0)
    assert isinstance(from_torch(nn.Sequential(nn.Linear(3, 2), ReLU())), TorchController)
    module = nn.Sequential(filled(nn.Linear(3, 2).double(), 1.0 / 3.0))
    made = from_torch(module)
    assert isinstance(made, TorchController), "these weights do not fit into single precision"
    np.testing.assert_allclose(made.center(ONES), module(torch.ones(1, 3).double()).detach().numpy()[0], atol=1.2e-7)
    monkeypatch.setattr(nn.Tanh, "forward", lambda _self, x: x)
    assert isinstance(from_torch(nn.Sequential(nn.Linear(3, 2), nn.Tanh())), TorchController)
    with pytest.raises(ValueError, match=r"`weights\[0\]` must be finite"):
        from_torch(nn.Sequential(filled(nn.Linear(3, 2), float("nan"))))


def filled(layer: nn.Linear, value: float) -> nn.Linear:
    nn.init.constant_(layer.weight, value)
    return layer


def test_from_torch_checks_its_answers() -> None:
    class Answering(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

        def forward(self, x):
            answers = {"sum": x.sum(1), "pair": (x, x), "two rows": x.repeat(2, 1), "nan": x * float("nan")}
            return {"complex": x * 1j, "none": x[:, :0], **answers}[self.kind]

    for kind, error, message in (
        ("sum", ValueError, r"a tensor of shape \(1, d\), got shape \(1,\)"),
        ("pair", ValueError, r"a tensor of shape \(1, d\), got tuple"),
        ("two rows", ValueError, r"got shape \(2, 3\)"),
        ("nan", ValueError, "must return finite numbers"),
        ("complex", TypeError, "must return real numbers"),
        ("none", ValueError, "must return a vector"),
    ):
        with pytest.raises(error, match=message):
            from_torch(Answering(kind)).center(ONES)
    broken = nn.Sequential(filled(nn.Linear(3, 2), float("nan")), nn.ELU())
    with pytest.raises(ValueError, match="must return finite numbers"):
        from_torch(broken).center(ONES)
