"""The projected band: a learned nonconvex filter that carries a proof of its covariance bound at every center."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.images import CovarianceProof, covariance_ratio
from ccfs.images.filters import everything
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Band", "ProjectedBand"]

_ORTHONORMAL = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One condition: inner <= |<direction, z> + offset| <= outer, for a raw noisy image z in pixel units."""

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
    """Retains a proposal that satisfies every band; the directions are orthonormal (paper, app:two-band).

    The rule is defined by the exact Gram-Schmidt orthonormalisation of the stored vectors, which must be orthonormal to
    1e-12; it is evaluated in double precision. Directions, offsets and widths may be learned, on other images.
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

    @property
    def arms(self) -> tuple[str, ...]:
        """The single arm."""
        return ("projected-band",)

    @property
    def reads_inputs(self) -> bool:
        """True: rejected proposals cost no model call."""
        return True

    def before(self, proposals: Tensor) -> Tensor:
        """Project each proposal and compare with every band."""
        require_torch()
        import torch

        flat = proposals.permute(0, 2, 3, 1).reshape(len(proposals), -1).double()
        scores = flat @ torch.from_numpy(self._matrix.T.copy())
        keep = torch.ones(len(proposals), dtype=torch.bool)
        for position, band in enumerate(self.bands):
            size = (scores[:, position] + band.offset).abs()
            keep &= (size >= band.inner) & (size <= band.outer)
        return keep

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Everything that reached the model is retained."""
        return everything(logits)[None]

    def proof(self, sigma: float) -> CovarianceProof:
        """Return the global covariance bound (paper, app:two-band).

        Along each direction the retained coordinate lies in an interval of length 2 * outer, so that its variance is at
        most outer^2 (Popoviciu); the coordinates are independent, the event factorises, and the rest of the space
        stays Gaussian. Hence the ratio is the largest of 1 and (outer / sigma)^2, rounded up, at every center.
        """
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
