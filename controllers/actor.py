"""A feed-forward actor in plain numpy with a frozen normaliser: what the zoo ships and what certificates run."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccfs.files.atomic import write_atomically
from ccfs.files.reading import read_arrays

__all__ = ["ACTIVATIONS", "FORMAT", "GRID", "FrozenNormalizer", "NumpyActor", "answered", "on_grid", "single_precision"]

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
    """The map clip((observation - mean) / std, -clip, clip) in single precision. It never learns."""

    mean: NDArray[np.float32]
    std: NDArray[np.float32]
    clip: NDArray[np.float32]

    def __post_init__(self) -> None:
        mean = _frozen("mean", self.mean)
        if mean.ndim != 1:
            raise ValueError(f"`mean` must have one dimension, got shape {mean.shape}.")
        object.__setattr__(self, "mean", mean)
        for name in ("std", "clip"):
            value = _frozen(name, np.broadcast_to(np.asarray(getattr(self, name)), mean.shape))
            if not bool((value > 0.0).all()):
                raise ValueError(f"`{name}` must be positive everywhere, got {value.min()}.")
            object.__setattr__(self, name, value)

    def __call__(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the normalised observation."""
        scaled = (observation - self.mean) / self.std
        return np.asarray(np.minimum(np.maximum(scaled, -self.clip), self.clip), dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NumpyActor:
    """The mean action of a trained policy: normaliser, then fully connected layers. Satisfies `Controller`.

    Observations are cast to float32 and normalised in float32, as in training. The layers run in float64. The answer is
    rounded to a multiple of `GRID`, so that it does not depend on the machine's matrix library. It is not clipped,
    because the program clips the center to the action box.

    Args:
        weights: one matrix per layer, shape (outputs, inputs), as torch stores them.
        biases: one vector per layer.
        activation: between layers, a key of `ACTIVATIONS`.
        output_activation: after the last layer.
        normalizer: applied to the observation first, or None.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    activation: str
    output_activation: str = "identity"
    normalizer: FrozenNormalizer | None = None
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
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "biases", biases)
        layers = tuple((w.astype(np.float64), b.astype(np.float64)) for w, b in zip(weights, biases, strict=True))
        object.__setattr__(self, "_layers", layers)
        object.__setattr__(self, "_digest", _content_hash(self._content()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyActor) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self._digest)

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
        """Return the mean action for one observation, float64 of shape (action_size,)."""
        x = single_precision(observation, self.observation_size)
        if self.normalizer is not None:
            x = self.normalizer(x)
        hidden = x.astype(np.float64)
        activate, last = ACTIVATIONS[self.activation], len(self._layers) - 1
        for i, (weight, bias) in enumerate(self._layers):
            hidden = weight @ hidden + bias
            hidden = (ACTIVATIONS[self.output_activation] if i == last else activate)(hidden)
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
        content: dict[str, Any] = dict(read_arrays(source, "The file"))
        found = str(content.pop("format", "none"))
        if found != FORMAT:
            raise ValueError(f"The file must have format {FORMAT!r}, got {found!r}. Export it again with this version.")
        count = sum(name.startswith("weight_") for name in content)
        names = {f"{kind}_{i}" for kind in ("weight", "bias") for i in range(count)}
        normalizer_names = {"mean", "std", "clip"} & content.keys()
        expected = names | {"activation", "output_activation"} | normalizer_names
        if content.keys() != expected or len(normalizer_names) not in (0, 3):
            raise ValueError(f"The file must hold exactly the arrays of an actor, got {sorted(content)}.")
        for name in sorted(names | normalizer_names):
            if content[name].dtype != np.float32:
                raise TypeError(f"`{name}` must be stored as float32, got {content[name].dtype}.")
        return cls(
            weights=tuple(content[f"weight_{i}"] for i in range(count)),
            biases=tuple(content[f"bias_{i}"] for i in range(count)),
            activation=str(content["activation"]),
            output_activation=str(content["output_activation"]),
            normalizer=FrozenNormalizer(mean=content["mean"], std=content["std"], clip=content["clip"])
            if normalizer_names
            else None,
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
        return content


def _frozen(name: str, value: ArrayLike) -> NDArray[np.float32]:
    array = np.array(value, dtype=np.float32, order="C")
    if not bool(np.isfinite(array).all()):
        raise ValueError(f"`{name}` must be finite, got a NaN or an infinity.")
    array.setflags(write=False)
    return array


def _content_hash(content: dict[str, NDArray[np.generic]]) -> str:
    running = hashlib.sha256()
    for name in sorted(content):
        array = content[name]
        # Little-endian bytes, so that the digest does not depend on the machine.
        text = str(array) if array.dtype.kind == "U" else f"float32 {array.shape}"
        running.update(f"{name}={text};".encode())
        if array.dtype.kind != "U":
            running.update(array.astype("<f4").tobytes())
    return running.hexdigest()


def single_precision(observation: ArrayLike, size: int | None = None) -> NDArray[np.float32]:
    """Return the observation as a finite float32 vector, of length `size` if that is known."""
    x = np.asarray(observation, dtype=np.float32)
    if not (x.ndim == 1 and size in (None, x.shape[0])):
        raise ValueError(f"`observation` must have shape ({'n' if size is None else size},), got {x.shape}.")
    if not bool(np.isfinite(x).all()):
        raise ValueError("`observation` must be finite in single precision, got a NaN or an infinity.")
    return x


def answered(name: str, answer: ArrayLike) -> NDArray[np.float64]:
    """Return an answer as a new float64 vector. NaN, infinities, other shapes and other kinds are refused."""
    given = np.asarray(answer)
    if given.dtype.kind not in "biuf":
        raise TypeError(f"`{name}` must return real numbers, got {type(answer).__name__} of {given.dtype}.")
    if not (given.ndim == 1 and given.size > 0):
        raise ValueError(f"`{name}` must return a vector, got shape {given.shape}.")
    vector = np.array(given, dtype=np.float64)
    if not bool(np.isfinite(vector).all()):
        raise ValueError(f"`{name}` must return finite numbers, got {vector}.")
    return vector


def on_grid(name: str, answer: ArrayLike) -> NDArray[np.float64]:
    """Return a checked answer, rounded to multiples of `GRID`."""
    return np.asarray(np.rint(answered(name, answer) / GRID) * GRID, dtype=np.float64)
