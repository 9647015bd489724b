"""ONNX and TorchScript files: their own runtimes are the oracle, bit for bit."""

from __future__ import annotations

import io
import warnings
import zipfile

import numpy as np
import pytest

from ccfs.controllers import Controller, FrozenNormalizer, as_controller, from_onnx, from_torchscript

pytestmark = [pytest.mark.slow, pytest.mark.extras]
OBSERVATIONS = np.random.default_rng(5).normal(0.0, 2.0, size=(30, 3)).astype(np.float32)
SCALE = FrozenNormalizer(mean=np.ones(3), std=np.full(3, 2.0), clip=np.full(3, 0.7))


@pytest.fixture(autouse=True)
def _quiet():
    """torch recommends another format than TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def network(**changed):
    import torch

    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ELU(), torch.nn.Linear(8, 2), torch.nn.Tanh())


def scripted(path, module=None):
    import torch

    module = network() if module is None else module
    torch.jit.trace(module, torch.zeros(1, 3)).save(str(path))
    return module


def graph(path, *, dtype="FLOAT", outputs=("action",), inputs=("observation",), scale=1.0, extra=()):
    """Write an ONNX file of one layer and a tanh."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    kind, real = getattr(TensorProto, dtype), np.float32 if dtype == "FLOAT" else np.float64
    weight = numpy_helper.from_array((scale * rng.normal(size=(3, 2))).astype(real), "weight")
    bias = numpy_helper.from_array(rng.normal(size=2).astype(real), "bias")
    nodes = [
        helper.make_node("Gemm", [inputs[0], "weight", "bias"], ["hidden"]),
        *(helper.make_node("Tanh", ["hidden"], [name]) for name in outputs),
        *extra,
    ]
    made = helper.make_graph(
        nodes,
        "actor",
        [helper.make_tensor_value_info(name, kind, ["batch", 3]) for name in inputs],
        [helper.make_tensor_value_info(name, kind, ["batch", 2]) for name in outputs],
        [weight, bias],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("dtype", ["FLOAT", "DOUBLE"])
def test_from_onnx_answers_as_onnxruntime_does(tmp_path, dtype):
    import onnxruntime

    path = graph(tmp_path / "actor.onnx", dtype=dtype)
    controller, session = as_controller(path), onnxruntime.InferenceSession(path.read_bytes())
    assert isinstance(controller, Controller)
    real = np.float32 if dtype == "FLOAT" else np.float64
    for seen in OBSERVATIONS:
        (expected,) = session.run(None, {"observation": seen[None].astype(real)})
        np.testing.assert_array_equal(controller.center(seen), expected[0].astype(np.float64))
    scaled = as_controller(path, normalizer=SCALE)
    for seen in OBSERVATIONS:
        (expected,) = session.run(None, {"observation": SCALE(seen)[None].astype(real)})
        np.testing.assert_array_equal(scaled.center(seen), expected[0].astype(np.float64))


def test_from_onnx_digest_is_of_the_bytes(tmp_path):
    made = [from_onnx(graph(tmp_path / f"{scale}.onnx", scale=scale)) for scale in (1.0, 1.5)]
    made.append(from_onnx(tmp_path / "1.0.onnx", SCALE))
    two = graph(tmp_path / "two.onnx", outputs=("action", "value"))
    made += [from_onnx(two, output=name) for name in ("action", "value")]
    assert len({controller.digest for controller in made}) == len(made)
    assert from_onnx(tmp_path / "1.0.onnx").digest == made[0].digest


def test_from_onnx_refuses(tmp_path):
    import onnx
    from onnx import helper

    two = graph(tmp_path / "two.onnx", outputs=("action", "value"))
    with pytest.raises(ValueError, match=r"`output` must name the output .* one of \['action', 'value'\]"):
        as_controller(two)
    with pytest.raises(ValueError, match=r"`output` must be one of \['action', 'value'\], got 'q'"):
        from_onnx(two, output="q")
    with pytest.raises(ValueError, match=r"must have one input .* got observation: tensor\(float\), state: tensor"):
        from_onnx(graph(tmp_path / "state.onnx", inputs=("observation", "state")))
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"`path` must be an ONNX file that stands alone, got .*no.onnx"):
        from_onnx(tmp_path / "no.onnx")
    with pytest.raises(ValueError, match=r"`path` must be a file, got .*none.onnx', nothing there"):
        from_onnx(tmp_path / "none.onnx")
    outside = onnx.load(str(graph(tmp_path / "outside.onnx")))
    onnx.save(outside, str(tmp_path / "outside.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    assert (tmp_path / "w.bin").exists()
    with pytest.raises(ValueError, match="must be an ONNX file that stands alone"):
        from_onnx(tmp_path / "outside.onnx")
    noise = helper.make_node("RandomNormalLike", ["hidden"], ["noise"])
    add = helper.make_node("Add", ["hidden", "noise"], ["action"])
    drawing = graph(tmp_path / "draws.onnx", outputs=(), extra=(noise, add))
    model = onnx.load(str(drawing))
    model.graph.output.append(helper.make_tensor_value_info("action", onnx.TensorProto.FLOAT, ["batch", 2]))
    drawing.write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match=r"draws.onnx must be deterministic, got two answers"):
        from_onnx(drawing).center(OBSERVATIONS[0])
    with pytest.raises(ValueError, match=r"must take a batch of observations, got .* for one of shape \(4,\)"):
        from_onnx(graph(tmp_path / "actor.onnx")).center(np.zeros(4))


def test_from_torchscript_answers_as_torch_does(tmp_path):
    import torch

    module = scripted(tmp_path / "actor.pt")
    loaded = torch.jit.load(str(tmp_path / "actor.pt"))
    by_path, by_module = as_controller(tmp_path / "actor.pt"), as_controller(loaded)
    assert isinstance(by_path, Controller)
    scaled = from_torchscript(tmp_path / "actor.pt", SCALE)
    for seen in OBSERVATIONS:
        with torch.no_grad():
            expected = module(torch.from_numpy(seen)[None])[0].numpy()
            after = module(torch.from_numpy(SCALE(seen))[None])[0].numpy()
        for controller in (by_path, by_module):
            np.testing.assert_array_equal(controller.center(seen), expected.astype(np.float64))
        np.testing.assert_array_equal(scaled.center(seen), after.astype(np.float64))
    other = network()
    other[0].bias.data += 1.0
    scripted(tmp_path / "other.pt", other)
    digests = {by_path.digest, scaled.digest, from_torchscript(tmp_path / "other.pt").digest}
    assert len(digests) == 3
    assert from_torchscript(tmp_path / "actor.pt").digest == by_path.digest


def test_from_torchscript_runs_double_precision_in_double(tmp_path):
    import torch

    torch.jit.trace(network().double(), torch.zeros(1, 3, dtype=torch.float64)).save(str(tmp_path / "double.pt"))
    controller = as_controller(tmp_path / "double.pt")
    seen = OBSERVATIONS[0].astype(np.float64)
    with torch.no_grad():
        expected = network().double()(torch.from_numpy(seen)[None])[0].numpy()
    np.testing.assert_array_equal(controller.center(seen), expected)


def test_from_torchscript_refuses(tmp_path):
    import torch

    torch.save(network().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ValueError, match=r"weights.pt must be one that .* without code.*use `from_torch`"):
        as_controller(tmp_path / "weights.pt")
    (tmp_path / "text.pt").write_text("no archive")
    with pytest.raises(ValueError, match=r"text.pt must be one that `torch.jit.save` wrote"):
        as_controller(tmp_path / "text.pt")
    scripted(tmp_path / "actor.pt")
    changed = io.BytesIO()
    with zipfile.ZipFile(tmp_path / "actor.pt") as archive, zipfile.ZipFile(changed, "w") as target:
        for name in archive.namelist():
            content = archive.read(name)
            if "/code/" in name and name.endswith(".py"):
                content += b"\n  def __setstate__(self, state: int) -> None:\n    return None\n"
            target.writestr(name, content)
    (tmp_path / "runs.pt").write_bytes(changed.getvalue())
    with pytest.raises(ValueError, match="must not run code while it is loaded, got one with `__setstate__`"):
        as_controller(tmp_path / "runs.pt")
    with pytest.raises(ValueError, match=r"must take a batch of observations, got .* for one of shape \(4,\)"):
        as_controller(tmp_path / "actor.pt").center(np.zeros(4))
    with pytest.raises(TypeError, match="must be a TorchScript file or module, got Sequential"):
        from_torchscript(network())
