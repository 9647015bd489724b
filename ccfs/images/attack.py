"""Look for label changes inside the substituted radius of one image: search, screen on fresh noise, confirm exactly.

The search may use anything. Claims rest on the confirmation alone: new noise, exact tests, one Bonferroni family.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ccfs.certificates import checks
from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, winner_pvalue
from ccfs.certificates.images import LabelCounts
from ccfs.certificates.validated import exact, lower_float, normal_quantile, precision, upper_float
from ccfs.files.documents import Table
from ccfs.images.smoother import Counter
from ccfs.images.streams import NoiseStream
from ccfs.images.torch import require_torch

__all__ = [
    "Candidate",
    "Confirmation",
    "SearchPlan",
    "cohort",
    "confirm",
    "distance_upper",
    "family_size",
    "refuse_without_gradients",
    "search",
]


def cohort(images: int, size: int, salt: str) -> tuple[int, ...]:
    """Return the first `size` indices in the order of SHA-256(salt, index), which depends on no image."""
    total, wanted = checks.count("images", images, minimum=1), checks.count("size", size, minimum=1)
    if not wanted <= total:
        raise ValueError(f"`size` must be at most {total}, got {wanted}.")
    order = sorted(range(total), key=lambda index: hashlib.sha256(f"{salt}:{index}".encode()).digest())
    return tuple(order[:wanted])


def family_size(members: int, num_classes: int) -> int:
    """Return the number of inferences in one family: pairwise tests at both endpoints and one bound per member.

    >>> family_size(128, 10)
    2432
    """
    return checks.count("members", members, minimum=1) * (2 * (checks.count("num_classes", num_classes) - 1) + 1)


def distance_upper(center: NDArray[np.float32], moved: NDArray[np.float32]) -> float:
    """Return the Euclidean distance of two single-precision images, rounded up."""
    changed = np.flatnonzero(center.ravel() != moved.ravel())
    pairs = zip(moved.ravel()[changed].tolist(), center.ravel()[changed].tolist(), strict=True)
    total = sum(((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs), Fraction(0))
    # Rounded up, because the claim is that the distance is below a radius.
    with precision():
        return upper_float(exact(total).sqrt())


class SearchPlan(Table):
    """How hard to search. The paper has 4 restarts, 150 steps, 256 proposals per step and screens of 50,000."""

    restarts: int = Field(ge=1, description="Searches per image.")
    steps: int = Field(ge=1, description="Gradient steps per search.")
    proposals: int = Field(ge=1, description="Proposals per step.")
    screen: int = Field(ge=1, description="Proposals per screen.")
    threshold: float = Field(description="Threshold of the confidence filter.")
    reach: float = Field(default=0.98, description="Greatest distance of the search over the substituted radius.")
    temperatures: tuple[float, ...] = Field(
        default=(1.0, 0.5, 0.25), description="Softmax temperatures, one after another in equal parts of a search."
    )
    low: float = Field(default=0.0, description="Least value of a pixel of the center.")
    high: float = Field(default=1.0, description="Greatest value of a pixel of the center.")
    ranking: Literal["retained", "drawn"] = Field(
        default="retained",
        description="Which counts rank the labels to aim at: of retained proposals, or of all drawn ones. "
        "All drawn ones tell labels apart where the filter retains little.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A moved center, the label to aim at there, and the counts of a fresh screen."""

    center: NDArray[np.float32]
    target: int
    screen: LabelCounts

    @property
    def margin(self) -> int:
        """Count of the target in the screen minus that of the strongest other label."""
        others = [count for label, count in enumerate(self.screen.retained) if label != self.target]
        return self.screen.retained[self.target] - max(others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """Fresh counts at both endpoints and what they prove at the error of the family.

    If `is_verified`, the filtered classifier has label `original` at the image and `changed` at the moved center, and
    the distance is below a lower bound on the population's substituted radius.
    """

    original: int
    changed: int
    nominal: LabelCounts
    shifted: LabelCounts
    nominal_error: float
    shifted_error: float
    distance: float
    radius_lower: float
    error_each: float

    @property
    def is_changed(self) -> bool:
        """Whether both endpoint labels are proved and differ."""
        return (
            self.original != self.changed
            and self.nominal_error <= self.error_each
            and self.shifted_error <= self.error_each
        )

    @property
    def is_verified(self) -> bool:
        """Whether the label changes inside the substituted radius."""
        return self.is_changed and self.distance < self.radius_lower


def search(
    counter: Counter,
    center: NDArray[np.float32],
    nominal: LabelCounts,
    *,
    original: int,
    radius: float,
    sigma: float,
    plan: SearchPlan,
    run: str,
    seed: int,
    index: int,
    climber: Counter | None = None,
) -> tuple[Candidate, ...]:
    """Return screened candidates inside `reach` times the radius, best margin first.

    Restarts alternate between the two most frequent other labels of `nominal`. The best and the last center of each
    restart are screened, each with its own noise. Centers stay in the box of pixel values. Noise is not clipped.
    Gradients are those of `climber`, by default of the counter itself.
    """
    checks.positive("radius", radius)
    climber = counter if climber is None else climber
    others = sorted(
        (label for label in range(len(nominal.retained)) if label != original),
        key=lambda label: (-nominal.retained[label], label),
    )
    found = []
    for restart in range(plan.restarts):
        target = others[restart % min(2, len(others))]
        noise = NoiseStream(run=run, seed=seed, index=index, purpose=f"search/{restart}", dimension=center.size)
        for place, moved in enumerate(_climb(climber, center, target, original, radius, sigma, plan, noise, restart)):
            screen = NoiseStream(
                run=run, seed=seed, index=index, purpose=f"screen/{restart}/{place}", dimension=center.size
            )
            (counts,) = counter.count(moved, screen, plan.screen)
            # The screen may favour another label than the target. The confirmation has noise of its own, so any may be
            # tried.
            winner = max(others, key=lambda label: (counts.retained[label], -label))
            found.append(Candidate(center=moved, target=winner, screen=counts))
    return tuple(sorted(found, key=lambda candidate: -candidate.margin))


def refuse_without_gradients(climber: Counter, center: NDArray[np.float32]) -> None:
    """Raise ValueError if torch cannot differentiate the network that is to lead a search."""
    require_torch()
    import torch

    image = torch.from_numpy(center.transpose(2, 0, 1)[np.newaxis].copy()).to(climber.device)
    if not climber.logits(image.requires_grad_(True)).requires_grad:
        raise ValueError(
            "the network that leads the search must have gradients, and this one has none. Name another form of it, "
            "such as the network that an ONNX file was exported from: --gradients package.module:factory."
        )


def _climb(
    counter: Counter,
    center: NDArray[np.float32],
    target: int,
    original: int,
    radius: float,
    sigma: float,
    plan: SearchPlan,
    noise: NoiseStream,
    restart: int,
) -> Sequence[NDArray[np.float32]]:
    """Climb the smoothed margin of `target` over `original` among retained proposals. Return best and last center."""
    require_torch()
    import torch

    device = counter.device
    reader, rows = noise.reader(device=device), torch.empty((plan.proposals, center.size), device=device)
    base = torch.from_numpy(center.reshape(-1)).to(device)
    limit = plan.reach * radius

    def inside(moved: torch.Tensor) -> torch.Tensor:
        # Two rounds of both projections are close enough, because the confirmation measures the distance again.
        for _ in range(2):
            moved = moved.clamp(plan.low, plan.high)
            shift = moved - base
            moved = base + shift * min(1.0, limit / max(float(shift.norm()), 1e-12))
        return moved

    start = torch.zeros_like(base)
    # The first restart of each target begins at the image itself, later ones at a random shift.
    if restart >= 2:
        reader.fill(rows)
        start = rows[0].clone()
        start = start * (0.5 * limit / float(start.norm()))
    moved = inside(base + start)
    best, best_value = moved, -2.0
    for step in range(plan.steps):
        temperature = plan.temperatures[min(step * len(plan.temperatures) // plan.steps, len(plan.temperatures) - 1)]
        reader.fill(rows)
        variable = moved.clone().requires_grad_(True)
        proposals = variable + sigma * rows
        logits = counter.logits(proposals.view(plan.proposals, *center.shape).permute(0, 3, 1, 2))
        # A smooth stand-in for the threshold of the filter, which has no gradient.
        weight = torch.sigmoid((logits.softmax(1).amax(1) - plan.threshold) / 0.05) + 1e-6
        soft = (logits / temperature).softmax(1)
        value = (weight * (soft[:, target] - soft[:, original])).sum() / weight.sum()
        (gradient,) = torch.autograd.grad(value, variable)
        if float(value.detach()) > best_value:
            best, best_value = moved, float(value.detach())
        size = limit * 2.5 / plan.steps
        moved = inside(moved + size * gradient / max(float(gradient.norm()), 1e-12)).detach()
    return [part.cpu().numpy().reshape(center.shape).astype(np.float32) for part in (best, moved)]


def confirm(
    counter: Counter,
    center: NDArray[np.float32],
    moved: NDArray[np.float32],
    *,
    original: int,
    changed: int,
    trials: int,
    sigma: float,
    delta: float,
    members: int,
    run: str,
    seed: int,
    index: int,
) -> Confirmation:
    """Test a pair of endpoints on fresh noise, in a family with a share of delta for every cohort member.

    The exact pairwise test compares each endpoint's label with every other label. A lower bound on the conditional
    probability of the original label gives one on the substituted radius sigma Phi^-1 (paper, app:cifar101-attack).

    *Assumes* that endpoints, labels, `trials` and `members` were fixed without the noise drawn here.
    """
    counts = []
    for name, place in (("nominal", center), ("shifted", moved)):
        noise = NoiseStream(run=run, seed=seed, index=index, purpose=f"confirmation/{name}", dimension=center.size)
        (found,) = counter.count(place, noise, trials)
        counts.append(found)
    nominal, shifted = counts
    # The share is the same if only a few members are confirmed, because which ones depends on their counts.
    each = bonferroni(delta, family_size(members, len(nominal.retained)))
    return Confirmation(
        original=original,
        changed=changed,
        nominal=nominal,
        shifted=shifted,
        nominal_error=_winner_error(nominal, original),
        shifted_error=_winner_error(shifted, changed),
        distance=distance_upper(center, moved),
        radius_lower=_substituted_lower(nominal, original, sigma, each),
        error_each=each,
    )


def _winner_error(counts: LabelCounts, winner: int) -> float:
    others = (count for label, count in enumerate(counts.retained) if label != winner)
    return max(winner_pvalue(counts.retained[winner], count) for count in others)


def _substituted_lower(counts: LabelCounts, label: int, sigma: float, delta: float) -> float:
    retained = sum(counts.retained)
    if retained == 0:
        return 0.0
    lower = clopper_pearson_lower(counts.retained[label], retained, delta=delta)
    if not lower > 0.5:
        return 0.0
    with precision():
        return max(lower_float(exact(sigma) * normal_quantile(exact(lower))), 0.0)
