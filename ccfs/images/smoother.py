"""The filtered smoothed classifier: count labels of noisy copies of one image, then predict or certify its label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.binomial import winner_pvalue
from ccfs.certificates.filtered import (
    UNDIVIDED,
    Abstention,
    JointMassCertificate,
    Split,
    anytime_counts,
    anytime_radius_upper,
    certify_counts,
    top_label,
)
from ccfs.certificates.images import LabelCounts
from ccfs.images.filters import Filter, NoFilter
from ccfs.images.streams import ESTIMATION, SELECTION, NoiseStream
from ccfs.images.torch import first_sentence, require_torch

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    Network = nn.Module | Callable[[Tensor], object]

__all__ = [
    "AnytimeAnswer",
    "Counter",
    "FilteredSmoother",
    "as_center",
    "home_of",
    "logits_of",
    "refuse_training",
]


_HALVES = Split(selected=Fraction(1, 2), complement=Fraction(1, 2), explicit=Fraction(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    purpose: str
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnytimeAnswer:
    """A certificate or abstention, with the proposals that it took out of the most that were allowed."""

    answer: JointMassCertificate | Abstention
    trials: int
    most: int


class FilteredSmoother:
    """The classifier that returns the most likely label among retained noisy copies of an image.

    A certificate from `certify` holds for this classifier: its answer is the certified label at every image closer than
    the radius, with probability at least 1 - delta over the noise drawn (Algorithm 1, Theorem 7).

    Args:
        model: deterministic map from images (batch, channels, height, width) to logits, in evaluation mode.
        sigma: noise scale, in units of a pixel. Images are in [0, 1], and noise is not clipped.
        filter: retention rule with one variant.
        num_classes: number of labels of the model.
        seed: base seed. Together with an image's `index` and a purpose it decides every draw.
    """

    def __init__(self, model: Network, sigma: float, filter: Filter, num_classes: int, *, seed: int = 0) -> None:
        if len(filter.variants) != 1:
            raise ValueError(
                f"`filter` must have one variant here, got {filter.variants}. Use `certify_dataset` to count several "
                "at once."
            )
        self._model, self._sigma, self._filter = model, checks.positive("sigma", sigma), filter
        self._classes, self._seed = num_classes, checks.count("seed", seed)

    def certify(
        self, x: Tensor | NDArray[np.generic], n0: int, n: int, delta: float, batch_size: int, *, index: int = 0
    ) -> JointMassCertificate | Abstention:
        """Certify the label of one image, or abstain (Algorithm 1).

        Args:
            x: image (channels, height, width), real pixels.
            n0: number of proposals that select the label.
            n: number of fresh proposals that estimate its mass.
            delta: failure probability.
            batch_size: proposals per model call. It does not change what is drawn.
            index: which of the seed's streams to use. Images that share an index get dependent certificates.
        """
        return self._certified(as_center(x), n0, n, delta, batch_size, index)

    def certify_batch(
        self, x: Tensor | NDArray[np.generic], n0: int, n: int, delta: float, batch_size: int, *, index: int = 0
    ) -> tuple[JointMassCertificate | Abstention, ...]:
        """Certify each image of a batch (images, channels, height, width). Image i uses the streams of `index` + i.

        Each certificate holds with probability 1 - delta. All of them together need delta divided by their number.
        """
        if not (hasattr(x, "ndim") and x.ndim == 4):
            raise TypeError("`x` must be images of shape (images, channels, height, width). Use `certify` for one.")
        return tuple(
            self._certified(as_center(image), n0, n, delta, batch_size, checks.count("index", index) + place)
            for place, image in enumerate(x)
        )

    def _certified(
        self, center: NDArray[np.float32], n0: int, n: int, delta: float, batch_size: int, index: int
    ) -> JointMassCertificate | Abstention:
        level = checks.delta(delta)
        selection, estimation = self._counts(
            center,
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

    def certify_until(
        self,
        x: Tensor | NDArray[np.generic],
        n0: int,
        n: int,
        delta: float,
        batch_size: int,
        *,
        radius: float,
        index: int = 0,
    ) -> AnytimeAnswer:
        """Draw until `radius` is certified or hopeless, at most n proposals, and say how many were needed.

        The bounds hold at all times together, so stopping early costs no delta. It is looked at after each batch.

        Args:
            x: image (channels, height, width), real pixels.
            n0: number of proposals that select the label.
            n: the most fresh proposals to draw.
            delta: failure probability.
            batch_size: proposals per model call and between two looks.
            radius: the wanted radius.
            index: which of the seed's streams to use.
        """
        level, wanted = checks.delta(delta), checks.positive("radius", radius)
        most, center = checks.count("n", n, minimum=1), as_center(x)
        (selection,) = self._counts(
            center, batch_size, index, _Request(purpose=SELECTION, trials=checks.count("n0", n0, minimum=1))
        )
        if sum(selection.retained) == 0:
            return AnytimeAnswer(answer=Abstention(reason="no selection proposal was retained"), trials=0, most=most)
        selected = top_label(selection.retained)
        # Without rejections the second bound adds nothing, so it gets no delta.
        split = UNDIVIDED if isinstance(self._filter, NoFilter) else _HALVES
        counter = Counter(self._model, self._sigma, self._filter, self._classes, batch_size)
        stream = NoiseStream(
            run="smoother", seed=self._seed, index=index, purpose="anytime estimation", dimension=center.size
        )
        retained, drawn = [0] * self._classes, 0
        while True:
            rows = min(batch_size, most - drawn)
            (found,) = counter.count(center, stream, rows, start=drawn)
            retained, drawn = [a + b for a, b in zip(retained, found.retained, strict=True)], drawn + rows
            rejected = drawn - sum(retained)
            certified = partial(
                anytime_counts, rejected=rejected, selected=selected, sigma=self._sigma, delta=level, split=split
            )
            answer = certified(retained)
            is_certified = isinstance(answer, JointMassCertificate) and answer.radius > wanted
            if is_certified or drawn == most:
                return AnytimeAnswer(answer=answer, trials=drawn, most=most)
            # A wrong guess here only abstains too early. It costs no soundness, so it spends no delta.
            best = list(retained)
            best[selected] += most - drawn
            reachable = certified(best)
            is_reachable = isinstance(reachable, JointMassCertificate) and reachable.radius > wanted
            upper = anytime_radius_upper(retained, rejected, selected=selected, sigma=self._sigma, delta=level)
            if not is_reachable or upper < wanted:
                return AnytimeAnswer(answer=answer, trials=drawn, most=most)

    def predict(
        self, x: Tensor | NDArray[np.generic], n: int, delta: float, batch_size: int, *, index: int = 0
    ) -> int | Abstention:
        """Return the classifier's label, wrong with probability at most delta, or abstain.

        An exact two-sided binomial test compares the two most frequent retained labels (Hung and Fithian, 2019, for
        multinomial winners). Given the number of retained proposals, their labels are multinomial.
        """
        level = checks.delta(delta)
        request = _Request(purpose="prediction", trials=checks.count("n", n, minimum=1))
        (counts,) = self._counts(as_center(x), batch_size, index, request)
        winner = top_label(counts.retained)
        runner = max(count for label, count in enumerate(counts.retained) if label != winner)
        # Twice the one-sided error, because the data chose which of the two labels to test.
        error = 2.0 * winner_pvalue(counts.retained[winner], runner)
        if not error <= level:
            return Abstention(reason=f"the two most frequent labels cannot be told apart: error {error:.3g}")
        return winner

    def _counts(
        self, center: NDArray[np.float32], batch_size: int, index: int, *requests: _Request
    ) -> list[LabelCounts]:
        counter = Counter(self._model, self._sigma, self._filter, self._classes, batch_size)
        found = []
        for request in requests:
            stream = NoiseStream(
                run="smoother", seed=self._seed, index=index, purpose=request.purpose, dimension=center.size
            )
            (counts,) = counter.count(center, stream, request.trials)
            found.append(counts)
        return found


def as_center(image: Tensor | NDArray[np.generic]) -> NDArray[np.float32]:
    """Return an image (channels, height, width) of real pixels as a single-precision array (height, width, channels).

    Rounding to single precision moves the center. The certificate is about the rounded center.
    """
    require_torch()
    import torch

    array = (
        image.detach().cpu().float().numpy()
        if isinstance(image, torch.Tensor) and image.is_floating_point()
        else np.asarray(image)
    )
    if array.ndim == 4:
        raise TypeError(f"`x` must be one image, got a batch {array.shape}. Use `certify_batch`.")
    if array.ndim != 3 or not np.issubdtype(array.dtype, np.floating):
        raise TypeError(
            f"`x` must be real pixels of shape (channels, height, width), got {array.dtype} {array.shape}. "
            "Divide bytes by 255 first."
        )
    if not np.all(np.isfinite(array)):
        raise ValueError("`x` must be finite.")
    return np.ascontiguousarray(array.transpose(1, 2, 0), dtype=np.float32)


class Counter:
    """Counts labels with one model, one filter and one noise scale. Memory does not grow with the number of proposals.

    All images reuse the same flat noise buffers, which are on the model's device. If the filter decides before the
    model, retained proposals are gathered into full batches first. A proposal with a logit that is not finite has no
    label and counts as rejected.

    Args:
        model: a torch module in evaluation mode, or any function of images (batch, channels, height, width). It may
            return logits, a tuple whose first part they are, or an object or dictionary with `logits`.
        sigma: noise scale, in units of a pixel.
        rule: the filter.
        num_classes: number of labels of the model.
        batch_size: proposals per model call. It does not change what is drawn.
        device: where to compute. By default where the model's weights are.
        channels_last: whether the model wants channels-last images. By default it gets contiguous ones, unless it has
            a true attribute `channels_last`.
    """

    def __init__(
        self,
        model: Network,
        sigma: float,
        rule: Filter,
        num_classes: int,
        batch_size: int,
        *,
        device: str | None = None,
        channels_last: bool | None = None,
    ) -> None:
        self._sigma = checks.positive("sigma", sigma)
        self._classes = checks.count("num_classes", num_classes, minimum=2)
        self._batch = checks.count("batch_size", batch_size, minimum=1)
        self._model, self._rule = refuse_training(model), rule
        home, self._dtype = home_of(model)
        self.device = home if device is None else device
        wants = getattr(model, "channels_last", False) if channels_last is None else channels_last
        self._channels_last = bool(wants)
        _keep_freed_memory()
        self._drawn = self._empty(0, 0)
        self._kept = self._empty(0, 0)
        self.model_calls = 0

    def count(
        self, center: NDArray[np.float32], stream: NoiseStream, trials: int, *, start: int = 0
    ) -> tuple[LabelCounts, ...]:
        """Return label counts of `trials` noisy copies of `center` (height, width, channels), one per variant.

        Args:
            center: the image.
            stream: its noise.
            trials: how many proposals.
            start: the first of them. Counts of consecutive parts add up to the counts of the whole.
        """
        require_torch()
        import torch

        total = checks.count("trials", trials)
        if center.size != stream.dimension:
            raise ValueError(f"`stream` must have dimension {center.size}, got {stream.dimension}.")
        self._allocate(center.size)
        # A copy, because torch warns about arrays that may not be written to, as those of an image set are.
        flat_center = torch.tensor(center.reshape(-1), device=self.device)
        # Integers: adding up batches in any sizes gives the same counts.
        tally = torch.zeros((len(self._rule.variants), self._classes), dtype=torch.int64, device=self.device)
        reader, waiting = stream.reader(start, device=self.device), 0
        with torch.inference_mode():
            for done in range(0, total, self._batch):
                proposals = self._drawn[: min(self._batch, total - done)]
                reader.fill(proposals)
                torch.add(flat_center, proposals, alpha=self._sigma, out=proposals)
                if not self._rule.reads_inputs:
                    tally += self._labels(_images(proposals, center.shape))
                    continue
                keep = _mask(self._rule.before(_images(proposals, center.shape)), (len(proposals),))
                places = keep.nonzero().view(-1)
                torch.index_select(proposals, 0, places, out=self._kept[waiting : waiting + len(places)])
                waiting += len(places)
                if waiting >= self._batch:
                    tally += self._labels(_images(self._kept[: self._batch], center.shape))
                    waiting -= self._batch
                    # At most one batch is left over, so the two ranges do not overlap.
                    self._kept[:waiting] = self._kept[self._batch : self._batch + waiting]
            if waiting:
                tally += self._labels(_images(self._kept[:waiting], center.shape))
        return tuple(LabelCounts(retained=tuple(row), rejected=total - sum(row)) for row in tally.tolist())

    def _allocate(self, dimension: int) -> None:
        # Images of one data set have one size, so this allocates once.
        if self._drawn.shape != (self._batch, dimension):
            self._drawn = self._empty(self._batch, dimension)
            self._kept = self._empty(2 * self._batch if self._rule.reads_inputs else 0, dimension)

    def _empty(self, rows: int, dimension: int) -> Tensor:
        require_torch()
        import torch

        return torch.empty((rows, dimension), device=self.device)

    def refuse_random(self, center: NDArray[np.float32]) -> None:
        """Raise ValueError if the model answers the same noisy copies of an image in two ways.

        A difference in the last bits passes, as some devices add in any order.
        """
        import torch

        stream = NoiseStream(run="probe", seed=0, index=0, purpose="probe", dimension=center.size)
        noise = self._empty(4, center.size)
        stream.reader(device=self.device).fill(noise)
        copies = torch.tensor(center.reshape(-1), device=self.device) + self._sigma * noise
        with torch.inference_mode():
            first, second = (self.logits(_images(copies.clone(), center.shape)) for _ in range(2))
        if not torch.allclose(first, second, rtol=1e-3, atol=1e-3, equal_nan=True):
            raise ValueError(
                "`model` must be a function of the images alone. It answered the same images in two ways. Switch off "
                "dropout, random layers and whatever it keeps from one call to the next."
            )

    def logits(self, proposals: Tensor) -> Tensor:
        """Return the model's logits of channels-last images, in single precision."""
        import torch

        # `contiguous()` keeps the strides of grey images, from which torch guesses channels-last, and `.view` fails.
        inputs = proposals if self._channels_last else proposals.clone(memory_format=torch.contiguous_format)
        try:
            answer = self._model(inputs.to(self._dtype))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ValueError(
                f"`model` cannot take images of (channels, height, width) {tuple(inputs.shape[1:])}: "
                f"{first_sentence(error)} Certify images of the shape that it was trained on. `size` (--size) brings "
                "the pictures of a folder to it."
            ) from error
        logits = logits_of(answer)
        if tuple(logits.shape) != (len(proposals), self._classes):
            raise ValueError(
                f"`model` must return ({len(proposals)}, {self._classes}) logits, got {tuple(logits.shape)}. "
                "The second number is the number of labels: give as many class names as the model has outputs."
            )
        return logits.float()

    def _labels(self, proposals: Tensor) -> Tensor:
        """Return int64[variants, classes], the counts of retained labels among proposals that passed `before`."""
        require_torch()
        import torch

        logits = self.logits(proposals)
        self.model_calls += len(proposals)
        retained = _mask(self._rule.after(proposals, logits), (len(self._rule.variants), len(proposals)))
        # argmax of NaN would still give a label.
        retained = retained & torch.isfinite(logits).all(1)
        labels = logits.argmax(1)
        return torch.stack([torch.bincount(labels[mask], minlength=self._classes) for mask in retained])


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of one batch for the next.

    glibc gives a large block back to the system when it is freed, and the next batch pays for fresh pages: a tenth of
    the time on CIFAR images. Once a block of nearly 32 MB was freed, glibc keeps blocks up to that size. The block here
    is never written to, so it takes no memory. Other C libraries do not care.
    """
    import torch

    torch.empty(31 * 2**20, dtype=torch.uint8)


def refuse_training(model: Network) -> Network:
    """Return the model, or raise if one of its layers is in training mode or it cannot be called."""
    if not callable(model):
        raise TypeError(f"`model` must be a torch module or a function, got {type(model).__name__}.")
    parts = model.modules() if hasattr(model, "modules") else ()
    if any(part.training for part in parts):
        raise ValueError(
            "`model` must be in evaluation mode. Call model.eval() first. With batch statistics or dropout "
            "it would be another function on every call."
        )
    return model


def home_of(model: Network) -> tuple[str, torch.dtype]:
    """Return the device and the floating type of a model's weights: the CPU and float32 if it has none."""
    require_torch()
    import torch

    tensors = [*model.parameters(), *model.buffers()] if isinstance(model, torch.nn.Module) else []
    real = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    if real is None:
        return str(tensors[0].device) if tensors else "cpu", torch.float32
    # The 8-bit network keeps its calibration in doubles and reads single precision.
    dtype = torch.float32 if getattr(model, "reads_float32", False) else real.dtype
    return str(real.device), dtype


def logits_of(answer: object) -> Tensor:
    """Return the logits in what a model returned: a tensor, a tuple that begins with one, or something with `logits`.

    Raises:
        TypeError: there are no logits in it.
    """
    require_torch()
    import torch

    found = answer
    if isinstance(found, Mapping):
        found = found.get("logits")
    elif hasattr(found, "logits"):
        found = found.logits
    elif isinstance(found, (tuple, list)) and found:
        found = found[0]
    if not isinstance(found, torch.Tensor) or not found.is_floating_point():
        kind = f"a tensor of {found.dtype}" if isinstance(found, torch.Tensor) else type(answer).__name__
        raise TypeError(
            f"`model` must return real logits, a tuple that begins with them, or something with `logits`, got {kind}. "
            "Labels alone are not enough: return one-hot rows if that is all there is."
        )
    return found


def _mask(answer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a filter's answer if it is a mask of the right shape. Any other answer stops the run."""
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
