"""The settings of the navigator refuse what is no length and no duration."""

from __future__ import annotations

import math

import pytest

from ccfs.controllers.navigator import NavigatorSettings


@pytest.mark.parametrize("values", [{"risk_weight": math.nan}, {"doubt": -1.0}, {"first_steps": 0}])
def test_settings_refuse(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` must be"):
        NavigatorSettings(**values)
