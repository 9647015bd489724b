"""Filters: rules that say which noisy copies of an image are retained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ccfs.certificates import checks
from ccfs.certificates.images import CovarianceProof
from ccfs.images.torch import require_torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CallableFilter", "ConfidenceFilter", "Filter", "NoFilter", "everything"]


class Filter(Protocol):
    """A fixed retention rule with one or more variants, such as one per threshold.

    Variants differ in what they retain and share every model call. A rule must be a function of the proposal alone. It
    has no state and no randomness, and nothing in it was learned from the image that is certified.
    """

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of the variants, as they are stored."""

    @property
    def reads_inputs(self) -> bool:
        """Whether `before` rejects anything. If so, rejected proposals cost no model call."""

    def before(self, proposals: Tensor) -> Tensor:
        """Return bool[batch] from proposals (batch, channels, height, width). Only called if `reads_inputs`."""

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Return bool[variants, batch] for proposals that passed `before`."""

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Return the covariance premise, or None if none is proved for this noise scale."""

    def document(self) -> dict[str, object]:
        """Return what identifies the rule, as values that JSON can hold."""


@dataclass(frozen=True, slots=True)
class NoFilter:
    """Retains everything. This is ordinary randomized smoothing."""

    @property
    def variants(self) -> tuple[str, ...]:
        """The single variant."""
        return ("none",)

    @property
    def reads_inputs(self) -> bool:
        """False, because nothing is rejected."""
        return False

    def before(self, proposals: Tensor) -> Tensor:
        """Retain every proposal."""
        return everything(proposals)

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Retain every proposal."""
        return everything(logits)[None]

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Return ratio 1: the unfiltered law has covariance sigma^2 I at every center."""
        return CovarianceProof(covariance_ratio=1.0, statement="nothing is rejected: the law is Gaussian")

    def document(self) -> dict[str, object]:
        """Name the rule."""
        return {"kind": "none"}


class ConfidenceFilter:
    """Retains a proposal whose largest softmax probability is strictly greater than a threshold.

    Each threshold is a variant, and all of them share each model call. Threshold 0 retains everything. No covariance
    premise is known for this rule, so only joint-mass certificates apply to it.
    """

    def __init__(self, *thresholds: float) -> None:
        if not thresholds:
            raise ValueError("`thresholds` must hold at least one threshold, got none. The paper's is 0.9.")
        checked = tuple(checks.finite("threshold", threshold) for threshold in thresholds)
        if not all(0.0 <= threshold < 1.0 for threshold in checked) or len(set(checked)) != len(checked):
            raise ValueError(f"`thresholds` must be different numbers in [0, 1), got {thresholds}.")
        self.thresholds = checked

    @property
    def variants(self) -> tuple[str, ...]:
        """One variant per threshold."""
        # Every softmax has a largest probability above 0, so threshold 0 is no filter and has its name.
        return tuple("none" if level == 0.0 else f"confidence>{level:g}" for level in self.thresholds)

    @property
    def reads_inputs(self) -> bool:
        """False, because confidence is known only after the model call."""
        return False

    def before(self, proposals: Tensor) -> Tensor:
        """Retain every proposal. The model decides later."""
        return everything(proposals)

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Compare the largest probability with each threshold. NaN is rejected."""
        require_torch()
        import torch

        # A comparison with NaN is False, so a proposal without a probability is never retained.
        top = logits.float().softmax(1).amax(1)
        return torch.stack([top > level for level in self.thresholds])

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Return None, because nothing is proved about this rule."""
        return None

    def document(self) -> dict[str, object]:
        """Name the rule and its thresholds."""
        return {"kind": "confidence", "thresholds": list(self.thresholds), "comparison": ">"}


class CallableFilter:
    """A fixed rule of the user's, as a function. Only joint-mass certificates apply to it.

    Args:
        function: takes proposals (batch, channels, height, width), and also logits (batch, classes) if `reads_logits`.
            It returns a bool tensor of shape (batch,). Any other answer stops the run and never counts as retained. It
            must not change its arguments.
        name: name of the rule in stored counts. Two different rules must not share a name.
        reads_logits: whether the function needs the model's answer. If not, rejected proposals cost no model call.
    """

    def __init__(self, function: Callable[..., Tensor], *, name: str, reads_logits: bool = False) -> None:
        if not callable(function):
            raise TypeError(f"`function` must be callable, got {function!r}.")
        if not name or name == "none":
            raise ValueError(f"`name` must say what the rule is, got {name!r}. `none` means no filter.")
        self._function, self._name, self._reads_logits = function, name, reads_logits

    @property
    def variants(self) -> tuple[str, ...]:
        """The single variant."""
        return (self._name,)

    @property
    def reads_inputs(self) -> bool:
        """Whether the rule decides before the model call."""
        return not self._reads_logits

    def before(self, proposals: Tensor) -> Tensor:
        """Call the user's function."""
        return _mask(self._function(proposals), len(proposals), self._name)

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Call the user's function if it reads logits. Otherwise `before` has decided."""
        if not self._reads_logits:
            return everything(logits)[None]
        return _mask(self._function(proposals, logits), len(logits), self._name)[None]

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Return None, because nothing is proved about a user's rule."""
        return None

    def document(self) -> dict[str, object]:
        """Name the rule."""
        return {"kind": "callable", "name": self._name, "reads_logits": self._reads_logits}


def everything(rows: Tensor) -> Tensor:
    """Return True for every row."""
    require_torch()
    import torch

    return torch.ones(len(rows), dtype=torch.bool, device=rows.device)


def _mask(answer: object, count: int, name: str) -> Tensor:
    require_torch()
    import torch

    # Fail closed: a float mask or a broadcast shape would silently count other proposals.
    if not isinstance(answer, torch.Tensor) or answer.dtype != torch.bool or tuple(answer.shape) != (count,):
        got = f"{answer.dtype} {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise TypeError(f"filter `{name}` must return a bool tensor of shape ({count},), got {got}.")
    return answer
