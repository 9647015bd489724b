"""OmniSafe for the tests of adapters and training, imported once."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session")
def _omnisafe() -> None:
    """Import OmniSafe once, with the cure that Python 3.11 needs; its dependencies warn at import."""
    from ccfs.envs.safety import compat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compat.stock()
        import omnisafe  # noqa: F401
        import torch

    torch.set_num_threads(1)
