"""The past that a shift rule sees: what was public at its moment, never what came later."""

from __future__ import annotations

import numpy as np
import pytest

from ccfs.runtime.history import PublicPast, PublicStep, Source


def step(t: int) -> PublicStep:
    return PublicStep(
        t=t,
        observation=np.zeros(2),
        center=np.zeros(1),
        source=Source.PROPOSAL,
        index=0,
        action=np.zeros(1),
        skipped=(),
        reward=0.0,
        cost=None,
        goal=False,
        terminated=False,
        truncated=False,
        reading=np.zeros(2),
    )


def test_past_so_far_does_not_grow():
    past = PublicPast()
    kept = [past.so_far()]
    for t in range(3):
        past.append(step(t))
        kept.append(past.so_far())
    assert [[step.t for step in seen] for seen in kept] == [[], [0], [0, 1], [0, 1, 2]]
    assert [kept[2][-1].t, kept[3][-1].t] == [1, 2]
    assert [entry.t for entry in kept[2][-5:]] == [0, 1]
    with pytest.raises(IndexError):
        kept[2][2]
