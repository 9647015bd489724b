"""A band retains exactly what it says, and its proof holds against sampled covariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from ccfs.images import Band, ImageSet, ProjectedBand
from ccfs.images.bands import fit_band, load_band, retained_fraction, save_band

torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

SHAPE = (2, 3, 3)  # channels, height, width


def band(seed=0, **changes):
    direction = np.random.default_rng(seed).standard_normal(18)
    fields = {"direction": direction / np.linalg.norm(direction), "offset": 0.1, "inner": 0.25, "outer": 1.0}
    return Band(**{**fields, **changes})


def product(count, **changes):
    rows = ortho_group.rvs(18, random_state=1)[:count]
    return ProjectedBand(*(band(direction=row, **changes) for row in rows))


def test_band_retains_by_pixel_order_height_width_channel():
    rule = ProjectedBand(band())
    proposals = torch.randn(200, *SHAPE, generator=torch.Generator().manual_seed(0))
    size = [abs(float(rule.bands[0].direction @ p.permute(1, 2, 0).double().numpy().ravel()) + 0.1) for p in proposals]
    expected = [0.25 <= value <= 1.0 for value in size]
    assert rule.before(proposals).tolist() == expected
    assert 20 < sum(expected) < 180


def test_band_gives_the_same_answer_for_channels_last_images():
    rule = product(2)
    proposals = torch.randn(64, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert torch.equal(rule.before(proposals), rule.before(proposals.contiguous(memory_format=torch.channels_last)))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("shift", [0.0, 0.7, -1.5])
def test_band_covariance_is_below_its_proof_at_every_center_tried(count, shift):
    """Compare the sampled covariance with the analytic bound, with 5 standard errors of slack."""
    sigma, rule = 1.0, product(count)
    matrix = np.stack([item.direction for item in rule.bands])
    rng = np.random.default_rng(4)
    center = shift * matrix.sum(0)
    drawn = center + sigma * rng.standard_normal((200_000, 18))
    keep = rule.before(torch.from_numpy(drawn).reshape(-1, 3, 3, 2).permute(0, 3, 1, 2)).numpy()
    retained = drawn[keep]
    assert len(retained) > 1000
    ratio = rule.proof(sigma).covariance_ratio
    assert ratio == 1.0
    along = np.var(retained @ matrix.T, axis=0)
    assert np.all(along <= ratio * sigma**2)
    top = float(np.linalg.eigvalsh(np.cov(retained.T)).max())
    assert top <= ratio * sigma**2 * (1 + 5 * math.sqrt(2 * 18 / len(retained)))


def test_band_proof_grows_when_the_band_is_wider_than_the_noise():
    assert ProjectedBand(band(outer=2.0)).proof(1.0).covariance_ratio == 4.0
    assert ProjectedBand(band(outer=0.3)).proof(0.25).covariance_ratio >= 1.44


def test_band_refuses_directions_that_are_not_orthonormal():
    with pytest.raises(ValueError, match="orthonormal"):
        ProjectedBand(band(direction=np.full(18, 1.0)))
    with pytest.raises(ValueError, match="orthonormal"):
        ProjectedBand(band(0), band(1))


@pytest.mark.parametrize(
    "changes",
    [{"inner": 1.0}, {"inner": -0.1}, {"outer": math.inf}, {"offset": math.nan}, {"direction": np.full(18, math.nan)}],
)
def test_band_refuses_bad_numbers(changes):
    with pytest.raises(ValueError, match="must be"):
        band(**changes)


@pytest.mark.slow
def test_fitted_band_has_ratio_one_and_retains_what_its_formula_says():
    images = ImageSet(
        name="made-up",
        images=np.random.default_rng(0).integers(0, 256, (300, 4, 4, 2), dtype=np.uint8),
        labels=np.zeros(300, dtype=np.int64),
        classes=("a", "b"),
    )
    rule = fit_band(images, sigma=0.5)
    assert rule.proof(0.5).covariance_ratio == 1.0
    expected = retained_fraction(rule.bands[0], images, 0.5)
    noise = np.random.default_rng(1).standard_normal((300, 200, 4, 4, 2))
    drawn = torch.from_numpy(images.images[:, None] / 255.0 + 0.5 * noise).reshape(-1, 4, 4, 2).permute(0, 3, 1, 2)
    kept = rule.before(drawn).double().reshape(300, 200).mean(1).numpy()
    assert np.abs(kept - expected).max() < 5 * math.sqrt(0.25 / 200)
    assert abs(kept.mean() - expected.mean()) < 5 * math.sqrt(0.25 / 60_000)


def test_saved_band_is_the_same_filter(tmp_path):
    save_band(tmp_path / "band.npz", band())
    assert load_band(tmp_path / "band.npz").document() == ProjectedBand(band()).document()
