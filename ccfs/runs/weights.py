"""Weigh nominal trials: how much likelier each would be under a named disturbance, from its trace and its noise.

The noise of every block is drawn again from its stream, so neither the environment nor the controller is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ccfs.certificates.rounding import fraction_upper
from ccfs.certificates.schedule import NamedSigma, ProposalSchedule, Schedule, Stage
from ccfs.files.imports import from_source
from ccfs.protocol.errors import ProtocolError
from ccfs.protocol.model import Arm, Protocol
from ccfs.protocol.registry import target
from ccfs.protocol.tables import FamilySpec
from ccfs.runs.build import resolve
from ccfs.runs.outcomes import Outcome
from ccfs.runs.trace import Trace
from ccfs.runtime.streams import Purpose, Streams
from ccfs.runtime.wrapper import Widths

__all__ = [
    "Disturbance",
    "Past",
    "Weight",
    "center",
    "constant",
    "disturbance",
    "is_weighed",
    "lag",
    "mean_noise",
    "stage_of",
]

Array = NDArray[np.float64]
# A cell of the default net reaches 1/32 from its center along each coordinate, in units of mu. The certified
# probability loses at most 0.4 times the square root of k over 32 by that, and each cell pays for its share of delta.
_CELLS_PER_MU = 16
# A trial that ended in such a way may have drawn a block that its trace does not show.
_HIDDEN = (Outcome.CRASHED, Outcome.NONFINITE)


class Past(NamedTuple):
    """What is public when the block of step `t` is drawn, as far as a run stores it. Features may read this.

    Args:
        t: the step, from 0.
        center: the controller's answer, clipped and never shifted.
        centers: those of the steps before, array [t, d].
        actions: the actions of the steps before, array [t, a].
        reward: the rewards of the steps before.
        cost: the costs of the steps before, NaN where the environment reported none.
        goal: whether the goal was met at each of the steps before.
    """

    t: int
    center: Array
    centers: Array
    actions: Array
    reward: Array
    cost: Array
    goal: NDArray[np.bool_]


Features = Callable[[Past], Array]
"""Returns A_t, an array [d, k]: what one unit of each coordinate of theta adds to the center."""


Diagonals = Callable[[Array], Array]
"""Returns the diagonal of A_t at every step, given the centers of a trial, arrays [steps, d]."""


def constant() -> Diagonals:
    """Return ones: a bias that is the same at every step."""
    return np.ones_like


def center() -> Diagonals:
    """Return the centers: an error of the gain. With theta = 0.1 the center is 10% too large."""
    return np.copy


def lag() -> Diagonals:
    """Return the center of the step before minus the center: with theta = 1 every command comes one step late."""
    return lambda centers: np.asarray(np.concatenate([centers[:1], centers[:-1]]) - centers)


_SHIPPED: dict[str, Callable[[], Diagonals]] = {"constant": constant, "center": center, "lag": lag}


class Weight(NamedTuple):
    """What one trial recorded about a disturbance: S and Q of `ccfs.certificates.families`."""

    score: tuple[float, ...]
    energy: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A family of disturbances of one arm: Δ_t = A_t theta with theta in a box.

    Args:
        spec: the family as the protocol declares it.
        stage: the stage that it shifts.
        blocks: the blocks of the stage, one for every step or one per step.
        width: number of coordinates of the stage's center.
        horizon: greatest number of blocks of a trial.
        features: the user's own features, None for shipped ones.
    """

    spec: FamilySpec
    stage: Stage
    blocks: tuple[ProposalSchedule, ...]
    width: int
    horizon: int
    features: Features | None

    @property
    def box(self) -> tuple[tuple[float, float], ...]:
        """Least and greatest value of each coordinate of theta."""
        return self.spec.limits

    @property
    def most(self) -> Array:
        """Greatest absolute value of each entry of A_t, array [d, k]. Features are limited to it."""
        if self.spec.is_own:
            return np.array(self.spec.most, dtype=np.float64)
        table = np.zeros((self.width, len(self.box)))
        values = self.spec.most or (1.0,) * len(self.box)
        for column, place in enumerate(self.spec.places(self.width)):
            table[place, column] = values[column]
        return table

    @property
    def ceiling(self) -> tuple[tuple[float, ...], ...]:
        """A matrix with theta' Q theta <= theta' ceiling theta on every path that can happen, rounded up.

        A row of A_t with n entries that may differ from 0 has (sum_j a_j theta_j)^2 <= n sum_j a_j^2 theta_j^2, and an
        entry is at most `most`. A trial has at most one block for each step of the horizon.
        """
        most = self.most.tolist()
        totals = [Fraction(0)] * len(self.box)
        for place, charge in enumerate(self._charges()):
            entries = sum(value > 0.0 for value in most[place])
            if entries and charge is None:
                raise ProtocolError(
                    f"`families` {self.spec.name!r} must not shift coordinate {place}, which has no noise."
                )
            for column, value in enumerate(most[place]):
                totals[column] += entries * Fraction(value) ** 2 * (charge or 0)
        return tuple(
            tuple(fraction_upper(total) if row == column else 0.0 for column in range(len(totals)))
            for row, total in enumerate(totals)
        )

    @property
    def cells(self) -> tuple[int, ...]:
        """Number of cells of the net along each coordinate: the declared ones, or so many that cells are small."""
        if self.spec.cells is not None:
            return self.spec.cells
        sizes = [math.sqrt(self.ceiling[i][i]) * (high - low) for i, (low, high) in enumerate(self.box)]
        return tuple(max(math.ceil(_CELLS_PER_MU * size), 1) for size in sizes)

    def _charges(self) -> Iterator[Fraction | None]:
        """Yield the energy of a shift by one in each coordinate at every step, None where a step has no noise."""
        steps = self.blocks * self.horizon if len(self.blocks) == 1 else self.blocks[: self.horizon]
        known: dict[tuple[ProposalSchedule, float], Fraction] = {}
        scales = {block: block.scales(self.width).tolist() for block in set(steps)}
        for place in range(self.width):
            total: Fraction | None = Fraction(0)
            for block in steps:
                scale = scales[block][place]
                if scale == 0.0 or total is None:
                    total = None
                    break
                key = (block, scale)
                if key not in known:
                    known[key] = block.charge_of(scale)
                total += known[key]
            yield total

    def weight(self, trace: Trace, streams: Streams) -> Weight:
        """Return S and Q of one nominal trial, from its trace and from its noise, drawn again.

        Sums are exact and rounded once, so they do not depend on the machine.
        """
        noise, charges = mean_noise(self.stage, self.blocks, self.width, len(trace), streams)
        table = self._table(trace)  # array [steps, d, k]
        weighted = charges * noise
        columns = [table[:, :, column] for column in range(table.shape[2])]
        score = tuple(_sum(column * weighted) for column in columns)
        energy = tuple(tuple(_sum(column * other * charges) for other in columns) for column in columns)
        return Weight(score, energy)

    def _table(self, trace: Trace) -> Array:
        """Return A_t of every step of a trace, limited to `most`."""
        most = self.most
        if not self.spec.is_own:
            steps = len(trace)
            shape = (steps, self.width)
            of_center = self.stage is not Stage.SENSOR  # a run stores no observations, so only ones are made of them
            values = _SHIPPED[self.spec.features]()(trace.centers if of_center else np.zeros(shape))
            table = np.zeros((steps, self.width, len(self.box)))
            for column, place in enumerate(self.spec.places(self.width)):
                table[:, place, column] = values[:, place]
        else:
            table = np.array([_matrix(self, past) for past in _pasts(trace)]).reshape(len(trace), *most.shape)
        return np.clip(table, -most, most)


def _matrix(disturbance: Disturbance, past: Past) -> Array:
    """Return the user's own A_t. Refuse another shape, a number that is not finite, and two different answers."""
    name, shape = disturbance.spec.name, disturbance.most.shape
    if disturbance.features is None:
        raise TypeError("the features of this disturbance were not made.")
    found = [np.asarray(disturbance.features(_copied(past)), dtype=np.float64) for _ in range(2 if past.t == 0 else 1)]
    if found[0].shape != shape or not np.isfinite(found[0]).all():
        raise ProtocolError(f"`families` {name!r} must have finite features of shape {shape}, got {found[0]}.")
    if not np.array_equal(found[0], found[-1]):
        raise ProtocolError(f"`families` {name!r} gave two answers about one step. Features must depend on it alone.")
    return found[0]


def _copied(past: Past) -> Past:
    return Past(
        past.t,
        past.center.copy(),
        past.centers.copy(),
        past.actions.copy(),
        past.reward.copy(),
        past.cost.copy(),
        past.goal.copy(),
    )


def _pasts(trace: Trace) -> Iterator[Past]:
    centers, actions, reward, cost, goal = trace.centers, trace.actions, trace.reward, trace.cost, trace.goal
    for t in range(len(trace)):
        yield Past(t, centers[t], centers[:t], actions[:t], reward[:t], cost[:t], goal[:t])


def _sum(values: Array) -> float:
    return math.fsum(values.ravel().tolist())


def mean_noise(
    stage: Stage, blocks: Sequence[ProposalSchedule], width: int, steps: int, streams: Streams
) -> tuple[Array, Array]:
    """Return the mean of each block around its center, and what a squared shift costs, arrays [steps, width].

    The block of a step is drawn even if nobody accepted anything of it, so every recorded step has one. Where there is
    no noise both are 0.
    """
    rng = streams.generator(Purpose.SENSOR if stage is Stage.SENSOR else Purpose.PROPOSAL)
    noise, charges = np.empty((steps, width)), np.empty((steps, width))
    if len(blocks) == 1:
        # One call draws the same numbers as one call per step.
        noise[:] = _means(blocks[0], width, rng.standard_normal((steps, blocks[0].count + 1, width)))
        charges[:] = _costs(blocks[0], width)
    else:
        for t in range(steps):
            noise[t] = _means(blocks[t], width, rng.standard_normal((1, blocks[t].count + 1, width)))[0]
            charges[t] = _costs(blocks[t], width)
    return noise, charges


def _means(block: ProposalSchedule, width: int, normals: Array) -> Array:
    """Return the means of blocks whose standard normals are given: first the shared ones, then each proposal's own."""
    shared, own = np.sqrt(block.rho), np.sqrt(1.0 - block.rho)
    total = np.zeros((len(normals), width))
    for proposal in range(1, block.count + 1):  # in this order on every machine
        total += normals[:, proposal]
    return np.asarray(block.scales(width) * (shared * normals[:, 0] + own * (total / block.count)))


def _costs(block: ProposalSchedule, width: int) -> Array:
    return np.array([float(block.charge_of(scale)) if scale else 0.0 for scale in block.scales(width).tolist()])


def is_weighed(trace: Trace) -> bool:
    """Return whether every block that a trial drew belongs to a step of its trace."""
    return trace.outcome not in _HIDDEN


def stage_of(spec: FamilySpec, schedule: Schedule) -> Stage:
    """Return the stage that a family shifts. Refuse one without noise, or whose noise is given by names."""
    stage = schedule.main if spec.stage is None else Stage(spec.stage)
    if stage not in schedule.stages:
        accepted = ", ".join(part.value for part in schedule.stages)
        raise ProtocolError(f"`families` {spec.name!r} must shift a stage with noise, {accepted}, got {stage.value}.")
    if stage is Stage.SENSOR and spec.features != "constant":
        raise ProtocolError(
            f"`families` {spec.name!r} must have features = 'constant' for the sensor stage, because a run stores no "
            f"observations, got {spec.features!r}."
        )
    if any(isinstance(block.sigma, NamedSigma) for block in schedule.blocks(stage)):
        raise ProtocolError(
            f"`families` {spec.name!r} needs numbers as `sigma` of the {stage.value} stage, because a run does not say "
            "where the named slices are."
        )
    return stage


def disturbance(protocol: Protocol, arm: Arm, spec: FamilySpec, widths: Widths, *, is_made: bool = True) -> Disturbance:
    """Return a family of an arm whose centers and readings have these widths. Raise ProtocolError if it does not fit.

    Features of the user's own are made, which runs their code. Without `is_made` they are not, and only the bounds of
    the result can be used.
    """
    plan = arm.schedule.plan
    stage = stage_of(spec, plan)
    width = widths.sensor if stage is Stage.SENSOR else widths.center
    blocks = tuple(block.resolved(width) for block in plan.blocks(stage))
    made = Disturbance(spec, stage, blocks, width, protocol.horizon, _own(spec) if is_made else None)
    rows = made.most.shape
    if spec.is_own and rows != (width, len(made.box)):
        raise ProtocolError(
            f"`families` {spec.name!r} must have `most` with {width} lists (coordinates of the {stage.value} stage) of "
            f"{len(made.box)} numbers (coordinates of the box), got {rows[0]} lists."
        )
    if not spec.is_own:
        spec.places(width)
    made.ceiling  # noqa: B018  # for its own refusals
    return made


def _own(spec: FamilySpec) -> Features | None:
    if not spec.is_own:
        return None
    key = f"families.{spec.name}"
    with from_source():
        found = resolve(key, target("features", spec.features))(**spec.arguments)
    if not callable(found):
        raise ProtocolError(f"`{key}.features` must give a function from a `Past` to a matrix, got {found!r:.200}.")
    return found
