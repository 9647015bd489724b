"""Search finds the boundary, and a confirmation proves both labels and the distance on fresh noise."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
import torch
from image_toys import SIGMA, Halfspace, made_up

from ccfs.certificates.images import LabelCounts
from ccfs.images import ConfidenceFilter
from ccfs.images.attack import SearchPlan, cohort, confirm, distance_upper, family_size, search
from ccfs.images.smoother import Counter

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

PLAN = SearchPlan(restarts=3, steps=12, proposals=64, screen=400, threshold=0.9)


def test_confirmation_needs_both_labels_and_a_short_distance():
    counter = Counter(Halfspace(), SIGMA, ConfidenceFilter(0.9), 3, 1000)
    center = made_up().center(6)

    def result(first, **changes):
        moved = center.copy()
        moved[0, 0, 0] = first
        fields = {"original": 0, "changed": 1, "trials": 3000, "sigma": SIGMA, "delta": 0.001, "members": 5}
        return confirm(counter, center, moved, **{**fields, "run": "test", "seed": 0, "index": 0, **changes})

    assert result(0.4).is_verified
    assert not result(0.55).is_changed  # same side
    far = result(-1.5)
    assert far.is_changed
    assert not far.is_verified  # outside the substituted radius
    assert not result(0.4, original=1, changed=0).is_changed
    assert not result(0.4, trials=10).is_changed
    assert result(0.4).error_each <= 0.001 / family_size(5, 3)


def test_search_finds_the_direction_of_the_boundary():
    counter = Counter(Halfspace(), SIGMA, ConfidenceFilter(0.9), 3, 1000)
    center = made_up().center(4)
    found = search(
        counter,
        center,
        LabelCounts(retained=(90, 10, 0), rejected=0),
        original=0,
        radius=0.5,
        sigma=SIGMA,
        plan=PLAN,
        run="test",
        seed=0,
        index=4,
    )
    assert len(found) == 6
    assert [item.margin for item in found] == sorted((item.margin for item in found), reverse=True)
    assert found[0].margin > 0
    assert all(distance_upper(center, item.center) <= 0.5 for item in found)


def test_cohort_is_ranked_by_hash():
    order = sorted(range(50), key=lambda i: hashlib.sha256(f"s:{i}".encode()).hexdigest())
    assert cohort(50, 20, "s") == tuple(order[:20])
    with pytest.raises(ValueError, match="`size`"):
        cohort(5, 6, "s")


def test_family_size_is_the_papers():
    assert family_size(128, 10) == 2432


def test_distance_is_rounded_up_from_the_exact_value():
    center, moved = np.zeros((1, 1, 3), dtype=np.float32), np.array([[[0.1, 0.2, 0.3]]], dtype=np.float32)
    squared = math.fsum(float(value) ** 2 for value in moved.ravel())
    assert distance_upper(center, moved) >= math.sqrt(squared)
    assert distance_upper(center, moved) == pytest.approx(math.sqrt(squared), rel=1e-15)
    assert distance_upper(center, center) == 0.0


@pytest.mark.parametrize("changes", [{"ranking": "best"}, {"steps": 0}, {"reach": math.nan}])
def test_search_plan_refuses(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        SearchPlan(**{**PLAN.model_dump(), **changes})
