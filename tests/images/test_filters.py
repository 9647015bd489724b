"""Filters retain exactly what they say, and a band's proof holds against sampled covariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import ortho_group

from ccfs.images import Band, CallableFilter, ConfidenceFilter, NoFilter, ProjectedBand

torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

SHAPE = (2, 3, 3)  # channels, height, width


def band(seed=0, **changes):
    direction = np.random.default_rng(seed).standard_normal(18)
    fields = {"direction": direction / np.linalg.norm(direction), "offset": 0.1, "inner": 0.25, "outer": 1.0}
    return Band(**{**fields, **changes})


def product(count, **changes):
    rows = ortho_group.rvs(18, random_state=1)[:count]
    return ProjectedBand(*(band(direction=row, **changes) for row in rows))


def test_confidence_filter_is_strict_and_shares_logits_between_thresholds():
    even = torch.zeros(1, 2)  # both probabilities are exactly 1/2
    sure = torch.tensor([[3.0, 0.0]])
    rule = ConfidenceFilter(0.0, 0.5, 0.9)
    assert rule.arms == ("none", "confidence>0.5", "confidence>0.9")
    assert rule.after(even, torch.cat([even, sure])).tolist() == [[True, True], [False, True], [False, True]]


def test_confidence_filter_rejects_nan():
    assert not ConfidenceFilter(0.0).after(torch.zeros(1), torch.tensor([[math.nan, 0.0]])).any()


@pytest.mark.parametrize("thresholds", [(), (1.0,), (-0.1,), (math.nan,), (0.9, 0.9)])
def test_confidence_filter_refuses(thresholds):
    with pytest.raises(ValueError, match="threshold"):
        ConfidenceFilter(*thresholds)


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
    """Sampled covariance against the analytic bound along each direction; 5 standard errors of slack."""
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


@pytest.mark.parametrize("answer", [True, torch.ones(4), torch.ones(3, dtype=torch.bool), np.ones(4, dtype=bool), None])
def test_callable_filter_stops_on_anything_but_a_mask(answer):
    rule = CallableFilter(lambda proposals: answer, name="mine")
    with pytest.raises(TypeError, match="mine"):
        rule.before(torch.zeros(4, *SHAPE))


@pytest.mark.parametrize("name", ["", "none"])
def test_callable_filter_refuses_the_name_of_no_filter(name):
    with pytest.raises(ValueError, match="`name`"):
        CallableFilter(lambda proposals: proposals, name=name)


def test_only_filters_with_a_proof_carry_one():
    assert NoFilter().proof(0.25).covariance_ratio == 1.0
    assert ConfidenceFilter(0.9).proof(0.25) is None
    assert CallableFilter(lambda p: p, name="mine").proof(0.25) is None


def test_documents_identify_the_rule():
    documents = [
        NoFilter().document(),
        ConfidenceFilter(0.9).document(),
        ConfidenceFilter(0.8).document(),
        ProjectedBand(band(0)).document(),
        ProjectedBand(band(1)).document(),
        ProjectedBand(band(0, outer=0.9)).document(),
        CallableFilter(lambda p: p, name="mine").document(),
    ]
    assert len({repr(document) for document in documents}) == len(documents)
