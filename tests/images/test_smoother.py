"""Counts do not depend on batching, and certificates are held against classifiers whose boundary is known exactly."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from ccfs.certificates.filtered import Abstention, JointMassCertificate
from ccfs.certificates.images import Rule, verdict
from ccfs.images import (
    Band,
    CallableFilter,
    ConfidenceFilter,
    FilteredSmoother,
    NoFilter,
    NoiseStream,
    ProjectedBand,
)
from ccfs.images.smoother import Counter, as_center

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

SIGMA = 0.5


class Halfspace(nn.Module):
    """Label 0 where the first pixel is positive, so the boundary is at 0. `steepness` makes it confident."""

    def __init__(self, steepness: float = 4.0) -> None:
        super().__init__()
        self.steepness = steepness
        self.eval()

    def forward(self, images):
        score = self.steepness * images[:, 0, 0, 0]
        return torch.stack([score, -score, torch.full_like(score, -50.0)], 1)


def image(first: float) -> np.ndarray:
    array = np.zeros((2, 4, 4))
    array[0, 0, 0] = first
    return array


def counts(rule, batch, trials=999, model=None):
    center = as_center(image(0.3))
    noise = NoiseStream(run="test", seed=1, index=0, purpose="estimation", dimension=center.size)
    return Counter(model or Halfspace(), SIGMA, rule, 3, batch).count(center, noise, trials)


FIRST = np.eye(32)[0]
RULES = [
    NoFilter(),
    ConfidenceFilter(0.0, 0.5, 0.9),
    ProjectedBand(Band(direction=FIRST, offset=0.0, inner=0.1, outer=0.5)),
    CallableFilter(lambda proposals: proposals[:, 1, 2, 2] > 0.2, name="pixel"),
    CallableFilter(lambda proposals, logits: logits[:, 0] > 1.0, name="logit", reads_logits=True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.variants[-1])
def test_counts_do_not_depend_on_the_batch_size(rule):
    expected = counts(rule, 999)
    assert all(item.trials == 999 for item in expected)
    assert any(item.rejected for item in expected) == (not isinstance(rule, NoFilter))
    for batch in (1, 7, 64, 500, 5000):
        assert counts(rule, batch) == expected


def test_counts_equal_a_plain_recount():
    """Oracle: numpy on the same noise, one proposal after another."""
    center = as_center(image(0.3))
    noise = NoiseStream(run="test", seed=1, index=0, purpose="estimation", dimension=32)
    tally, rejected = [0, 0, 0], 0
    rows = torch.empty((128, 32))
    noise.reader().fill(rows)
    for row in rows.numpy():
        first = np.float32(center.ravel()[0] + np.float32(SIGMA) * row[0])
        score = 4.0 * float(first)
        if 1.0 / (1.0 + math.exp(-2.0 * abs(score))) > 0.9:
            tally[0 if score >= 0 else 1] += 1
        else:
            rejected += 1
    (found,) = counts(ConfidenceFilter(0.9), 50, trials=128)
    assert (list(found.retained), found.rejected) == (tally, rejected)


def test_filter_before_the_model_saves_its_calls():
    center = as_center(image(0.3))
    counter = Counter(Halfspace(), SIGMA, RULES[2], 3, 64)
    (found,) = counter.count(center, NoiseStream(run="test", seed=1, index=0, purpose="e", dimension=32), 1000)
    assert counter.model_calls == sum(found.retained) < 1000


def test_memory_does_not_grow_with_the_number_of_proposals():
    peaks = []
    for trials in (500, 20_000):
        tracemalloc.start()
        counts(RULES[1], 100, trials=trials)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_logits_that_are_not_finite_count_as_rejected():
    class Broken(Halfspace):
        def forward(self, images):
            logits = super().forward(images)
            logits[images[:, 0, 0, 0] < 0] = math.nan
            return logits

    (found,) = counts(NoFilter(), 100, model=Broken())
    assert found.rejected > 0
    assert found.retained[1] == 0


@pytest.mark.parametrize("first", [0.05, 0.2, 0.4, 0.8])
def test_certified_radius_stays_below_the_known_boundary_where_substitution_crosses_it(first):
    """The decision changes where the first pixel is 0, for the filtered classifier too, by symmetry."""
    rule, trials = ConfidenceFilter(0.9), 20_000
    model = Halfspace(steepness=1.5)
    certified = FilteredSmoother(model, SIGMA, rule, 3).certify(image(first), 200, trials, 0.001, 1000)
    assert isinstance(certified, JointMassCertificate)
    assert certified.label == 0
    assert 0.0 < certified.radius < np.float32(first)
    center = as_center(image(first))
    drawn = [
        Counter(model, SIGMA, rule, 3, 1000).count(
            center, NoiseStream(run="smoother", seed=0, index=0, purpose=purpose, dimension=32), total
        )[0]
        for purpose, total in (("selection", 200), ("estimation", trials))
    ]
    assert verdict(Rule.SIMULTANEOUS, *drawn, sigma=SIGMA, delta=0.001).radius == certified.radius
    assert verdict(Rule.SUBSTITUTED, *drawn, sigma=SIGMA, delta=0.001).radius > first


def test_certify_holds_with_the_promised_frequency():
    """200 certificates at delta 0.2 of an unfiltered halfspace, whose radius is 0.1: at most 60 may exceed it.

    If each exceeds with probability 0.2 at most, more than 60 do with probability below 1e-3.
    """
    smoother = FilteredSmoother(Halfspace(), SIGMA, NoFilter(), 3)
    above = 0
    for index in range(200):
        answer = smoother.certify(image(0.1), 50, 200, 0.2, 200, index=index)
        above += isinstance(answer, JointMassCertificate) and (answer.label != 0 or answer.radius > np.float32(0.1))
    assert stats.binom.sf(60, 200, 0.2) < 1e-3
    assert above <= 60


def test_certify_abstains_when_everything_is_rejected():
    nothing = CallableFilter(lambda proposals: torch.zeros(len(proposals), dtype=torch.bool), name="nothing")
    smoother = FilteredSmoother(Halfspace(), SIGMA, nothing, 3)
    answer = smoother.certify(image(0.9), 100, 1000, 0.001, 128)
    assert isinstance(answer, Abstention)
    assert "no selection proposal was retained" in answer.reason
    assert isinstance(smoother.predict(image(0.9), 100, 0.001, 128), Abstention)


def test_certify_repeats_and_indices_differ():
    smoother = FilteredSmoother(Halfspace(), SIGMA, ConfidenceFilter(0.9), 3, seed=5)
    first = smoother.certify(image(0.4), 50, 400, 0.01, 64)
    assert smoother.certify(torch.from_numpy(image(0.4)), 50, 400, 0.01, 11) == first
    assert smoother.certify(image(0.4), 50, 400, 0.01, 64, index=1) != first


def test_predict_names_the_winner_and_abstains_at_a_tie():
    smoother = FilteredSmoother(Halfspace(), SIGMA, ConfidenceFilter(0.5), 3)
    assert smoother.predict(image(0.5), 200, 0.001, 64) == 0
    assert smoother.predict(image(-0.5), 200, 0.001, 64) == 1
    assert isinstance(smoother.predict(image(0.0), 200, 0.001, 64), Abstention)


def test_training_mode_is_refused():
    with pytest.raises(ValueError, match="evaluation mode"):
        counts(NoFilter(), 10, model=Halfspace().train())


@pytest.mark.parametrize("shape", [(100,), (2, 100), (1, 99)])
def test_a_filter_of_the_users_that_answers_with_another_shape_is_refused(shape):
    class Wrong(ConfidenceFilter):
        def after(self, proposals, logits):
            return torch.ones(shape, dtype=torch.bool)

    with pytest.raises(TypeError, match="bool tensor of shape"):
        counts(Wrong(0.9), 100, trials=100)


def test_wrong_number_of_logits_is_refused():
    counter = Counter(Halfspace(), SIGMA, NoFilter(), 4, 10)
    with pytest.raises(ValueError, match="logits"):
        counter.count(as_center(image(0.1)), NoiseStream(run="test", seed=0, index=0, purpose="e", dimension=32), 10)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.zeros((4, 4)), TypeError),
        (np.zeros((1, 4, 4), dtype=np.uint8), TypeError),
        (np.full((1, 4, 4), math.nan), ValueError),
        (torch.full((1, 4, 4), math.inf), ValueError),
    ],
)
def test_certify_refuses_images(x, error):
    with pytest.raises(error, match="`x`"):
        FilteredSmoother(Halfspace(), SIGMA, NoFilter(), 3).certify(x, 10, 10, 0.1, 10)


@pytest.mark.parametrize("changes", [{"n0": 0}, {"n": -1}, {"delta": 0.0}, {"delta": math.nan}, {"batch_size": 0}])
def test_certify_refuses_sizes(changes):
    sizes = {"n0": 10, "n": 10, "delta": 0.1, "batch_size": 10, **changes}
    with pytest.raises(ValueError, match=f"`{next(iter(changes))}`"):
        FilteredSmoother(Halfspace(), SIGMA, NoFilter(), 3).certify(image(0.1), **sizes)


def test_smoother_refuses_several_variants():
    with pytest.raises(ValueError, match="one variant"):
        FilteredSmoother(Halfspace(), SIGMA, ConfidenceFilter(0.0, 0.9), 3)
