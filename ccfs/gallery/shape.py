"""The shapes of the gallery: retained sets that a user draws as boxes in a small TOML file, and the paper's three."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import _boxes
from ccfs.certificates.occupancy import BoxUnion
from ccfs.files.reading import RefusedFileError, read_text
from ccfs.files.toml import TomlError, read_toml

__all__ = ["EXAMPLE", "Shape", "load_shape", "paper_shapes", "read_shape"]

MOST_BOXES = 64
EXAMPLE = """\
title = "Two rooms and a door"    # optional
words = "Label 1 is the right room."  # optional
sigma = 0.3                       # scale of the Gaussian proposals
center = [0.35, 0.6]              # where to compare radii

[[box]]                           # interiors may touch, not overlap
low = [0.0, 0.0]
high = [1.0, 1.0]                 # inf and -inf are allowed
label = 0                         # the decision inside this box

[[box]]
low = [1.4, 0.0]
high = [2.4, 1.0]
label = 1

[[box]]
low = [1.0, 0.4]
high = [1.4, 0.6]
label = 0
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """A retained set in one or two dimensions, a label for each box, and the center at which radii are compared."""

    title: str
    words: str
    boxes: BoxUnion
    labels: tuple[int, ...]
    center: NDArray[np.float64]

    def __post_init__(self) -> None:
        if not 1 <= self.boxes.dim <= 2:
            raise ValueError(f"the gallery draws one or two dimensions, got {self.boxes.dim}.")
        if not self.boxes.count <= MOST_BOXES:
            raise ValueError(f"the gallery draws at most {MOST_BOXES} boxes, got {self.boxes.count}.")
        _boxes.checked_labels(self.labels, self.boxes.count)
        center = _boxes.checked_center("center", self.center, self.boxes.dim)
        if not center.ndim == 1:
            raise ValueError(f"`center` must be one point, got shape {center.shape}.")
        center.setflags(write=False)
        object.__setattr__(self, "center", center)


def load_shape(path: Path) -> Shape:
    """Read a shape from a TOML file. Every error names the file."""
    try:
        text = read_text(path)
    except (OSError, RefusedFileError) as error:
        raise ValueError(f"cannot read the shape {path}: {error}") from None
    try:
        return read_shape(text)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the shape {path} cannot be drawn: {error}") from None


def read_shape(text: str) -> Shape:
    """Read a shape from TOML: `sigma`, `center`, one or more `[[box]]` with `low`, `high` and `label`."""
    try:
        content = read_toml(text)
    except TomlError as error:
        raise ValueError(f"it is not valid TOML: {error}") from None
    _refuse_unknown("the file", content, {"title", "words", "sigma", "center", "box"}, {"sigma", "center", "box"})
    drawn = content["box"]
    if not (isinstance(drawn, list) and all(isinstance(entry, dict) for entry in drawn)):
        raise TypeError("`box` must be written as [[box]] tables.")
    for number, entry in enumerate(drawn):
        _refuse_unknown(f"box {number}", entry, {"low", "high", "label"}, {"low", "high"})
    lows, highs = (
        [_numbers(f"`{side}` of box {number}", entry[side]) for number, entry in enumerate(drawn)]
        for side in ("low", "high")
    )
    lengths = {len(side) for side in (*lows, *highs)}
    if len(lengths) != 1:
        raise ValueError(f"every `low` and `high` must have one length, got lengths {sorted(lengths)}.")
    sigma = content["sigma"]
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)):
        raise TypeError(f"`sigma` must be a number, got {sigma!r}.")
    labels = [entry.get("label", 0) for entry in drawn]
    if not all(isinstance(label, int) and not isinstance(label, bool) for label in labels):
        raise TypeError(f"`label` must be an integer, got {labels}.")
    return Shape(
        title=str(content.get("title", "A drawn shape")),
        words=str(content.get("words", "")),
        boxes=BoxUnion(lows, highs, float(sigma)),
        labels=tuple(labels),
        center=np.asarray(_numbers("`center`", content["center"])),
    )


def paper_shapes() -> tuple[Shape, Shape, Shape]:
    """Return the three witnesses of the paper as shapes, in doubles."""
    inf = float("inf")
    return (
        Shape(
            title="Confidence filter",
            words="Proposals are kept when a softmax exceeds 0.9: two tails, label 0 left and label 1 right.",
            boxes=BoxUnion([[-inf], [1.0]], [[-1.0], [inf]], 1.0),
            labels=(0, 1),
            center=np.asarray([-0.1]),
        ),
        Shape(
            title="L-shape",
            words="A compact, connected set. Label 0 is the event z₁ ≤ 0.633.",
            boxes=BoxUnion([[0.0, 0.0], [0.633, 0.0], [0.0, 0.5]], [[0.633, 0.5], [1.0, 0.5], [0.5, 1.0]], 0.15),
            labels=(0, 1, 0),
            center=np.asarray([0.65, 0.49]),
        ),
        Shape(
            title="Two bands",
            words="Two horizontal bands without end, labelled by band. Conditioning never widens the law here.",
            boxes=BoxUnion([[-inf, -1.0], [-inf, 0.9]], [[inf, -0.9], [inf, 1.0]], 1.0),
            labels=(0, 1),
            center=np.asarray([0.0, -0.1]),
        ),
    )


def _refuse_unknown(where: str, content: dict[str, object], known: set[str], needed: set[str]) -> None:
    unknown, missing = sorted(set(content) - known), sorted(needed - set(content))
    if unknown:
        raise ValueError(f"{where} has keys that mean nothing here: {', '.join(unknown)}. Known: {sorted(known)}.")
    if missing:
        raise ValueError(f"{where} lacks {', '.join(missing)}.")


def _numbers(name: str, value: object) -> list[float]:
    if not (isinstance(value, list) and value):
        raise TypeError(f"{name} must be a list of numbers, got {value!r}.")
    if any(isinstance(entry, bool) or not isinstance(entry, (int, float)) for entry in value):
        raise TypeError(f"{name} must be a list of numbers, got {value!r}.")
    return [float(entry) for entry in value]
