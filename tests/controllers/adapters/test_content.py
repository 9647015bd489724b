"""The digests of controllers made from code change whenever the answers could, and what moves is refused."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from ccfs.controllers import Controller, NumpyActor, from_callable, from_torch
from ccfs.controllers.adapters.content import framed, value_content
from ccfs.controllers.adapters.torch import TorchController

ONES = np.ones(3)
GAIN = np.array([1.0, 2.0])
SCALE = 1.0
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


def loaded(folder: Path, text: str, name: str = "written_here") -> ModuleType:
    (folder / f"{name}.py").write_text(text)
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def assert_told_apart(first: Controller, second: Controller) -> None:
    assert first.center(ONES).tolist() != second.center(ONES).tolist(), "the case itself must differ"
    assert first.digest != second.digest


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


def test_actor_refuses_an_answer_that_overflows() -> None:
    layers = tuple(np.full((1, 1), 3e38, np.float32) for _ in range(9))
    actor = NumpyActor(weights=layers, biases=(np.zeros(1, np.float32),) * 9, activation="relu")
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="`actor` must return finite numbers"):
        actor.center(np.ones(1))


def test_from_callable_tells_two_functions_on_one_line_apart() -> None:
    first, second = from_callable(lambda o: o[:2], "x"), from_callable(lambda o: -o[:2], "x")
    assert_told_apart(first, second)
    pair = [lambda o: o[:2] * 0.0, lambda o: o[:2] * False, lambda o: o[:2] * -0.0]
    assert len({from_callable(f, "x").digest for f in pair}) == 3
    with pytest.raises(AssertionError, match="the case itself"):
        assert_told_apart(first, first)


def test_from_callable_keeps_its_own_copy_of_arrays() -> None:
    gain, pair = np.ones(2), (np.ones(2), 1.0)

    def rule(o, scale=gain, *, last=gain):
        return gain * scale * last * pair[0] * o[:2]

    made = from_callable(rule, "rule")
    before, digest = made.center(ONES), made.digest
    gain[:], pair[0][:] = -3.0, 5.0
    made.reset()
    assert made.center(ONES).tobytes() == before.tobytes()
    assert made.digest == digest
    assert_told_apart(made, from_callable(rule, "rule"))

    def writes(o):
        gain[:] = o[:2]
        return gain

    with pytest.raises(ValueError, match="read-only"):
        from_callable(writes, "writes").center(ONES)


def test_from_callable_hashes_the_globals_it_reads_and_refuses_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rule(o):
        return SCALE * GAIN * np.tanh(o[:2])

    made = from_callable(rule, "rule")
    made.reset()
    monkeypatch.setitem(rule.__globals__, "SCALE", 2.0)
    with pytest.raises(ValueError, match="a value it reads has changed"):
        made.reset()
    assert from_callable(rule, "rule").digest != made.digest
    monkeypatch.setitem(rule.__globals__, "SCALE", 1.0)
    assert from_callable(rule, "rule").digest == made.digest
    made.reset()
    with pytest.raises(ValueError, match="'global ANYTHING' is of type object"):
        from_callable(lambda o: (ANYTHING, o)[1], "global object")


def test_from_callable_refuses_a_function_that_counts() -> None:
    calls = 0

    def counts(o):
        nonlocal calls
        calls += 1
        return o / calls

    def writes_global(o):
        global SCALE
        SCALE = SCALE + 1.0
        return o * SCALE

    for f in (counts, writes_global):
        with pytest.raises(ValueError, match="outside of it"):
            from_callable(f, "memory")


def test_from_callable_refuses_a_source_that_is_not_what_runs(tmp_path: Path) -> None:
    module = loaded(tmp_path, "def rule(o):\n    return o[:2]\n", "edited")
    first = from_callable(module.rule, "rule")
    (tmp_path / "edited.py").write_text("def rule(o):\n    return -o[:2] # changed while loaded\n")
    with pytest.raises(ValueError, match="is not what stands in"):
        from_callable(module.rule, "rule")
    assert first.digest != from_callable(loaded(tmp_path, "def rule(o):\n    return -o[:2]\n", "b").rule, "rule").digest


def test_from_callable_digest_leaves_out_comments_docstrings_and_layout(tmp_path: Path) -> None:
    plain = "def rule(o):\n    return 0.5 * o[:2]\n"
    told = (
        "# mended\n\ndef other(o): return o\n\n"
        'def rule(o):\n    """Halve it."""\n    # why\n    return (\n        0.5\n        * o[:2]\n    )\n'
    )
    reads = told.replace("0.5", "len(rule.__doc__)")
    texts = [plain, told, plain.replace("0.5", "0.6"), reads, reads.replace("Halve", "Half")]
    first, same, *others = (from_callable(loaded(tmp_path, text, f"m{i}").rule, "rule") for i, text in enumerate(texts))
    assert first.digest == same.digest
    assert len({first.digest, *(other.digest for other in others)}) == 4
    lines = ["pick = (lambda o: o[:2], lambda o: -o[:2])", "pick = (lambda o: o[:2],  # first\n    lambda o: -o[:2])"]
    one, two = (loaded(tmp_path, line + "\n", f"p{i}").pick for i, line in enumerate(lines))
    assert from_callable(one[0], "p").digest != from_callable(one[1], "p").digest
    assert from_callable(two[0], "p").digest != from_callable(two[1], "p").digest


def test_from_callable_refuses_other_kinds() -> None:
    class Tuned(float):
        pass

    tuned, masked, listed = Tuned(1.0), np.ma.array([1.0, 2.0], mask=[True, False]), [1.0]
    for f, kind in ((lambda o: tuned * o, "Tuned"), (lambda o: masked * o, "MaskedArray"), (lambda o: listed, "list")):
        with pytest.raises(ValueError, match=f"is of type {kind}"):
            from_callable(f, "kind")
    with pytest.raises(TypeError, match="`content` must be bytes"):
        from_callable(np.tanh, "tanh", content="numpy.tanh")
    for answer in (lambda o: o * 1j, lambda o: ["1", "2"], lambda o: [None, 1.0]):
        with pytest.raises(TypeError, match="must return real numbers"):
            from_callable(answer, "kind").center(ONES)


def test_name_and_content_do_not_run_into_each_other() -> None:
    assert from_callable(np.tanh, "a;b", content=b"c").digest != from_callable(np.tanh, "a", content=b"b;c").digest
    assert framed("a", b"b") + framed("c", b"") != framed("a", b"b" + framed("c", b""))
    values = (1, 1.0, True, "1", b"1", None, 0.0, -0.0, (1,), ((1,),), np.ones(1), np.ones((1, 1)), np.float64(1.0))
    assert len({value_content("x", value) for value in values}) == len(values)
