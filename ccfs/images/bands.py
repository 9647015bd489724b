"""The projected band: a learned nonconvex filter with a proved covariance bound at every center."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ccfs.certificates import checks
from ccfs.certificates.images import CovarianceProof, covariance_ratio
from ccfs.files.atomic import write_atomically
from ccfs.files.reading import read_arrays
from ccfs.images.data import ImageSet
from ccfs.images.filters import everything
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Band", "ProjectedBand", "fit_band", "load_band", "retained_fraction", "save_band"]

# Vectors from QR or one division by the norm pass with a margin of about a thousand.
_ORTHONORMAL = 1e-12
_FITTED_IMAGES = 5000  # more images change the principal components little and cost memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The condition inner <= |<direction, z> + offset| <= outer on a noisy image z in pixel units, not clipped."""

    direction: NDArray[np.float64]
    offset: float
    inner: float
    outer: float

    def __post_init__(self) -> None:
        vector = np.ascontiguousarray(self.direction, dtype=np.float64).reshape(-1).copy()
        if not np.all(np.isfinite(vector)):
            raise ValueError("`direction` must be finite.")
        vector.setflags(write=False)
        object.__setattr__(self, "direction", vector)
        object.__setattr__(self, "offset", checks.finite("offset", self.offset))
        inner, outer = checks.nonnegative("inner", self.inner), checks.positive("outer", self.outer)
        if not inner < outer:
            raise ValueError(f"`inner` must be below `outer`, got {inner} and {outer}.")


class ProjectedBand:
    """Retains a proposal that satisfies every band. The directions are orthonormal (paper, app:two-band).

    The exact Gram-Schmidt orthonormalisation of the stored vectors defines the rule. The vectors must be orthonormal to
    1e-12. The rule is evaluated in double precision. Directions, offsets and widths may be learned on other images.
    Pixels are taken in the order (height, width, channel).
    """

    def __init__(self, *bands: Band) -> None:
        if not bands:
            raise ValueError("`bands` must hold at least one band, got none.")
        sizes = {band.direction.shape[0] for band in bands}
        if len(sizes) != 1:
            raise ValueError(f"all directions must have the same number of pixels, got {sorted(sizes)}.")
        matrix = np.stack([band.direction for band in bands])
        error = float(np.abs(matrix @ matrix.T - np.eye(len(bands))).max())
        if not error <= _ORTHONORMAL:
            raise ValueError(
                f"directions must be orthonormal, the Gram matrix is off by {error:.3g}. Divide by the norm, or use QR."
            )
        self.bands = bands
        self._matrix = matrix
        self._copies: dict[str, Tensor] = {}

    @property
    def variants(self) -> tuple[str, ...]:
        """The single variant."""
        return ("projected-band",)

    @property
    def reads_inputs(self) -> bool:
        """True, so rejected proposals cost no model call."""
        return True

    def before(self, proposals: Tensor) -> Tensor:
        """Project each proposal and compare with every band."""
        require_torch()
        flat = proposals.permute(0, 2, 3, 1).reshape(len(proposals), -1).double()
        scores = flat @ self._directions(str(proposals.device))
        keep = everything(proposals)
        for position, band in enumerate(self.bands):
            size = (scores[:, position] + band.offset).abs()
            keep &= (size >= band.inner) & (size <= band.outer)
        return keep

    def _directions(self, device: str) -> Tensor:
        """Return the directions as columns on a device. They are copied there once."""
        import torch

        if device not in self._copies:
            self._copies[device] = torch.from_numpy(self._matrix.T.copy()).to(device)
        return self._copies[device]

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Retain every proposal, because `before` has decided."""
        return everything(logits)[None]

    def proof(self, sigma: float) -> CovarianceProof:
        """Return the global covariance bound (paper, app:two-band).

        Along each direction the retained coordinate is in an interval of length 2 * outer, so its variance is at most
        outer^2 (Popoviciu). The coordinates are independent, the event factorises, and the rest of the space stays
        Gaussian. Hence the ratio is the largest of 1 and (outer / sigma)^2, rounded up, at every center.
        """
        # The statement is part of the stored key of a run: another wording makes another run.
        return CovarianceProof(
            covariance_ratio=covariance_ratio([band.outer for band in self.bands], sigma),
            statement=(
                "each retained coordinate along the orthonormal directions lies in [-outer, outer] after its offset, "
                "so its variance is at most outer^2 (Popoviciu); the remaining Gaussian coordinates are independent of "
                "retention and unchanged"
            ),
        )

    def document(self) -> dict[str, object]:
        """Name the rule, its numbers and the hash of its directions."""
        return {
            "kind": "projected-band",
            "directions_sha256": hashlib.sha256(np.ascontiguousarray(self._matrix).tobytes()).hexdigest(),
            "bands": [{"offset": band.offset, "inner": band.inner, "outer": band.outer} for band in self.bands],
            "pixel_order": "height, width, channel",
        }


def fit_band(images: ImageSet, *, sigma: float, inner_ratio: float = 0.25, spread_ratio: float = 0.5) -> ProjectedBand:
    """Return a band along the principal component whose spread among images is nearest to `spread_ratio` times sigma.

    A larger spread would retain less. A smaller one would hardly depend on the image. The offset centers the images.
    The outer edge is sigma, so the covariance ratio is 1. The inner edge is `inner_ratio` times sigma. The fit uses the
    first 5,000 images at most, and neither labels nor a model.

    Args:
        images: training images only.
        sigma: noise scale.
        inner_ratio: inner over outer edge, in [0, 1).
        spread_ratio: standard deviation that the projected images should have, in units of sigma.
    """
    spread = checks.nonnegative("spread_ratio", spread_ratio) * sigma
    scale, ratio = checks.positive("sigma", sigma), checks.finite("inner_ratio", inner_ratio)
    if not 0.0 <= ratio < 1.0:
        raise ValueError(f"`inner_ratio` must be in [0, 1), got {ratio}.")
    if not len(images) >= 2:
        raise ValueError(f"`images` must hold at least 2 images, got {len(images)}.")
    used = images.images[:_FITTED_IMAGES]
    flat = used.reshape(len(used), -1).astype(np.float64) / 255.0
    mean = flat.mean(0)
    variances, vectors = np.linalg.eigh(np.cov((flat - mean).T))
    direction = vectors[:, int(np.abs(np.sqrt(np.maximum(variances, 0.0)) - spread).argmin())]
    direction = direction / np.linalg.norm(direction)
    return ProjectedBand(Band(direction=direction, offset=float(-direction @ mean), inner=ratio * scale, outer=scale))


def save_band(path: Path, band: Band) -> None:
    """Write one band as `.npz`. Fitting again on another machine may differ in the last bit, so the file counts."""
    content = io.BytesIO()
    np.savez_compressed(content, direction=band.direction, numbers=[band.offset, band.inner, band.outer])
    write_atomically(path, content.getvalue())


def load_band(path: Path) -> ProjectedBand:
    """Read the filter that `save_band` wrote."""
    saved = read_arrays(path, path)
    if saved.keys() != {"direction", "numbers"} or saved["numbers"].shape != (3,) or saved["direction"].ndim != 1:
        raise ValueError(f"{path}: must be a band as `ccfs image fit-band` writes it.")
    offset, inner, outer = (float(value) for value in saved["numbers"].tolist())
    direction = saved["direction"].astype(np.float64)
    return ProjectedBand(Band(direction=direction, offset=offset, inner=inner, outer=outer))


def retained_fraction(band: Band, images: ImageSet, sigma: float) -> NDArray[np.float64]:
    """Return for each image the probability that the band retains a noisy copy: the exact formula, in doubles."""
    flat = images.images.reshape(len(images), -1).astype(np.float64) / 255.0
    place = flat @ band.direction + band.offset
    upper = ndtr((band.outer - place) / sigma) - ndtr((band.inner - place) / sigma)
    lower = ndtr((-band.inner - place) / sigma) - ndtr((-band.outer - place) / sigma)
    return np.asarray(upper + lower, dtype=np.float64)
