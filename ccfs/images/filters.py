"""Retention rules for noisy images: which proposals count, decided before the model where the rule permits it."""

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
    """A fixed retention rule with one or more arms; arms differ in what they retain and share every model call.

    A rule must be a function of the proposal alone: no state, no randomness, nothing learned from the image certified.
    """

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms, for the record."""

    @property
    def reads_inputs(self) -> bool:
        """Whether `before` decides something, so that rejected proposals cost no model call."""

    def before(self, proposals: Tensor) -> Tensor:
        """Return bool[batch] from proposals (batch, channels, height, width); asked only if `reads_inputs`."""

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Return bool[arms, batch] for proposals that passed `before`."""

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Return the covariance premise if it is proved for this noise scale."""

    def document(self) -> dict[str, object]:
        """Return what identifies the rule, as plain values."""


@dataclass(frozen=True, slots=True)
class NoFilter:
    """Retains everything: ordinary randomized smoothing."""

    @property
    def arms(self) -> tuple[str, ...]:
        """The single arm."""
        return ("none",)

    @property
    def reads_inputs(self) -> bool:
        """False: there is nothing to decide."""
        return False

    def before(self, proposals: Tensor) -> Tensor:
        """Retain every proposal."""
        return everything(proposals)

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Retain every proposal."""
        return everything(logits)[None]

    def proof(self, sigma: float) -> CovarianceProof | None:
        """The unfiltered law has covariance sigma^2 I at every center."""
        return CovarianceProof(covariance_ratio=1.0, statement="nothing is rejected: the law is Gaussian")

    def document(self) -> dict[str, object]:
        """Name the rule."""
        return {"kind": "none"}


class ConfidenceFilter:
    """Retains a proposal whose largest softmax probability is strictly greater than a threshold.

    Several thresholds share each model call and become arms; threshold 0 retains everything. No covariance premise is
    known for this rule: only joint-mass certificates apply to it.
    """

    def __init__(self, *thresholds: float) -> None:
        if not thresholds:
            raise ValueError("`thresholds` must hold at least one threshold, got none. The paper's is 0.9.")
        checked = tuple(checks.finite("threshold", threshold) for threshold in thresholds)
        if not all(0.0 <= threshold < 1.0 for threshold in checked) or len(set(checked)) != len(checked):
            raise ValueError(f"`thresholds` must be different numbers in [0, 1), got {thresholds}.")
        self.thresholds = checked

    @property
    def arms(self) -> tuple[str, ...]:
        """One arm per threshold."""
        return tuple("none" if level == 0.0 else f"confidence>{level:g}" for level in self.thresholds)

    @property
    def reads_inputs(self) -> bool:
        """False: confidence is known after the model only."""
        return False

    def before(self, proposals: Tensor) -> Tensor:
        """Retain every proposal until the model has spoken."""
        return everything(proposals)

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Compare the largest probability with each threshold; NaN is rejected."""
        top = logits.float().softmax(1).amax(1)
        require_torch()
        import torch

        return torch.stack([top > level for level in self.thresholds])

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Nothing is proved about this rule."""
        return None

    def document(self) -> dict[str, object]:
        """Name the rule and its thresholds."""
        return {"kind": "confidence", "thresholds": list(self.thresholds), "comparison": ">"}


class CallableFilter:
    """Any fixed rule of the user's: a function of the proposals, or of proposals and logits. Joint mass only.

    Args:
        function: takes proposals (batch, channels, height, width), and logits (batch, classes) too if `reads_logits`;
            returns a bool tensor of shape (batch,). Anything else stops the run: it never counts as retained. It must
            not change its arguments.
        name: names the rule in the record; two different rules must not share it.
        reads_logits: whether the function needs the model's answer. If not, rejected proposals cost no model call.
    """

    def __init__(self, function: Callable[..., Tensor], *, name: str, reads_logits: bool = False) -> None:
        if not callable(function):
            raise TypeError(f"`function` must be callable, got {function!r}.")
        if not name or name == "none":
            raise ValueError(f"`name` must say what the rule is, got {name!r}: `none` is the arm without a filter.")
        self._function, self._name, self._reads_logits = function, name, reads_logits

    @property
    def arms(self) -> tuple[str, ...]:
        """The single arm."""
        return (self._name,)

    @property
    def reads_inputs(self) -> bool:
        """Whether the rule is decided before the model."""
        return not self._reads_logits

    def before(self, proposals: Tensor) -> Tensor:
        """Ask the user's function."""
        return _mask(self._function(proposals), len(proposals), self._name)

    def after(self, proposals: Tensor, logits: Tensor) -> Tensor:
        """Ask the user's function if it reads logits; otherwise `before` has decided."""
        if not self._reads_logits:
            return everything(logits)[None]
        return _mask(self._function(proposals, logits), len(logits), self._name)[None]

    def proof(self, sigma: float) -> CovarianceProof | None:
        """Nothing is proved about a user's rule."""
        return None

    def document(self) -> dict[str, object]:
        """Name the rule."""
        return {"kind": "callable", "name": self._name, "reads_logits": self._reads_logits}


def everything(rows: Tensor) -> Tensor:
    """Return True for every row."""
    require_torch()
    import torch

    return torch.ones(len(rows), dtype=torch.bool)


def _mask(answer: object, count: int, name: str) -> Tensor:
    require_torch()
    import torch

    if not isinstance(answer, torch.Tensor) or answer.dtype != torch.bool or tuple(answer.shape) != (count,):
        got = f"{answer.dtype} {tuple(answer.shape)}" if isinstance(answer, torch.Tensor) else type(answer).__name__
        raise TypeError(f"filter `{name}` must return a bool tensor of shape ({count},), got {got}.")
    return answer
