"""Choose a projected band on training images, so that test images meet a fixed filter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from ccfs.certificates import checks
from ccfs.images.bands import Band, ProjectedBand
from ccfs.images.data import ImageSet

__all__ = ["fit_band", "retained_fraction"]


def fit_band(images: ImageSet, *, sigma: float, inner_ratio: float = 0.25, spread_ratio: float = 0.5) -> ProjectedBand:
    """Return a band along the principal component whose spread among images is nearest to `spread_ratio` times sigma.

    A larger spread would retain less, a smaller one would hardly depend on the image. The offset centers the images,
    the outer edge is sigma, for which the covariance ratio is 1, and the inner edge is `inner_ratio` times that. At
    most 5,000 images are used, and neither labels nor a model.

    Args:
        images: training images only.
        sigma: noise scale.
        inner_ratio: inner over outer edge, in [0, 1).
        spread_ratio: wanted standard deviation of the projected images, in units of sigma.
    """
    spread = checks.nonnegative("spread_ratio", spread_ratio) * sigma
    scale, ratio = checks.positive("sigma", sigma), checks.finite("inner_ratio", inner_ratio)
    if not 0.0 <= ratio < 1.0:
        raise ValueError(f"`inner_ratio` must be in [0, 1), got {ratio}.")
    if not len(images) >= 2:
        raise ValueError(f"`images` must hold at least 2 images, got {len(images)}.")
    flat = images.images[:5000].reshape(min(len(images), 5000), -1).astype(np.float64) / 255.0
    mean = flat.mean(0)
    variances, vectors = np.linalg.eigh(np.cov((flat - mean).T))
    direction = vectors[:, int(np.abs(np.sqrt(np.maximum(variances, 0.0)) - spread).argmin())]
    direction = direction / np.linalg.norm(direction)
    return ProjectedBand(Band(direction=direction, offset=float(-direction @ mean), inner=ratio * scale, outer=scale))


def retained_fraction(band: Band, images: ImageSet, sigma: float) -> NDArray[np.float64]:
    """Return the exact probability, to double precision, that noise around each image is retained by one band."""
    flat = images.images.reshape(len(images), -1).astype(np.float64) / 255.0
    place = flat @ band.direction + band.offset
    upper = ndtr((band.outer - place) / sigma) - ndtr((band.inner - place) / sigma)
    lower = ndtr((-band.inner - place) / sigma) - ndtr((-band.outer - place) / sigma)
    return np.asarray(upper + lower, dtype=np.float64)
