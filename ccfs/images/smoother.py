"""A filtered smoothed classifier in the familiar shape: predict and certify one image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import winner_pvalue
from ccfs.certificates.filtered import Abstention, JointMassCertificate, certify_counts, top_label
from ccfs.certificates.images import LabelCounts
from ccfs.images.counting import Counter, as_center
from ccfs.images.filters import Filter
from ccfs.images.streams import ESTIMATION, SELECTION, NoiseStream

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["FilteredSmoother"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    purpose: str
    trials: int


class FilteredSmoother:
    """The classifier that returns the most likely label among retained noisy copies of an image.

    A certificate from `certify` holds for this classifier: its answer is the certified label at every image closer than
    the radius, with probability at least 1 - delta over the noise drawn (Algorithm 1, Theorem 7).

    Args:
        model: maps images (batch, channels, height, width) to logits; in evaluation mode, deterministic.
        sigma: noise scale, in units of a pixel (images in [0, 1], noise not clipped).
        filter: retention rule with one arm.
        num_classes: labels of the model.
        seed: base seed; with an image's `index` and a purpose it decides every draw.
    """

    def __init__(self, model: nn.Module, sigma: float, filter: Filter, num_classes: int, *, seed: int = 0) -> None:
        if len(filter.arms) != 1:
            raise ValueError(
                f"`filter` must have one arm here, got {filter.arms}. Use `certify_dataset` to count several at once."
            )
        self._model, self._sigma, self._filter = model, checks.positive("sigma", sigma), filter
        self._classes, self._seed = num_classes, checks.count("seed", seed)

    def certify(
        self, x: Tensor | NDArray[np.generic], n0: int, n: int, delta: float, batch_size: int, *, index: int = 0
    ) -> JointMassCertificate | Abstention:
        """Certify the label of one image, or abstain (Algorithm 1).

        Args:
            x: image (channels, height, width), real pixels.
            n0: proposals for selecting a label.
            n: fresh proposals for estimating its mass.
            delta: failure probability.
            batch_size: proposals per model call; it does not change what is drawn.
            index: which of the seed's streams to use. Images that share one get dependent certificates.
        """
        level = checks.delta(delta)
        selection, estimation = self._counts(
            x,
            batch_size,
            index,
            _Request(purpose=SELECTION, trials=checks.count("n0", n0, minimum=1)),
            _Request(purpose=ESTIMATION, trials=checks.count("n", n, minimum=1)),
        )
        if sum(selection.retained) == 0:
            return Abstention(reason="no selection proposal was retained, so no label was selected")
        selected = top_label(selection.retained)
        return certify_counts(
            estimation.retained, estimation.rejected, selected=selected, sigma=self._sigma, delta=level
        )

    def predict(
        self, x: Tensor | NDArray[np.generic], n: int, delta: float, batch_size: int, *, index: int = 0
    ) -> int | Abstention:
        """Return the classifier's label, wrong with probability at most delta, or abstain.

        The two most frequent retained labels are compared by an exact two-sided binomial test (Hung and Fithian, 2019,
        for multinomial winners; given how many proposals are retained, their labels are multinomial).
        """
        level = checks.delta(delta)
        request = _Request(purpose="prediction", trials=checks.count("n", n, minimum=1))
        (counts,) = self._counts(x, batch_size, index, request)
        winner = top_label(counts.retained)
        runner = max(count for label, count in enumerate(counts.retained) if label != winner)
        error = 2.0 * winner_pvalue(counts.retained[winner], runner)
        if not error <= level:
            return Abstention(reason=f"the two most frequent labels cannot be told apart: error {error:.3g}")
        return winner

    def _counts(
        self, x: Tensor | NDArray[np.generic], batch_size: int, index: int, *requests: _Request
    ) -> list[LabelCounts]:
        center = as_center(x)
        counter = Counter(self._model, self._sigma, self._filter, self._classes, batch_size)
        found = []
        for request in requests:
            stream = NoiseStream(seed=self._seed, index=index, purpose=request.purpose, dimension=center.size)
            (counts,) = counter.count(center, stream, request.trials)
            found.append(counts)
        return found
