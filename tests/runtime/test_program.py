from __future__ import annotations

import numpy as np
import pytest

from ccfs.runtime.components import AcceptAll, CenterFallback, FixedFallback
from ccfs.runtime.program import CausalProgram, FallbackEntry

LOW, HIGH = np.array([-1.0, -1.0]), np.array([1.0, 1.0])


def program(**changes):
    return CausalProgram(**{"low": LOW, "high": HIGH, "verifier": AcceptAll(), **changes})


def test_program_clips_center_unless_declared():
    np.testing.assert_array_equal(program().center([3.0, -0.5]), [1.0, -0.5])
    np.testing.assert_array_equal(program(clip_center=False).center([3.0, -0.5]), [3.0, -0.5])


class Watching(AcceptAll):
    def observe(self, observation):
        """Remember it, for ever: there is no reset."""


class Forgetting(CenterFallback):
    def reset(self):
        """Forget what nobody told."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": HIGH, "high": LOW}, "`low` must be below `high`"),
        ({"low": np.array([np.nan, 0.0])}, "`low` must be below `high`"),
        ({"low": np.zeros((1, 2))}, r"`low` must have shape \(d,\)"),
        ({"verifier": object()}, "`verifier` must have `accepts"),
        ({"fallbacks": (FixedFallback((0.0, 0.0)),)}, "`fallbacks` must hold FallbackEntry"),
        ({"fallbacks": (FallbackEntry(name="a", fallback=CenterFallback()),) * 2}, "different names"),
        ({"clip_center": 1}, "`clip_center` must be True or False"),
        ({"candidate_map": 3}, "`candidate_map` must be callable"),
        ({"verifier": Watching()}, "must have both `observe` and `reset`, or neither, got observe only"),
        (
            {"fallbacks": (FallbackEntry(name="a", fallback=Forgetting()),)},
            "must have both `observe` and `reset`, or neither, got reset only",
        ),
    ],
)
def test_program_refuses(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        program(**changes)


@pytest.mark.parametrize("bad", [[0.0], [0.0, 0.0, 0.0], [[0.0, 0.0]]])
def test_program_center_of_wrong_shape_raises(bad):
    with pytest.raises(ValueError, match="`center` must have shape"):
        program().center(bad)


def test_fallback_entry_refuses_wrong_kinds():
    with pytest.raises(TypeError, match="`name`"):
        FallbackEntry(name="", fallback=CenterFallback())
    with pytest.raises(TypeError, match="`fallback`"):
        FallbackEntry(name="a", fallback=object())
    with pytest.raises(TypeError, match="`unverified`"):
        FallbackEntry(name="a", fallback=CenterFallback(), unverified="yes")
