"""A tiny network, made-up images, and a run that counts them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ccfs.images import ConfidenceFilter, ImageSet, certify_dataset


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * 4 * 4, 3)).eval()


def images(count=23):
    rng = np.random.default_rng(0)
    return ImageSet(
        name="made-up",
        images=rng.integers(0, 256, (count, 4, 4, 2), dtype=np.uint8),
        labels=rng.integers(0, 3, count),
        classes=("a", "b", "c"),
    )


def run(folder, **changes):
    fields = {"sigma": 0.3, "n0": 20, "n": 100, "seed": 1, "batch_size": 50, "folder": folder, **changes}
    model, rule = fields.pop("model", network()), fields.pop("rule", ConfidenceFilter(0.0, 0.5))
    return certify_dataset(model, fields.pop("images", images()), rule, **fields)
