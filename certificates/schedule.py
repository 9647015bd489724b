"""Proposal blocks: how many draws, how wide, how correlated, what a shift costs, and the plan over stages and time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates import checks
from ccfs.certificates.rounding import fraction_upper

__all__ = [
    "Blocks",
    "NamedSigma",
    "ObservationLayout",
    "PerCoordinate",
    "ProposalSchedule",
    "Schedule",
    "Stage",
    "as_schedule",
    "block_at",
    "kappa",
    "rho_for_multiplier",
]


def kappa(count: int, rho: float) -> float:
    """Return the energy multiplier of a block of `count` proposals with pairwise correlation `rho`.

    kappa = N / (1 + (N - 1) rho) is the squared length of the whitened all-ones direction (Theorem 14,
    thm:adaptive-trajectory). A shift of the block's center costs kappa times its squared norm over sigma squared.

    Args:
        count: proposals in a block, N in the paper, at least 1.
        rho: correlation between two proposals of one block, in [0, 1).

    Returns:
        kappa, rounded up. This overstates the cost, so a budget that is derived from it is never too large.

    Raises:
        TypeError: `count` is not an integer, or `rho` is not a real number.
        ValueError: an argument is out of range, or a single proposal has a correlation.

    >>> kappa(4, 0.0), kappa(1, 0.0)
    (4.0, 1.0)
    """
    return fraction_upper(_kappa_exact(*_block(count, rho)))


def rho_for_multiplier(count: int, multiplier: float) -> float:
    """Return the correlation at which a shift of `count` proposals has the energy multiplier `multiplier`.

    This is the inverse of `kappa`: rho = (N / lambda - 1) / (N - 1).

    Args:
        count: proposals in a block, N in the paper.
        multiplier: the kappa to reach, in (1, N] for N > 1 and exactly 1 for N = 1.

    Returns:
        rho, rounded up, so that the block never costs more than `multiplier`.

    Raises:
        TypeError: `count` is not an integer, or `multiplier` is not a real number.
        ValueError: no correlation gives this multiplier.

    >>> kappa(4, rho_for_multiplier(4, 1.05))
    1.05
    """
    proposals = checks.count("count", count, minimum=1)
    factor = checks.positive("multiplier", multiplier)
    if proposals == 1:
        if factor != 1.0:
            raise ValueError(f"`multiplier` must be 1 for a single proposal, got {factor}.")
        return 0.0
    if not 1.0 < factor <= proposals:
        raise ValueError(f"`multiplier` must be in (1, {proposals}] for {proposals} proposals, got {factor}.")
    return fraction_upper((proposals / Fraction(factor) - 1) / (proposals - 1))


class Stage(Enum):
    """A place where Gaussian noise enters a step. A step goes through its stages in this order.

    SENSOR is the observation that is read. ACTION (Box spaces) and SCORE (Discrete spaces) are deciding stages: their
    block holds the proposals of an action.
    """

    SENSOR = "sensor"
    ACTION = "action"
    SCORE = "score"


ObservationLayout: TypeAlias = Mapping[str, tuple[int, int]]
"""Where each named slice of an observation begins and ends: {"goal_lidar": (12, 28)}."""
PerCoordinate: TypeAlias = "float | tuple[float, ...] | Mapping[str, float]"
"""One number for all coordinates, one per coordinate, or one per named slice."""


class NamedSigma(Mapping[str, float]):
    """Standard deviations of named slices of an observation. It cannot be changed, and it can be hashed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, float]) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)


@dataclass(frozen=True, slots=True, init=False)
class ProposalSchedule:
    """One proposal block: `count` Gaussian proposals of scale `sigma` around a center, pairwise correlation `rho`.

    Assumes: fixed before sampling. Blocks may differ between steps, but must not depend on what was sampled.

    Args:
        count: proposals in a block, N in the paper.
        sigma: standard deviation of each proposal, in the units of the center. One number, or one number per
            coordinate, or a mapping from names of observation slices to numbers. A coordinate with 0, or in no named
            slice, has no noise. No shift of it is covered.
        rho: correlation between two proposals of one block, in [0, 1). It is 0 if neither it nor `multiplier` is given.
        multiplier: the `kappa` that the block shall have, instead of `rho`. The block's own kappa is never above it.

    >>> ProposalSchedule(count=4, sigma=0.2, multiplier=1.05).kappa
    1.05
    >>> ProposalSchedule(count=1, sigma=[0.5, 0.25, 0.0]).charges
    (4.0, 16.0, inf)
    """

    count: int
    sigma: float | tuple[float, ...] | NamedSigma
    rho: float

    def __init__(
        self,
        *,
        count: int,
        sigma: float | Sequence[float] | Mapping[str, float],
        rho: float | None = None,
        multiplier: float | None = None,
    ) -> None:
        if rho is not None and multiplier is not None:
            raise ValueError(f"`rho` must not be given beside `multiplier`, got {rho} and {multiplier}.")
        given = rho if multiplier is None else rho_for_multiplier(count, multiplier)
        proposals, correlation = _block(count, 0.0 if given is None else given)
        for name, value in (("count", proposals), ("sigma", _sigma(sigma)), ("rho", correlation)):
            object.__setattr__(self, name, value)

    @property
    def kappa(self) -> float:
        """Energy multiplier of the block, rounded up."""
        return kappa(self.count, self.rho)

    @property
    def charge(self) -> float:
        """Greatest energy of a shift of length one, kappa / sigma squared, rounded up."""
        return fraction_upper(self.charge_exact)

    @property
    def charge_exact(self) -> Fraction:
        """Greatest energy of a shift of length one as an exact fraction of the stored doubles."""
        return self.charge_of(min(value for value in _values(self.sigma) if value > 0.0))

    @property
    def charges(self) -> PerCoordinate:
        """Energy of a shift of one coordinate by one, rounded up: one number, one per coordinate, or one per name.

        It is infinite for a coordinate without noise.
        """
        if isinstance(self.sigma, float):
            return self.charge
        if isinstance(self.sigma, tuple):
            return tuple(self._charge_upper(value) for value in self.sigma)
        return {name: self._charge_upper(value) for name, value in self.sigma.items()}

    def charge_of(self, sigma: float) -> Fraction:
        """Return kappa over a squared scale, as an exact fraction of the stored doubles."""
        return _kappa_exact(self.count, self.rho) / Fraction(sigma) ** 2

    def resolved(self, width: int, layout: ObservationLayout | None = None) -> ProposalSchedule:
        """Return this block for a center of `width` coordinates, with names of slices replaced by numbers.

        Raises:
            ValueError: there are as many numbers as another width has, or a name is not in the layout.
        """
        if isinstance(self.sigma, float):
            return self
        if isinstance(self.sigma, tuple):
            if len(self.sigma) != width:
                raise ValueError(
                    f"`sigma` must be one number, or one for each of the {width} coordinates, got {len(self.sigma)}."
                )
            return self
        if layout is None:
            raise ValueError(
                f"`sigma` names {_some(self.sigma)}, but nothing says where these are in the observation. Give "
                "numbers, or give the environment an attribute `observation_layout` that maps each name to "
                "(start, stop)."
            )
        values = [0.0] * width
        for name, value in self.sigma.items():
            if name not in layout:
                raise ValueError(f"`sigma` must name slices of the observation, {_some(layout)}, got {name!r}.")
            start, stop = layout[name]
            if not 0 <= start < stop <= width or any(values[start:stop]):
                raise ValueError(
                    f"`observation_layout` must have slices of [0, {width}) that do not overlap, got {name!r}: "
                    f"({start}, {stop})."
                )
            values[start:stop] = [value] * (stop - start)
        return ProposalSchedule(count=self.count, sigma=values, rho=self.rho)

    def scales(self, width: int, layout: ObservationLayout | None = None) -> NDArray[np.float64]:
        """Return the standard deviation of each of `width` coordinates, 0 where there is no noise."""
        return np.array(np.broadcast_to(np.array(self.resolved(width, layout).sigma), width), dtype=np.float64)

    def sample_block(self, center: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw the complete block, shape (count, d): first the shared normals, then those of each proposal.

        The number of normals never depends on what is accepted later. Drawing until acceptance would change the law for
        which the theorem charges. A center that is not finite gives proposals that are not finite.
        """
        if center.ndim != 1:
            raise ValueError(f"`center` must have shape (d,), got {center.shape}.")
        scales = _scales(self.count, self.sigma, self.rho)
        if scales.shape[1] not in (1, center.shape[0]):
            raise ValueError(f"`center` must have one entry for each of {scales.shape[1]} scales, got {center.shape}.")
        normals = rng.standard_normal((self.count + 1, center.shape[0]))
        normals *= scales
        block = normals[1:]  # changed in place: new arrays would take most of the time of a small block
        block += normals[0] + center
        return block

    def _charge_upper(self, sigma: float) -> float:
        return fraction_upper(self.charge_of(sigma)) if sigma > 0.0 else math.inf


Blocks: TypeAlias = "ProposalSchedule | tuple[ProposalSchedule, ...]"
"""One block for every step, or one per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The plan of all blocks: for each stage nothing, one block for every step, or one block per step.

    Assumes: fixed before sampling.

    Args:
        action: blocks around the controller's action, for Box spaces.
        score: blocks around the controller's scores (logits, Q-values), for Discrete and MultiDiscrete spaces. A
            candidate is the action with the greatest noisy score.
        sensor: the noise of each observation that is read. Its blocks have one draw.
        readers: who reads the noisy observation. "all" is controller, verifier and fallbacks. With "controller" the
            verifier and the fallbacks read the true one, so that an error of their own sensors is outside of the claim.

    >>> Schedule(
    ...     action=ProposalSchedule(count=4, sigma=0.2), sensor=ProposalSchedule(count=1, sigma={"lidar": 0.05})
    ... ).stages
    (<Stage.SENSOR: 'sensor'>, <Stage.ACTION: 'action'>)
    """

    action: Blocks | Sequence[ProposalSchedule] | None = None
    score: Blocks | Sequence[ProposalSchedule] | None = None
    sensor: Blocks | Sequence[ProposalSchedule] | None = None
    readers: Literal["all", "controller"] = "all"

    def __post_init__(self) -> None:
        for stage in Stage:
            given = getattr(self, stage.value)
            if given is not None:
                object.__setattr__(self, stage.value, _blocks(stage, given))
        if not self.stages:
            raise ValueError("`schedule` must have a block for at least one stage: action, score or sensor.")
        if self.action is not None and self.score is not None:
            raise ValueError("`schedule` must not have both `action` and `score`: a space is a Box or discrete.")
        if self.readers not in ("all", "controller"):
            raise ValueError(f'`readers` must be "all" or "controller", got {self.readers!r}.')
        if self.readers != "all" and self.sensor is None:
            raise ValueError('`readers` must be "all" without a sensor stage, because everybody reads the same.')
        lengths = {len(blocks) for stage in self.stages if isinstance(blocks := self.of(stage), tuple)}
        if len(lengths) > 1:
            raise ValueError(f"`schedule` must have as many blocks in each stage, got {sorted(lengths)}.")

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that have noise, in the order in which a step goes through them."""
        return tuple(stage for stage in Stage if getattr(self, stage.value) is not None)

    @property
    def deciding(self) -> Stage | None:
        """The stage whose block holds the proposals, or None if they have no noise."""
        return next((stage for stage in self.stages if stage is not Stage.SENSOR), None)

    @property
    def main(self) -> Stage:
        """The stage that a budget is about if none is named: the deciding one, or the sensor if it is the only one."""
        return self.stages[-1]

    @property
    def length(self) -> int | None:
        """Number of steps that are planned, or None if each stage has one block for every step."""
        plans = [blocks for stage in self.stages if isinstance(blocks := self.of(stage), tuple)]
        return len(plans[0]) if plans else None

    def of(self, stage: Stage) -> Blocks:
        """Return the plan of a stage.

        Raises:
            ValueError: the stage has no noise.
        """
        found: Blocks | None = getattr(self, stage.value)
        if found is None:
            noisy = ", ".join(part.value for part in self.stages)
            raise ValueError(f"`stage` must be one of {noisy}, which have noise, got {stage.value}.")
        return found

    def blocks(self, stage: Stage) -> tuple[ProposalSchedule, ...]:
        """Return the blocks of a stage, which are one or as many as steps."""
        found = self.of(stage)
        return found if isinstance(found, tuple) else (found,)

    def at(self, stage: Stage, t: int) -> ProposalSchedule:
        """Return the block of a stage at step `t`."""
        return block_at(self.of(stage), t)

    def resolved(self, widths: Mapping[Stage, int], layout: ObservationLayout | None = None) -> Schedule:
        """Return this schedule for centers of these widths, with names of slices replaced by numbers."""
        made: dict[str, Blocks] = {}
        for stage in self.stages:
            try:
                blocks = tuple(block.resolved(widths[stage], layout) for block in self.blocks(stage))
            except ValueError as error:
                raise ValueError(f"the {stage.value} stage: {error}") from None
            made[stage.value] = blocks if isinstance(self.of(stage), tuple) else blocks[0]
        return Schedule(**made, readers=self.readers)


def as_schedule(
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule], deciding: Stage = Stage.ACTION
) -> Schedule:
    """Return a schedule as it is, and one or several blocks as those of the deciding stage.

    Raises:
        TypeError: an entry is not a ProposalSchedule, or there is none.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if deciding is Stage.SENSOR:
        raise ValueError("`deciding` must be the action or the score stage, got the sensor stage.")
    blocks = _blocks(deciding, schedule)
    return Schedule(score=blocks) if deciding is Stage.SCORE else Schedule(action=blocks)


def block_at(blocks: Blocks, t: int) -> ProposalSchedule:
    """Return the block of step `t`.

    Raises:
        ValueError: there is one block per step, and the last one is before `t`.
    """
    if isinstance(blocks, ProposalSchedule):
        return blocks
    if not 0 <= t < len(blocks):
        raise ValueError(f"`t` must be in [0, {len(blocks)}), got {t}. Give a schedule for every step of the horizon.")
    return blocks[t]


def _blocks(stage: Stage, given: object) -> Blocks:
    if isinstance(given, ProposalSchedule):
        blocks: Blocks = given
        every: tuple[ProposalSchedule, ...] = (given,)
    else:
        every = blocks = tuple(given) if isinstance(given, Sequence) else ()
    if not every or not all(isinstance(entry, ProposalSchedule) for entry in every):
        raise TypeError(
            f"`schedule` must be a ProposalSchedule or a non-empty sequence of them for each stage, got {given!r}."
        )
    if stage is Stage.SENSOR and any(entry.count != 1 for entry in every):
        raise ValueError("`sensor` must have blocks of `count` 1, because one reading is made of each observation.")
    if stage is not Stage.SENSOR and any(isinstance(entry.sigma, NamedSigma) for entry in every):
        raise ValueError(f"`{stage.value}` must have a `sigma` of numbers. Only slices of an observation have names.")
    return blocks


def _sigma(sigma: object) -> float | tuple[float, ...] | NamedSigma:
    """Return a checked scale: one number, one per coordinate with at least one that is positive, or one per name."""
    if isinstance(sigma, Mapping):
        if not sigma or not all(isinstance(name, str) and name for name in sigma):
            raise ValueError(f"`sigma` must name at least one slice of the observation, got {sigma!r}.")
        return NamedSigma({name: _scale(f"sigma[{name!r}]", value) for name, value in sigma.items()})
    if isinstance(sigma, np.ndarray):
        sigma = sigma.tolist()
    if isinstance(sigma, Sequence) and not isinstance(sigma, (str, bytes)):
        values = tuple(
            0.0 if type(value) in (int, float) and value == 0 else _scale(f"sigma[{i}]", value)
            for i, value in enumerate(sigma)
        )
        if not any(values):
            raise ValueError(f"`sigma` must have a coordinate with noise, got {list(values)}.")
        return values
    return _scale("sigma", sigma)


def _scale(name: str, value: object) -> float:
    scale = checks.positive(name, value)
    if not 1e-150 <= scale <= 1e150:
        raise ValueError(f"`{name}` must be between 1e-150 and 1e150, so that a charge is a double, got {scale}.")
    return scale


def _values(sigma: float | tuple[float, ...] | NamedSigma) -> tuple[float, ...]:
    if isinstance(sigma, float):
        return (sigma,)
    return tuple(sigma.values()) if isinstance(sigma, NamedSigma) else sigma


def _some(names: Mapping[str, object]) -> str:
    """Return the first names, for errors."""
    shown = ", ".join(list(names)[:8])
    return f"{shown}, ..." if len(names) > 8 else shown or "of which there are none"


def _block(count: object, rho: object) -> tuple[int, float]:
    proposals = checks.count("count", count, minimum=1)
    correlation = checks.finite("rho", rho)
    if not 0.0 <= correlation < 1.0:
        raise ValueError(f"`rho` must be in [0, 1), got {correlation}. `multiplier` gives the correlation for a cost.")
    if proposals == 1 and correlation != 0.0:
        raise ValueError(f"`rho` must be 0 for a single proposal, got {correlation}.")
    return proposals, correlation


@lru_cache(maxsize=256)
def _scales(count: int, sigma: float | tuple[float, ...] | NamedSigma, rho: float) -> NDArray[np.float64]:
    """Return the standard deviations of the shared normals and of each proposal's own, shape (count + 1, 1 or d)."""
    if isinstance(sigma, NamedSigma):
        raise ValueError(f"`sigma` names {_some(sigma)}. Use `resolved`, which replaces names by numbers.")
    scales = np.asarray(np.array(sigma) * np.sqrt(np.array([[rho], *[[1.0 - rho]] * count])))
    scales.setflags(write=False)  # the cache gives one array to every caller
    return scales


def _kappa_exact(count: int, rho: float) -> Fraction:
    return count / (1 + (count - 1) * Fraction(rho))
