"""The running normaliser against OmniSafe's `Normalizer` and against the plain formula."""

from __future__ import annotations

import numpy as np
import pytest

from ccfs.controllers.training.normalizer import RunningNormalizer


@pytest.mark.usefixtures("_omnisafe")
def test_normalizer_equals_omnisafe() -> None:
    import torch
    from omnisafe.common.normalizer import Normalizer

    rng = np.random.default_rng(6)
    theirs, ours = Normalizer((5,), clip=5), RunningNormalizer.empty(5)
    spread = np.array([1.0, 100.0, 1e-5, 0.0, 3.0])  # 1e-5 and 0: below the floor of the standard deviation
    for _ in range(60):
        batch = (3.0 + spread * rng.standard_t(2, size=(10, 5))).astype(np.float32)
        # 2e-3: OmniSafe sums in float32; with the floor of 0.01 a mean off by 1e-6 shows as 1e-4.
        np.testing.assert_allclose(ours.normalize(batch), theirs.normalize(torch.as_tensor(batch)).numpy(), atol=2e-3)
    frozen = ours.frozen()
    np.testing.assert_allclose(frozen.mean, theirs.mean.numpy(), rtol=1e-4)
    np.testing.assert_allclose(frozen.std, theirs.std.numpy(), rtol=1e-4)


def test_normalizer_equals_the_plain_formula() -> None:
    rng = np.random.default_rng(7)
    batches = [rng.normal(2.0, 3.0, size=(size, 4)).astype(np.float32) for size in (1, 10, 3)]
    running = RunningNormalizer.empty(4)
    for batch in batches:
        running.push(batch)
    everything = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(running.mean, everything.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(running.std, everything.std(axis=0, ddof=1), rtol=1e-12)


def test_normalizer_without_two_observations_has_no_spread() -> None:
    with pytest.raises(ValueError, match="needs two observations, got 0"):
        _ = RunningNormalizer.empty(2).std
