"""Networks as they come: factories, TorchScript, ONNX, checkpoints of usual layouts, outputs and number formats."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from ccfs.certificates.filtered import JointMassCertificate
from ccfs.images import FilteredSmoother, ImageSet, NoFilter, NoiseStream, certify_dataset
from ccfs.images.counts import model_digest
from ccfs.images.networks import load_model, load_weights, state_of
from ccfs.images.smoother import Counter, logits_of

torch.set_num_threads(1)

LENET = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(18, 3)
    def forward(self, images):
        return self.linear(self.conv(images).view(len(images), -1))
def factory():
    torch.manual_seed(0)
    return Net()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "someones_lenet.py").write_text(LENET)
    monkeypatch.chdir(tmp_path)
    yield "someones_lenet"
    sys.modules.pop("someones_lenet", None)


def grey(seed=0):
    return np.random.default_rng(seed).random((5, 5, 1), dtype=np.float32)


def counted(model, center=None, trials=200, **options):
    center = grey() if center is None else center
    stream = NoiseStream(run="test", seed=0, index=0, purpose="x", dimension=center.size)
    (found,) = Counter(model, 0.3, NoFilter(), 3, 64, **options).count(center, stream, trials)
    return found


def test_factory_is_called_and_gets_its_checkpoint(module, tmp_path):
    made = load_model(f"{module}:factory")
    assert not made.training
    assert str(tmp_path) not in sys.path
    wanted = {name: value + 1 for name, value in made.state_dict().items()}
    torch.save({"state_dict": {f"module.{name}": value for name, value in wanted.items()}}, "weights.pth")
    loaded = load_model(f"{module}:Net", weights=tmp_path / "weights.pth")
    assert all(torch.equal(value, wanted[name]) for name, value in loaded.state_dict().items())
    assert model_digest(loaded) != model_digest(made)


def test_model_that_uses_view_gets_contiguous_images(module):
    """Grey channels-last images count as contiguous for torch, and `.view` then fails behind a convolution."""
    assert counted(load_model(f"{module}:factory")).trials == 200


def test_digest_sees_the_code_of_a_network(module, tmp_path):
    before = model_digest(load_model(f"{module}:factory"))
    (tmp_path / "someones_lenet.py").write_text(LENET.replace("self.linear(self", "-self.linear(self"))
    sys.modules.pop(module)
    assert model_digest(load_model(f"{module}:factory")) != before


@pytest.mark.parametrize("key", [None, "state_dict", "model_state_dict", "model", "net"])
def test_checkpoints_of_usual_layouts_are_read(tmp_path, key):
    layer = nn.Linear(2, 3)
    state = layer.state_dict()
    torch.save(state if key is None else {key: state, "epoch": 3}, tmp_path / "a.pth")
    other = load_weights(nn.Linear(2, 3), tmp_path / "a.pth")
    assert torch.equal(other.weight, layer.weight)


def test_checkpoint_that_does_not_fit_says_so(tmp_path):
    torch.save(nn.Linear(2, 3).state_dict(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match="does not fit the network"):
        load_weights(nn.Linear(2, 4), tmp_path / "a.pth")


class Pickled(nn.Module):
    pass


def test_whole_pickled_model_is_not_loaded(tmp_path):
    torch.save(Pickled(), tmp_path / "whole.pth")
    with pytest.raises(ValueError, match=r"would run code from it. Save `model.state_dict\(\)`"):
        state_of(tmp_path / "whole.pth")


def test_torchscript_file_is_a_network(module, tmp_path):
    made = load_model(f"{module}:factory")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(made).save(str(tmp_path / "net.pt"))
    loaded = load_model(str(tmp_path / "net.pt"))
    assert counted(loaded) == counted(made)
    assert model_digest(loaded) == model_digest(load_model(str(tmp_path / "net.pt")))
    torch.save(made.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"no TorchScript file.*use --checkpoint"):
        load_model(str(tmp_path / "weights.pt"))


def onnx_file(path, *, batch="batch", weight=None):
    weight = np.random.default_rng(0).standard_normal((25, 3)).astype(np.float32) if weight is None else weight
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])],
        [helper.make_tensor("w", TensorProto.FLOAT, weight.shape, weight.ravel())],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(made, path)
    return weight


def test_onnx_file_is_a_network(tmp_path):
    weight = onnx_file(tmp_path / "net.onnx")
    plain = nn.Sequential(nn.Flatten(), nn.Linear(25, 3, bias=False)).eval()
    plain[1].weight.data = torch.from_numpy(weight.T.copy())
    loaded = load_model(str(tmp_path / "net.onnx"))
    assert counted(loaded) == counted(plain)
    before = model_digest(loaded)
    onnx_file(tmp_path / "net.onnx", weight=weight * np.float32(1.001))
    assert model_digest(load_model(str(tmp_path / "net.onnx"))) != before
    onnx_file(tmp_path / "fixed.onnx", batch=1)
    with pytest.raises(ValueError, match="batches of any size"):
        load_model(str(tmp_path / "fixed.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="no ONNX network"):
        load_model(str(tmp_path / "bad.onnx"))


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("resnet18", "package.module:factory, a TorchScript file"),
        ("no_such_module:factory", "can be imported.*Start in the folder of your module"),
        ("math:pi", "must name a function"),
        ("none.onnx", "does not exist"),
        ("none.pt", "does not exist"),
    ],
)
def test_model_refuses(reference, message):
    with pytest.raises((ValueError, TypeError), match=message):
        load_model(reference)


WEIGHT = torch.randn(25, 3, generator=torch.Generator().manual_seed(1))


def plain_function(images):
    return images.flatten(1) @ WEIGHT


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, None),
        lambda logits: [logits],
        lambda logits: {"logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
        lambda logits: logits.double(),
        lambda logits: logits.to(torch.bfloat16).float() * 0 + logits,
    ],
)
def test_outputs_of_usual_kinds_are_understood(wrap):
    assert counted(lambda images: wrap(plain_function(images))) == counted(plain_function)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), "Labels alone are not enough"),
        ({"scores": torch.zeros(2, 3)}, "must return real logits"),
        (None, "got NoneType"),
        ((), "must return real logits"),
    ],
)
def test_outputs_without_logits_are_refused(answer, message):
    with pytest.raises(TypeError, match=message):
        logits_of(answer)


def test_wrong_number_of_labels_gets_advice():
    with pytest.raises(ValueError, match="give as many class names as the model has outputs"):
        counted(lambda images: torch.zeros(len(images), 5))


def test_images_of_another_shape_than_the_model_reads_get_advice():
    with pytest.raises(
        ValueError, match=r"cannot take images of \(channels, height, width\) \(1, 5, 5\): .*trained on"
    ):
        counted(nn.Sequential(nn.Flatten(), nn.Linear(24, 3)).eval())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_number_formats_are_counted_and_have_their_own_digest(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 3)).eval()
    single = counted(model)
    before = model_digest(model)
    other = counted(model.to(dtype))
    assert other.trials == 200
    assert sum(abs(a - b) for a, b in zip(single.retained, other.retained, strict=True)) <= 20
    assert model_digest(model) != before


def test_plain_function_must_be_declared_in_a_run(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 5, 1), dtype=np.uint8)
    images = ImageSet(name="x", images=pixels, labels=np.zeros(2, dtype=np.int64), classes=("a", "b", "c"))
    sizes = {"sigma": 0.3, "n0": 10, "n": 50, "seed": 0, "batch_size": 10, "folder": tmp_path}
    with pytest.raises(ValueError, match="Say what it is with `declared`"):
        certify_dataset(plain_function, images, NoFilter(), **sizes)
    assert list(tmp_path.iterdir()) == []
    table = certify_dataset(plain_function, images, NoFilter(), **sizes, declared="weights 1")
    assert table.key.model_sha256 != model_digest(plain_function, declared="weights 2")


def test_batch_is_certified_image_by_image():
    model = nn.Sequential(nn.Flatten(), nn.Linear(25, 3)).eval()
    smoother = FilteredSmoother(model, 0.3, NoFilter(), 3)
    batch = torch.rand(3, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    found = smoother.certify_batch(batch, 20, 300, 0.01, 100, index=7)
    assert found == tuple(smoother.certify(image, 20, 300, 0.01, 100, index=7 + i) for i, image in enumerate(batch))
    with pytest.raises(TypeError, match="Use `certify_batch`"):
        smoother.certify(batch, 20, 300, 0.01, 100)
    with pytest.raises(TypeError, match="Use `certify` for one"):
        smoother.certify_batch(batch[0], 20, 300, 0.01, 100)


class Step(nn.Module):
    """Label 0 where the first pixel is above 0, with noise this has a known probability."""

    def forward(self, images):
        first = images[:, 0, 0, 0]
        return torch.stack([first, -first, torch.full_like(first, -99.0)], 1)


def test_anytime_certification_stops_early_and_keeps_its_promise():
    smoother = FilteredSmoother(Step().eval(), 0.5, NoFilter(), 3)
    easy = np.full((1, 5, 5), 0.9, dtype=np.float32)  # true radius 0.9
    found = smoother.certify_until(easy, 50, 20_000, 0.001, 200, radius=0.4)
    assert isinstance(found.answer, JointMassCertificate)
    assert 0.4 < found.answer.radius < 0.9
    assert found.trials < 2000
    hopeless = np.full((1, 5, 5), 0.2, dtype=np.float32)
    found = smoother.certify_until(hopeless, 50, 20_000, 0.001, 200, radius=0.4)
    assert found.trials < 2000
    assert not (isinstance(found.answer, JointMassCertificate) and found.answer.radius > 0.2)
    tight = smoother.certify_until(easy, 50, 400, 0.001, 200, radius=0.85)
    assert tight.trials <= 400


def test_large_images_with_many_classes_need_one_image_in_memory(tmp_path):
    from ccfs.images import LazyImages

    loaded = []

    def load(index):
        loaded.append(index)
        return np.full((224, 224, 3), index, dtype=np.uint8)

    images = LazyImages(name="large", labels=[5, 999], classes=tuple(map(str, range(1000))), digest="0" * 64, load=load)
    torch.manual_seed(0)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 1000)).eval()
    table = certify_dataset(
        model, images, NoFilter(), sigma=0.5, n0=4, n=12, seed=0, batch_size=8, folder=tmp_path / "run"
    )
    assert [row.label for row in table.rows] == [5, 999]
    assert len(table.rows[0].estimation.retained) == 1000
    assert set(loaded) == {0, 1}
