"""A classifier with a known boundary, twelve made-up images on one side of it, and their counts."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ccfs.images import ConfidenceFilter, ImageSet, certify_dataset

SIGMA = 0.5


class Halfspace(nn.Module):
    """Label 0 where the first pixel exceeds 1/2, with softmax confidence. By symmetry the filter keeps the boundary."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, images):
        score = 1.5 * (images[:, 0, 0, 0] - 0.5)
        return torch.stack([score, -score, torch.full_like(score, -50.0)], 1)


def made_up():
    """Twelve images whose first pixel, hence whose distance to the boundary, rises in steps."""
    images = np.full((12, 3, 3, 1), 128, dtype=np.uint8)
    images[:, 0, 0, 0] = np.linspace(140, 255, 12)
    return ImageSet(name="made-up", images=images, labels=np.zeros(12, dtype=np.int64), classes=("a", "b", "c"))


def counted(folder):
    return certify_dataset(
        Halfspace(),
        made_up(),
        ConfidenceFilter(0.0, 0.9),
        sigma=SIGMA,
        n0=100,
        n=3000,
        seed=2,
        batch_size=1000,
        folder=folder,
    )


def randomized(model):
    """Give batch normalisation statistics that folding must respect."""
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.3)
            part.running_var.uniform_(0.5, 2.0)
            part.weight.data.uniform_(0.5, 1.5)
            part.bias.data.normal_(0, 0.3)
    return model.eval()
