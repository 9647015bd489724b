"""The numpy actor: exact small cases, torch as oracle, files, hashes and refusals."""

from __future__ import annotations

import io
import math
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ccfs.controllers import Controller, FrozenNormalizer, NumpyActor
from ccfs.controllers.actor import ACTIVATIONS, GRID


def normalizer(size: int = 3) -> FrozenNormalizer:
    ones = np.ones(size, np.float32)
    return FrozenNormalizer(mean=0.5 * ones, std=2.0 * ones, clip=5.0 * ones)


def actor(seed: int = 0, **changes: object) -> NumpyActor:
    rng = np.random.default_rng(seed)
    sizes = (3, 5, 4, 2)
    values = {
        "weights": tuple(rng.normal(size=(b, a)).astype(np.float32) for a, b in pairwise(sizes)),
        "biases": tuple(rng.normal(size=b).astype(np.float32) for b in sizes[1:]),
        "activation": "tanh",
        "normalizer": normalizer(),
    }
    return NumpyActor(**(values | changes))


def test_actor_is_a_controller() -> None:
    assert isinstance(actor(), Controller)


def test_actor_shows_itself_in_one_line_without_its_weights() -> None:
    made = actor()
    assert repr(made) == f"<NumpyActor 3-5-4-2 tanh, digest {made.digest[:16]}>"


def test_actor_equals_a_hand_computation() -> None:
    # clip((2 - 0.5) / 2) = 0.75; tanh(2 * 0.75 - 1) = tanh(0.5); 3 tanh(0.5) + 0.25.
    made = NumpyActor(
        weights=(np.array([[2.0]], np.float32), np.array([[3.0]], np.float32)),
        biases=(np.array([-1.0], np.float32), np.array([0.25], np.float32)),
        activation="tanh",
        normalizer=normalizer(1),
    )
    assert abs(made.center([2.0])[0] - (3.0 * math.tanh(0.5) + 0.25)) <= GRID / 2


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("output", ["identity", "tanh"])
def test_actor_equals_torch(activation: str, output: str) -> None:

    kinds = {"identity": nn.Identity, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "softplus": nn.Softplus, "tanh": nn.Tanh}
    made = actor(activation=activation, output_activation=output)
    layers = []
    for weight, bias in zip(made.weights, made.biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.weight.data, linear.bias.data = torch.tensor(weight), torch.tensor(bias)
        layers += [linear, kinds[activation]()]
    network = nn.Sequential(*layers[:-1], kinds[output]())
    for observation in np.random.default_rng(1).normal(0.0, 4.0, size=(50, 3)):
        scaled = torch.clamp((torch.tensor(observation, dtype=torch.float32) - 0.5) / 2.0, -5.0, 5.0)
        # Torch adds in float32: three layers of it leave about ten units in the last place, 1e-6 relative.
        np.testing.assert_allclose(made.center(observation), network(scaled).detach().numpy(), atol=2e-6, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))
def test_actor_answers_on_the_grid_and_repeats(observation: list[float]) -> None:
    center = actor().center(observation)
    assert center.dtype == np.float64
    assert center.shape == (2,)
    assert (center / GRID == np.rint(center / GRID)).all()
    assert center.tobytes() == actor().center(np.array(observation, np.float32)).tobytes()


def test_actor_answer_survives_another_order_of_summation() -> None:
    # What another matrix library does: the same sums in another order. The grid hides the difference.
    made = actor()
    for observation in np.random.default_rng(2).normal(size=(200, 3)):
        hidden = made.normalizer(observation.astype(np.float32)).astype(float)
        for i, (weight, bias) in enumerate(zip(made.weights, made.biases, strict=True)):
            sums = [math.fsum(float(w) * x for w, x in zip(row, hidden, strict=True)) for row in weight]
            hidden = np.array(sums) + bias
            hidden = np.tanh(hidden) if i < 2 else hidden
        assert (np.rint(hidden / GRID) * GRID).tobytes() == made.center(observation).tobytes()


def test_actor_survives_its_file(tmp_path: Path) -> None:
    for made in (actor(), actor(normalizer=None, activation="relu")):
        made.save(tmp_path / "actor.npz")
        read = NumpyActor.load(tmp_path / "actor.npz")
        assert read.digest == made.digest
        assert read.center([1.0, 2.0, 3.0]).tobytes() == made.center([1.0, 2.0, 3.0]).tobytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["actor.npz"]


def test_digest_changes_with_every_part() -> None:
    base = actor()
    nudged = [w.copy() for w in base.weights]
    nudged[1][0, 0] = np.nextafter(nudged[1][0, 0], np.float32(9.0))
    shifted = FrozenNormalizer(mean=base.normalizer.mean, std=base.normalizer.std, clip=4.0 * np.ones(3, np.float32))
    others = [
        actor(weights=tuple(nudged)),
        actor(activation="relu"),
        actor(output_activation="tanh"),
        actor(normalizer=None),
        actor(normalizer=shifted),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 6
    assert base == actor()
    assert len({base, actor(), *others}) == 6


def test_actor_arrays_cannot_be_changed() -> None:
    made = actor()
    with pytest.raises(ValueError, match="read-only"):
        made.weights[0][0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        made.normalizer.mean[0] = 1.0


def test_load_refuses_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", format=np.array({"a": 1}, dtype=object))
    with pytest.raises(ValueError, match="must be a plain array"):
        NumpyActor.load(tmp_path / "bad.npz")


def test_load_refuses_other_formats_and_arrays(tmp_path: Path) -> None:
    path = tmp_path / "actor.npz"
    actor().save(path)
    with np.load(path) as file:
        content = dict(file)
    for change, message in (
        ({"format": np.array("ccfs.numpy-actor/9")}, "must have format 'ccfs.numpy-actor/1', got 'ccfs.numpy-actor/9'"),
        ({"extra": np.zeros(1)}, "exactly the arrays of an actor"),
        ({"bias_1": np.zeros(4)}, "must be stored as float32"),
    ):
        np.savez(path, **(content | change))
        with pytest.raises((ValueError, TypeError), match=message):
            NumpyActor.load(path)
    del content["std"]
    np.savez(path, **content)
    with pytest.raises(ValueError, match="exactly the arrays of an actor"):
        NumpyActor.load(path)


def test_load_refuses_a_file_that_is_no_archive() -> None:
    with pytest.raises((ValueError, zipfile.BadZipFile)):
        NumpyActor.load(io.BytesIO(b"not an archive"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "swish"}, "`activation` must be one of"),
        ({"weights": ()}, "must pair up"),
        ({"biases": (np.zeros(5), np.zeros(4), np.array([0.0, np.nan]))}, "must be finite"),
        ({"biases": (np.zeros(5), np.zeros(4), np.zeros(3))}, "Layer 2 must continue a width of 4"),
        ({"normalizer": normalizer(4)}, "must have 3 components, got 4"),
    ],
)
def test_actor_refuses(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        actor(**changes)


@pytest.mark.parametrize("observation", [[1.0, 2.0], [1.0, 2.0, math.nan], [1.0, 2.0, math.inf], [[1.0, 2.0, 3.0]]])
def test_center_refuses(observation: list[float]) -> None:
    with pytest.raises(ValueError, match="`observation` must"):
        actor().center(observation)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_center_refuses_what_overflows_single_precision() -> None:
    with pytest.raises(ValueError, match="finite in single precision"):
        actor().center([1e300, 0.0, 0.0])


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_normalizer_refuses(std: float) -> None:
    with pytest.raises(ValueError, match="`std` must be"):
        FrozenNormalizer(mean=np.zeros(2), std=np.array([1.0, std]), clip=np.ones(2))


def test_actor_refuses_an_answer_that_overflows() -> None:
    layers = tuple(np.full((1, 1), 3e38, np.float32) for _ in range(9))
    actor = NumpyActor(weights=layers, biases=(np.zeros(1, np.float32),) * 9, activation="relu")
    with np.errstate(over="ignore"), pytest.raises(ValueError, match="`actor` must return finite numbers"):
        actor.center(np.ones(1))


BOX = {"low": np.array([-2.0, 0.5]), "high": np.array([1.0, 3.0])}


def test_actor_stretches_its_answer_to_a_box() -> None:
    plain, stretched = actor(output_activation="tanh"), actor(output_activation="tanh", **BOX)
    for observation in np.random.default_rng(4).normal(size=(30, 3)):
        expected = BOX["low"] + 0.5 * (plain.center(observation) + 1.0) * (BOX["high"] - BOX["low"])
        np.testing.assert_allclose(stretched.center(observation), expected, atol=2.0 * GRID)  # two roundings


def test_actor_clips_its_outputs_before_the_last_activation() -> None:
    plain, clipped = actor(), actor(output_activation="tanh", output_limit=0.25)
    for observation in np.random.default_rng(4).normal(0.0, 3.0, size=(30, 3)):
        expected = np.tanh(np.clip(plain.center(observation), -0.25, 0.25))
        np.testing.assert_allclose(clipped.center(observation), expected, atol=GRID)


def test_normalizer_in_double_precision_keeps_what_single_loses() -> None:
    settings = {"mean": np.array([1000.0, 0.0, 0.0]), "std": np.array([1e-4, 1.0, 1.0]), "clip": 5.0}
    seen = np.array([1000.0 + 1e-4, 0.0, 0.0])
    exact = FrozenNormalizer(**settings, dtype="float64")
    expected = ((seen - settings["mean"]) / settings["std"]).astype(np.float32)
    np.testing.assert_array_equal(exact(seen), expected)
    single = FrozenNormalizer(**settings)
    assert np.abs(single(seen.astype(np.float32)) - expected).max() > 0.1
    made = [actor(normalizer=normalizer) for normalizer in (exact, single)]
    assert made[0].digest != made[1].digest
    assert np.abs(made[0].center(seen) - made[1].center(seen)).max() > 1e-3
    with pytest.raises(ValueError, match="`dtype` must be 'float32' or 'float64', got 'float16'"):
        FrozenNormalizer(**settings, dtype="float16")


@pytest.mark.parametrize(
    "changes",
    [
        BOX,
        {"output_limit": 2.0},
        BOX | {"output_limit": 0.5, "output_activation": "tanh"},
        {"normalizer": FrozenNormalizer(mean=np.full(3, 0.1), std=np.full(3, 0.3), clip=np.ones(3), dtype="float64")},
    ],
)
def test_actor_with_an_output_of_its_own_is_saved_whole(changes: dict[str, object], tmp_path: Path) -> None:
    made = actor(**changes)
    made.save(tmp_path / "actor.npz")
    read = NumpyActor.load(tmp_path / "actor.npz")
    assert read == made != actor()
    observation = np.array([0.3, -0.2, 1.0])
    assert read.center(observation).tobytes() == made.center(observation).tobytes()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": np.zeros(2)}, "`low` and `high` must be given together"),
        ({"low": np.ones(2), "high": np.ones(2)}, "`low` must be below `high`"),
        ({"low": np.zeros(3), "high": np.ones(3)}, "with 2 components each"),
        ({"low": np.zeros(2), "high": np.array([1.0, np.inf])}, "`high` must be finite"),
        ({"output_limit": 0.0}, "`output_limit` must be positive"),
        ({"output_limit": math.nan}, "`output_limit` must be positive"),
    ],
)
def test_actor_refuses_an_output_that_is_none(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        actor(**changes)
