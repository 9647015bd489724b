"""Filters retain exactly what they say, and only those with a proof carry one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ccfs.images import Band, CallableFilter, ConfidenceFilter, NoFilter, ProjectedBand

torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

SHAPE = (2, 3, 3)  # channels, height, width


def band(seed=0, **changes):
    direction = np.random.default_rng(seed).standard_normal(18)
    fields = {"direction": direction / np.linalg.norm(direction), "offset": 0.1, "inner": 0.25, "outer": 1.0}
    return Band(**{**fields, **changes})


def test_confidence_filter_is_strict_and_shares_logits_between_thresholds():
    even = torch.zeros(1, 2)  # both probabilities are exactly 1/2
    sure = torch.tensor([[3.0, 0.0]])
    rule = ConfidenceFilter(0.0, 0.5, 0.9)
    assert rule.variants == ("none", "confidence>0.5", "confidence>0.9")
    assert rule.after(even, torch.cat([even, sure])).tolist() == [[True, True], [False, True], [False, True]]


def test_confidence_filter_rejects_nan():
    assert not ConfidenceFilter(0.0).after(torch.zeros(1), torch.tensor([[math.nan, 0.0]])).any()


@pytest.mark.parametrize("thresholds", [(), (1.0,), (-0.1,), (math.nan,), (0.9, 0.9)])
def test_confidence_filter_refuses(thresholds):
    with pytest.raises(ValueError, match="threshold"):
        ConfidenceFilter(*thresholds)


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
