from __future__ import annotations

import pytest
from pydantic import ValidationError
from toy_protocol import protocol

from ccfs.protocol.tables import EnvironmentSpec


def test_environment_resolution_is_declared_and_has_a_default_for_safety_gymnasium(tmp_path):
    assert protocol(tmp_path).environment.resolution == "exact"
    assert protocol(tmp_path).environment.grid is None
    written = EnvironmentSpec(make="a:b", resolution="2^-7")
    assert (written.resolution, written.grid) == ("2^-7", 2.0**-7)
    assert EnvironmentSpec(make="safety-gymnasium").grid == 2.0**-20
    assert EnvironmentSpec(make="safety-gymnasium", resolution="exact").grid is None
    for wrong in ("2^-020", "2^", "2^-61", "3^-2", "2^-0", "", "0.5", 0.5, None):
        with pytest.raises(ValidationError, match="resolution"):
            EnvironmentSpec(make="a:b", resolution=wrong)
