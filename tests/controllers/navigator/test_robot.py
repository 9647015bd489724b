"""The Point robot's model: mean thrust and turn under noise."""

from __future__ import annotations

import math

import pytest

from ccfs.controllers.navigator.robot import NoisyRobot


def test_noisy_robot_knows_the_flip_probability():
    """Oracle: thrust saturates almost at once, so its mean share is 1 - 2 Phi(-1/sigma), up to the band of 0.05."""
    flip = 0.5 * math.erfc(1.0 / math.sqrt(2.0))
    assert NoisyRobot(sigma=1.0).mean_thrust(1.0) / 0.0566 == pytest.approx(1.0 - 2.0 * flip, abs=2e-3)
    assert NoisyRobot(sigma=0.0).mean_turn(1.0) == pytest.approx(0.06)
    assert NoisyRobot(sigma=2.0).mean_turn(0.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -0.1])
def test_noisy_robot_refuses_sigma(sigma):
    with pytest.raises(ValueError, match="`sigma` must be finite and at least 0"):
        NoisyRobot(sigma=sigma)
