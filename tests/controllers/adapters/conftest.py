"""One thread for torch in the tests of adapters: a second one beside a busy core takes many times as long."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
