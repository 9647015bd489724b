"""The bound rules by name: each is its function, and each states its own sampling premise."""

from __future__ import annotations

import pytest

from ccfs.certificates.binomial import anytime_lower, clopper_pearson_lower, cohort_lower, hoeffding_lower
from ccfs.certificates.bounds import Bound


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("hoeffding", hoeffding_lower),
        ("cohort", cohort_lower),
        ("clopper-pearson", clopper_pearson_lower),
        ("anytime", anytime_lower),
    ],
)
def test_bound_lower_is_its_function(name: str, function) -> None:
    for successes in (0, 1, 7, 20):
        assert Bound(name).lower(successes, 20, delta=0.1) == function(successes, 20, delta=0.1)


def test_bounds_state_different_premises_for_cohorts_and_iid_draws() -> None:
    assert "cohort" in Bound.COHORT.premise
    assert "cohort" in Bound.HOEFFDING.premise
    assert "one initial law" in Bound.CLOPPER_PEARSON.premise
    assert "any time" in Bound.ANYTIME.premise
