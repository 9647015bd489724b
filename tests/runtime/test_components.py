from __future__ import annotations

import numpy as np
import pytest

from ccfs.runtime.components import BoxVerifier, FixedFallback


def test_box_verifier_accepts_its_edges_and_nothing_beyond_or_undefined():
    box = BoxVerifier(low=(-1.0, 0.0), high=(1.0, 0.5))
    actions = [[-1.0, 0.0], [1.0, 0.5], [np.nextafter(1.0, 2.0), 0.0], [0.0, -1e-300], [np.nan, 0.0]]
    assert box.accepts(np.zeros(3), np.array(actions)).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("shape", [(2,), (3, 1), (3, 3)])
def test_box_verifier_refuses_actions_of_another_dimension(shape):
    with pytest.raises(ValueError, match=r"`actions` must have shape \(n, 2\)"):
        BoxVerifier(low=(-1.0, 0.0), high=(1.0, 0.5)).accepts(np.zeros(3), np.zeros(shape))


@pytest.mark.parametrize(("low", "high"), [((1.0,), (0.0,)), ((np.nan,), (0.0,)), ((0.0,), (1.0, 1.0))])
def test_box_verifier_refuses_bounds_that_are_no_box(low, high):
    with pytest.raises(ValueError, match="`low` must be at most `high`"):
        BoxVerifier(low=low, high=high)


@pytest.mark.parametrize("values", [(), (float("nan"),), (float("inf"), 0.0)])
def test_fixed_fallback_refuses_nonfinite(values):
    with pytest.raises(ValueError, match="finite"):
        FixedFallback(values)
