"""A feed-forward actor in plain numpy with a frozen normaliser: what the zoo ships and what certificates run."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.files.atomic import write_atomically
from ccfs.files.reading import read_arrays

__all__ = ["ACTIVATIONS", "FORMAT", "GRID", "FrozenNormalizer", "NumpyActor", "answered", "on_grid", "prepared"]

Floats: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"
FORMAT: Final = "ccfs.numpy-actor/1"
ACTIVATIONS: Final[dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "sigmoid": lambda x: np.exp(-np.logaddexp(0.0, -x)),
    "softplus": lambda x: np.logaddexp(0.0, x),
    "tanh": np.tanh,
}
GRID: Final = 2.0**-22
"""Centers are multiples of this. Matrix libraries differ in the last bits, and a replay must not."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrozenNormalizer:
    """The map clip((observation - mean) / std, -clip, clip). It never learns, and its answer is in single precision.

    Args:
        mean: of the observations, shape (n,).
        std: positive, one for all or one per coordinate.
        clip: likewise.
        dtype: "float32" or "float64", the precision of the map itself, as in training. OmniSafe normalises in single
            precision. Stable-Baselines3 does so in double precision and rounds the result to single.
    """

    mean: Floats
    std: Floats
    clip: Floats
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be 'float32' or 'float64', got {self.dtype!r}.")
        mean = _frozen("mean", self.mean, self.dtype)
        if mean.ndim != 1:
            raise ValueError(f"`mean` must have one dimension, got shape {mean.shape}.")
        object.__setattr__(self, "mean", mean)
        for name in ("std", "clip"):
            value = _frozen(name, np.broadcast_to(np.asarray(getattr(self, name)), mean.shape), self.dtype)
            if not bool((value > 0.0).all()):
                raise ValueError(f"`{name}` must be positive everywhere, got {value.min()}.")
            object.__setattr__(self, name, value)

    def __call__(self, observation: Floats) -> NDArray[np.float32]:
        """Return the normalised observation. It must have the precision of the map."""
        scaled = (observation - self.mean) / self.std
        return np.asarray(np.minimum(np.maximum(scaled, -self.clip), self.clip), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumpyActor:
    """The mean action or the scores of a trained policy: normaliser, then fully connected layers.

    Observations are cast to the normaliser's precision, float32 without one. The layers run in float64. The answer is
    rounded to a multiple of `GRID`, so that it does not depend on the machine's matrix library. It is not clipped,
    because the program clips the center to the action box. Satisfies `Controller`.

    Args:
        weights: one matrix per layer, shape (outputs, inputs), as torch stores them.
        biases: one vector per layer.
        activation: between layers, a key of `ACTIVATIONS`.
        output_activation: after the last layer.
        normalizer: applied to the observation first, or None.
        output_limit: the outputs of the last layer are clipped to [-limit, limit] before `output_activation`, as the
            mean of a policy with state-dependent exploration (gSDE) is. None does not clip.
        low: with `high`, the box to which an answer in [-1, 1] is stretched. None leaves the answer as it is.
        high: see `low`.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    activation: str
    output_activation: str = "identity"
    normalizer: FrozenNormalizer | None = None
    output_limit: float | None = None
    low: NDArray[np.float64] | None = None
    high: NDArray[np.float64] | None = None
    _layers: tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...] = field(init=False, repr=False)
    _digest: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in (self.activation, self.output_activation):
            if name not in ACTIVATIONS:
                raise ValueError(f"`activation` must be one of {sorted(ACTIVATIONS)}, got {name!r}.")
        if not (len(self.weights) == len(self.biases) and len(self.weights) > 0):
            raise ValueError(f"`weights` and `biases` must pair up, got {len(self.weights)} and {len(self.biases)}.")
        weights = tuple(_frozen(f"weights[{i}]", w) for i, w in enumerate(self.weights))
        biases = tuple(_frozen(f"biases[{i}]", b) for i, b in enumerate(self.biases))
        width = weights[0].shape[1] if weights[0].ndim == 2 else -1
        for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if not (weight.ndim == 2 and weight.shape[1] == width and bias.shape == weight.shape[:1]):
                raise ValueError(f"Layer {i} must continue a width of {width}, got {weight.shape} and {bias.shape}.")
            width = weight.shape[0]
        if self.normalizer is not None and self.normalizer.mean.size != weights[0].shape[1]:
            raise ValueError(
                f"`normalizer` must have {weights[0].shape[1]} components, got {self.normalizer.mean.size}."
            )
        self._check_output(width)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "biases", biases)
        layers = tuple((w.astype(np.float64), b.astype(np.float64)) for w, b in zip(weights, biases, strict=True))
        object.__setattr__(self, "_layers", layers)
        object.__setattr__(self, "_digest", _content_hash(self._content()))

    def _check_output(self, width: int) -> None:
        if self.output_limit is not None and not 0.0 < self.output_limit < np.inf:
            raise ValueError(f"`output_limit` must be positive and finite, got {self.output_limit}.")
        if (self.low is None) != (self.high is None):
            raise ValueError("`low` and `high` must be given together, got one of them.")
        if self.low is not None and self.high is not None:
            low, high = _frozen("low", self.low, "float64"), _frozen("high", self.high, "float64")
            if not (low.shape == high.shape == (width,) and bool((low < high).all())):
                raise ValueError(f"`low` must be below `high`, with {width} components each, got {low} and {high}.")
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyActor) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        widths = "-".join(str(width) for width in (self.observation_size, *(len(bias) for bias in self.biases)))
        return f"<NumpyActor {widths} {self.activation}, digest {self.digest[:16]}>"

    @property
    def observation_size(self) -> int:
        """Length of the observation."""
        return int(self.weights[0].shape[1])

    @property
    def action_size(self) -> int:
        """Length of the center."""
        return int(self.weights[-1].shape[0])

    @property
    def digest(self) -> str:
        """SHA-256 of the format, the activations and every array: equal exactly when the actors are equal."""
        return self._digest

    def reset(self) -> None:
        """Do nothing: the actor has no memory."""

    def center(self, observation: ArrayLike) -> NDArray[np.float64]:
        """Return the answer to one observation, float64 of shape (action_size,)."""
        hidden = prepared(observation, self.normalizer, self.observation_size).astype(np.float64)
        activate = ACTIVATIONS[self.activation]
        for weight, bias in self._layers[:-1]:
            hidden = activate(weight @ hidden + bias)
        weight, bias = self._layers[-1]
        hidden = weight @ hidden + bias
        if self.output_limit is not None:
            hidden = np.clip(hidden, -self.output_limit, self.output_limit)
        hidden = ACTIVATIONS[self.output_activation](hidden)
        if self.low is not None and self.high is not None:
            hidden = self.low + 0.5 * (hidden + 1.0) * (self.high - self.low)
        return on_grid("actor", hidden)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the actor as an .npz file of plain arrays, atomically."""
        file = io.BytesIO()
        np.savez(file, **self._content())
        write_atomically(Path(path), file.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str] | BinaryIO) -> NumpyActor:
        """Read an .npz file written by `save`. Pickled objects are refused, so reading runs no code of the file."""
        source = Path(path) if isinstance(path, (str, os.PathLike)) else path.read()
        content: dict[str, NDArray[Any]] = dict(read_arrays(source, "The file"))
        found = str(content.pop("format", "none"))
        if found != FORMAT:
            raise ValueError(f"The file must have format {FORMAT!r}, got {found!r}. Export it again with this version.")
        count = sum(name.startswith("weight_") for name in content)
        names = {f"{kind}_{i}" for kind in ("weight", "bias") for i in range(count)}
        normalizer_names = {"mean", "std", "clip"} & content.keys()
        output_names = {"output_limit", "low", "high"} & content.keys()
        expected = names | {"activation", "output_activation"} | normalizer_names | output_names
        if content.keys() != expected or len(normalizer_names) not in (0, 3):
            raise ValueError(f"The file must hold exactly the arrays of an actor, got {sorted(content)}.")
        is_double = normalizer_names != set() and content["mean"].dtype == np.float64
        doubles = output_names | (normalizer_names if is_double else set())
        for name in sorted(names | normalizer_names | output_names):
            kind = "float64" if name in doubles else "float32"
            if content[name].dtype != kind:
                raise TypeError(f"`{name}` must be stored as {kind}, got {content[name].dtype}.")
        return cls(
            weights=tuple(content[f"weight_{i}"] for i in range(count)),
            biases=tuple(content[f"bias_{i}"] for i in range(count)),
            activation=str(content["activation"]),
            output_activation=str(content["output_activation"]),
            normalizer=FrozenNormalizer(
                mean=content["mean"],
                std=content["std"],
                clip=content["clip"],
                dtype="float64" if is_double else "float32",
            )
            if normalizer_names
            else None,
            output_limit=float(content["output_limit"]) if "output_limit" in content else None,
            low=content.get("low"),
            high=content.get("high"),
        )

    def _content(self) -> dict[str, NDArray[np.generic]]:
        content: dict[str, NDArray[np.generic]] = {
            "format": np.array(FORMAT),
            "activation": np.array(self.activation),
            "output_activation": np.array(self.output_activation),
        }
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            content[f"weight_{i}"], content[f"bias_{i}"] = weight, bias
        if self.normalizer is not None:
            content |= {"mean": self.normalizer.mean, "std": self.normalizer.std, "clip": self.normalizer.clip}
        if self.output_limit is not None:
            content["output_limit"] = np.array(self.output_limit, dtype=np.float64)
        if self.low is not None and self.high is not None:
            content |= {"low": self.low, "high": self.high}
        return content


def _frozen(name: str, value: ArrayLike, dtype: str = "float32") -> NDArray[Any]:
    array = np.array(value, dtype=dtype, order="C")
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"`{name}` must be finite, got a NaN or an infinity.")
    array.setflags(write=False)
    return array


def _content_hash(content: dict[str, NDArray[np.generic]]) -> str:
    running = hashlib.sha256()
    for name in sorted(content):
        array = content[name]
        # Little-endian bytes, so that the digest does not depend on the machine.
        text = str(array) if array.dtype.kind == "U" else f"{array.dtype.name} {array.shape}"
        running.update(f"{name}={text};".encode())
        if array.dtype.kind != "U":
            running.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    return running.hexdigest()


def prepared(
    observation: ArrayLike, normalizer: FrozenNormalizer | None, size: int | None = None
) -> NDArray[np.float32]:
    """Return the observation as a finite float32 vector, normalised if there is a normaliser.

    Args:
        observation: one observation.
        normalizer: None leaves it as it is.
        size: its length, if that is known without a normaliser.
    """
    size = size if normalizer is None else normalizer.mean.size
    x = np.asarray(observation, dtype=np.float32 if normalizer is None else normalizer.dtype)
    if not (x.ndim == 1 and size in (None, x.shape[0])):
        raise ValueError(
            f"`observation` must have shape ({'n' if size is None else size},), got {x.shape}. The policy was made for "
            "another environment, or the environment needs gymnasium's FlattenObservation."
        )
    if not bool(np.isfinite(x).all()):
        precision = "single" if x.dtype == np.float32 else "double"
        raise ValueError(f"`observation` must be finite in {precision} precision, got a NaN or an infinity.")
    return x if normalizer is None else normalizer(x)


def answered(name: str, answer: ArrayLike, *, is_score: bool = False) -> NDArray[np.float64]:
    """Return an answer as a new float64 vector. NaN, infinities, other shapes and other kinds are refused.

    A score may be -inf, which says that an action is not allowed.
    """
    given = np.asarray(answer)
    if given.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must return real numbers, got {type(answer).__name__} of {given.dtype}.")
    if not (given.ndim == 1 and given.size > 0):
        advice = " Return its first row." if given.ndim == 2 and len(given) == 1 else ""
        raise ValueError(f"`{name}` must return a vector, got shape {given.shape}.{advice}")
    vector = np.array(given, dtype=np.float64)
    allowed = np.where(np.isneginf(vector), 0.0, vector) if is_score else vector
    if not bool(np.isfinite(allowed).all()):
        raise ValueError(f"`{name}` must return finite numbers, got {vector}.")
    return vector


def on_grid(name: str, answer: ArrayLike) -> NDArray[np.float64]:
    """Return a checked answer, rounded to multiples of `GRID`."""
    return np.asarray(np.rint(answered(name, answer) / GRID) * GRID, dtype=np.float64)
