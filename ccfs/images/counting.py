"""Draw noisy copies of an image, ask filter and model, and count labels: memory is flat in the number of proposals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.images import LabelCounts
from ccfs.images.filters import Filter
from ccfs.images.streams import NoiseStream
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Counter", "as_center"]


def as_center(image: Tensor | NDArray[np.generic]) -> NDArray[np.float32]:
    """Return an image (channels, height, width) of real pixels as a single-precision array (height, width, channels).

    The certificate is about the center as rounded here.
    """
    require_torch()
    import torch

    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    if array.ndim != 3 or not np.issubdtype(array.dtype, np.floating):
        raise TypeError(
            f"`x` must be real pixels of shape (channels, height, width), got {array.dtype} {array.shape}. "
            "Divide bytes by 255 first."
        )
    if not np.all(np.isfinite(array)):
        raise ValueError("`x` must be finite.")
    return np.ascontiguousarray(array.transpose(1, 2, 0), dtype=np.float32)


class Counter:
    """One model, one filter, one noise scale; holds the buffers that every image reuses.

    Noise is drawn into flat buffers that are viewed as channels-last images. Where the filter decides before the model,
    survivors are gathered into full batches first. A proposal with a logit that is not finite carries no label: it
    counts as rejected.
    """

    def __init__(self, model: nn.Module, sigma: float, rule: Filter, num_classes: int, batch_size: int) -> None:
        self._sigma = checks.positive("sigma", sigma)
        self._classes = checks.count("num_classes", num_classes, minimum=2)
        self._batch = checks.count("batch_size", batch_size, minimum=1)
        if any(part.training for part in model.modules()):
            raise ValueError(
                "`model` must be in evaluation mode: call model.eval() first. Batch statistics and dropout "
                "would make it another function on every call."
            )
        self._model, self._rule = model, rule
        self._drawn = np.empty((0, 0), dtype=np.float32)
        self._kept = self._empty(0)
        self.model_calls = 0

    def count(self, center: NDArray[np.float32], stream: NoiseStream, trials: int) -> tuple[LabelCounts, ...]:
        """Count labels over `trials` noisy copies of `center` (height, width, channels), for every arm."""
        require_torch()
        import torch

        total = checks.count("trials", trials)
        if center.size != stream.dimension:
            raise ValueError(f"`stream` must have dimension {center.size}, got {stream.dimension}.")
        self._allocate(center.size)
        flat_center = torch.from_numpy(center.reshape(-1))
        tally = torch.zeros((len(self._rule.arms), self._classes), dtype=torch.int64)
        reader, waiting = stream.reader(), 0
        with torch.inference_mode():
            for start in range(0, total, self._batch):
                rows = min(self._batch, total - start)
                reader.fill(self._drawn[:rows])
                proposals = torch.from_numpy(self._drawn[:rows])
                torch.add(flat_center, proposals, alpha=self._sigma, out=proposals)
                if not self._rule.reads_inputs:
                    tally += self._labels(_images(proposals, center.shape))
                    continue
                survivors = proposals[_mask(self._rule.before(_images(proposals, center.shape)), (rows,))]
                self._kept[waiting : waiting + len(survivors)] = survivors
                waiting += len(survivors)
                if waiting >= self._batch:
                    tally += self._labels(_images(self._kept[: self._batch], center.shape))
                    waiting -= self._batch
                    self._kept[:waiting] = self._kept[self._batch : self._batch + waiting].clone()
            if waiting:
                tally += self._labels(_images(self._kept[:waiting], center.shape))
        return tuple(LabelCounts(retained=tuple(row), rejected=total - sum(row)) for row in tally.tolist())

    def _allocate(self, dimension: int) -> None:
        if self._drawn.shape != (self._batch, dimension):
            self._drawn = np.empty((self._batch, dimension), dtype=np.float32)
            self._kept = self._empty(dimension)

    def _empty(self, dimension: int) -> Tensor:
        require_torch()
        import torch

        return torch.empty((2 * self._batch if self._rule.reads_inputs else 0, dimension))

    def _labels(self, proposals: Tensor) -> Tensor:
        """Return int64[arms, classes]: retained labels among proposals that passed the filter's first look."""
        require_torch()
        import torch

        logits = self._model(proposals)
        self.model_calls += len(proposals)
        if tuple(logits.shape) != (len(proposals), self._classes):
            raise ValueError(
                f"`model` must return ({len(proposals)}, {self._classes}) logits, got {tuple(logits.shape)}."
            )
        logits = logits.float()
        retained = _mask(self._rule.after(proposals, logits), (len(self._rule.arms), len(proposals)))
        retained = retained & torch.isfinite(logits).all(1)
        labels = logits.argmax(1)
        return torch.stack([torch.bincount(labels[mask], minlength=self._classes) for mask in retained])


def _mask(answer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a filter's answer if it is a mask of the right shape; anything else stops the run."""
    require_torch()
    import torch

    if answer.dtype != torch.bool or tuple(answer.shape) != shape:
        raise TypeError(
            f"a filter must return a bool tensor of shape {shape}, got {answer.dtype} {tuple(answer.shape)}."
        )
    return answer


def _images(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    """View rows of (height, width, channel) pixels as channels-last images, without copying."""
    return flat.view(len(flat), *shape).permute(0, 3, 1, 2)
