"""The figures of a report: certified curves with observed rates, who acted over time, and trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from markupsafe import Markup

from ccfs.certificates import checks
from ccfs.certificates.binomial import hoeffding_lower
from ccfs.certificates.bounds import Bound, Sampling
from ccfs.certificates.rounding import exact_text, fraction_upper, lower_text, upper_text
from ccfs.certificates.stratified import StratifiedCertificate
from ccfs.report.charts import Chart, thinned
from ccfs.report.counts import Bar, Sources
from ccfs.report.drawings import Panel
from ccfs.results.certificate import AttackedCount
from ccfs.runs.counting import Certificate
from ccfs.runtime.interfaces import Vector

__all__ = [
    "DELTA",
    "Observed",
    "bars_figure",
    "curve_figure",
    "drawing_figure",
    "interval",
    "observed",
    "overview_figure",
    "rate_text",
    "source_figure",
]

DELTA = 0.05
"""Failure probability of each interval around an observed rate. These intervals are no part of a claim."""
_POINTS = 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """An observed success rate beside what is certified at the same budget."""

    name: str
    budget: float
    limit: str
    certified: float
    successes: int
    trials: int
    low: float
    high: float

    @property
    def is_contradiction(self) -> bool:
        """Whether even the upper end of the interval is below the certified probability."""
        return self.high < self.certified

    @property
    def words(self) -> str:
        """The observation in words."""
        return (
            f"{self.name}: {self.successes} of {self.trials} = {rate_text(self.successes, self.trials)}, "
            f"interval {lower_text(self.low)} to {upper_text(self.high)}"
        )


def rate_text(successes: int, trials: int) -> str:
    """Return an observed rate with four decimals, rounded to nearest, because it bounds nothing.

    >>> rate_text(2, 3)
    '0.6667'
    """
    return f"{successes / trials:.4f}" if trials else "–"


def interval(successes: int, trials: int, bound: Bound, *, delta: float) -> tuple[float, float]:
    """Return a two-sided interval for an observed rate that fails with probability at most `delta`, rounded outwards.

    Both ends use a rule with the premise of `bound`: Clopper and Pearson's for independent trials of one law, the
    cohort's for listed seeds (also under the Hoeffding rule), and the anytime rule for a run that chose when to stop.

    >>> low, high = interval(5, 10, Bound.CLOPPER_PEARSON, delta=0.05)
    >>> f"{low:.4f}, {high:.4f}"
    '0.1871, 0.8129'
    """
    hits, total = checks.tally(successes, trials)
    share = checks.delta(delta) / 2.0
    rule = Bound.COHORT if bound is Bound.HOEFFDING else bound
    low, missed = rule.lower(hits, total, delta=share), rule.lower(total - hits, total, delta=share)
    return low, fraction_upper(1 - Fraction(missed))


def _stratified_interval(
    successes: int, trials: int, proof: StratifiedCertificate, *, delta: float
) -> tuple[float, float]:
    """Return the interval for trials of which several share a reset seed.

    On a cohort they are independent. On a law only the seeds are, so their averages are the units of Hoeffding's
    inequality, which asks for numbers in [0, 1] and not for outcomes. Whole units are counted, rounded outwards.
    """
    if proof.sampling is Sampling.COHORT:
        return interval(successes, trials, Bound.COHORT, delta=delta)
    draws, share = trials // proof.strata, checks.delta(delta) / 2.0
    low, missed = (
        hoeffding_lower(number // draws, proof.strata, delta=share) for number in (successes, trials - successes)
    )
    return low, fraction_upper(1 - Fraction(missed))


def observed(proof: Certificate, attacks: Sequence[AttackedCount]) -> tuple[Observed, ...]:
    """Return the nominal rate at budget zero and each attack's rate at its budget."""
    found = [_observed(proof, "nominal", 0.0, "no shift", proof.p_lower, proof.successes, proof.trials)]
    for attack in attacks:
        if not attack.trials:
            continue
        if attack.budget is None or attack.stages != (proof.schedule.main.value,):
            # Drawn at the Euclidean budget that has this energy at the greatest charge. Certified by its energy.
            size = math.sqrt(attack.energy_limit / proof.charge)
            limit = f"energy {exact_text(attack.energy_limit)}"
        else:
            size, limit = attack.budget, f"budget {exact_text(attack.budget)}"
        certified = attack.certified(proof)
        found.append(_observed(proof, attack.attack, size, limit, certified, attack.successes, attack.trials))
    return tuple(found)


def _observed(
    proof: Certificate, name: str, budget: float, limit: str, certified: float, successes: int, trials: int
) -> Observed:
    if isinstance(proof, StratifiedCertificate):
        low, high = _stratified_interval(successes, trials, proof, delta=DELTA)
    else:
        low, high = interval(successes, trials, proof.bound, delta=DELTA)
    return Observed(
        name=name,
        budget=budget,
        limit=limit,
        certified=certified,
        successes=successes,
        trials=trials,
        low=low,
        high=high,
    )


def curve_figure(proof: Certificate, rates: Sequence[Observed]) -> Chart:
    """Draw the certified probability against the budget, with the observed rates and their intervals."""
    reach = _reach([proof], rates)
    points = proof.curve(_POINTS, reach)
    least = min(points[-1][1], proof.target, *(rate.low for rate in rates))
    chart = _probability_chart(reach, least, f"Certified probability of {proof.event} against the shift budget")
    floor = [(at, chart.y_range[0]) for at, _ in points]
    chart.shapes.append(_region(chart, points, floor))
    chart.line([(0.0, proof.target), (reach, proof.target)], "target", f"target {exact_text(proof.target)}")
    chart.text(reach, proof.target, f"target {exact_text(proof.target)}", anchor="end", dy=-5)
    chart.line(points, "curve s0", "certified lower bound")
    _mark_budget(chart, proof, 0, is_labelled=True)
    for kind, (rate, nudge) in enumerate(zip(rates, _nudges(chart, rates), strict=True)):
        share = rate.successes / rate.trials
        chart.whisker(rate.budget, rate.low, rate.high, kind, nudge=nudge)
        chart.marker(rate.budget, share, kind, nudge=nudge, title=rate.words)
        chart.rows.append((f"observed: {rate.name}", rate.budget, share, rate.low, rate.high))
    return chart


def overview_figure(arms: Sequence[tuple[str, Certificate, Sequence[Observed]]]) -> Chart:
    """Draw the certified curves of several arms together, each with its lowest observed rate under attack."""
    only = [proof for _, proof, _ in arms]
    worst = [_lowest(rates) for _, _, rates in arms]
    marks = [rate for rate in worst if rate is not None]
    reach = _reach(only, marks)
    curves = [proof.curve(_POINTS, reach) for proof in only]
    lows = [rate.successes / rate.trials for rate in marks]
    least = min([only[0].target, *(points[-1][1] for points in curves), *lows])
    chart = _probability_chart(reach, least, "Certified probability against the shift budget, all arms")
    chart.line([(0.0, only[0].target), (reach, only[0].target)], "target")
    chart.text(reach, only[0].target, f"target {exact_text(only[0].target)}", anchor="end", dy=-5)
    for kind, ((name, proof, _), points) in enumerate(zip(arms, curves, strict=True)):
        chart.line(points, f"curve s{kind % 6} dash{kind // 6 % 3}", name)
        _mark_budget(chart, proof, kind, is_labelled=False)
    for kind, ((name, _, _), rate) in enumerate(zip(arms, worst, strict=True)):
        if rate is not None:
            nudge = 8.0 * (kind - (len(arms) - 1) / 2) * min(1.0, 6 / len(arms))
            share = rate.successes / rate.trials
            chart.marker(
                rate.budget, share, kind % 6, nudge=nudge, title=f"{name}, lowest rate under attack: {rate.words}"
            )
            chart.rows.append((f"{name}, observed: {rate.name}", rate.budget, share, rate.low, rate.high))
    return chart


def _lowest(rates: Sequence[Observed]) -> Observed | None:
    return min(rates[1:], key=lambda rate: rate.successes / rate.trials, default=None)


def bars_figure(bars: Sequence[Bar]) -> Chart:
    """Draw how trials ended, a bar for each arm and attack. The page has the same bars, which fit any width."""
    chart = Chart(
        x_range=(0.0, 1.0),
        y_range=(-len(bars) - 0.5, -0.5),
        label="How trials ended",
        x_label="share of trials",
        height=60.0 + 22.0 * len(bars),
        left=190.0,
        width=620.0,
    )
    chart.heads = ("arm", "attack", "ending", "trials", "of")
    for number, bar in enumerate(bars, start=1):
        chart.text(0.0, -number, f"{bar.arm}, {bar.attack}", anchor="end", dx=-8, dy=4)
        at = 0.0
        for part in bar.segments:
            end = at + part.count / bar.trials
            words = f"{part.name}: {part.count} of {bar.trials}"
            chart.rectangle((at, end), (-number - 0.36, -number + 0.36), f"area {part.style}", words)
            chart.rows.append((bar.arm, bar.attack, part.name, part.count, bar.trials))
            at = end
    return chart


def source_figure(found: Sources) -> Chart:
    """Draw the shares of proposals, fallbacks and abstention over time as a stack. The rest has ended."""
    chart = Chart(
        x_range=(0.0, found.edges[-1]),
        y_range=(0.0, 1.0),
        label="Where actions came from, over time",
        x_label="step",
        y_label="share of trials",
        width=320.0,
        height=190.0,
    )
    chart.heads = ("from step", "before step", *found.names)
    chart.rows = [
        (start, end, *shares)
        for start, end, shares in zip(found.edges[:-1], found.edges[1:], found.shares.T.tolist(), strict=True)
    ]
    base = [0.0] * found.shares.shape[1]
    for style, row in zip(found.styles, found.shares.tolist(), strict=True):
        top = [a + b for a, b in zip(base, row, strict=True)]
        chart.area(base, top, found.edges, style)
        base = top
    return chart


def drawing_figure(panel: Panel) -> Chart:
    """Draw the paths of a panel."""
    arrays = [path for group in panel.groups for path in (*group.paths, *_bold(group.bold))]
    xs = [float(value) for path in arrays for value in path[:, 0] if math.isfinite(value)]
    ys = [float(value) for path in arrays for value in path[:, 1] if math.isfinite(value)]
    for rule in panel.rules:
        xs += [rule.start[0], rule.end[0]]
        ys += [rule.start[1], rule.end[1]]
    for disc in panel.discs:
        xs += [disc.center[0] - disc.radius, disc.center[0] + disc.radius]
        ys += [disc.center[1] - disc.radius, disc.center[1] + disc.radius]
    low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
    margin = 0.04 * (high - low)
    chart = Chart(
        x_range=(min(xs), max(xs)) if xs else (0.0, 1.0),
        y_range=(low - margin, high + margin),
        label=panel.caption,
        x_label=panel.x_label,
        y_label=panel.y_label,
        height=420.0 if panel.is_map else 300.0,
        is_map=panel.is_map,
        digits=4,
    )
    for disc in panel.discs:
        chart.circle(*disc.center, disc.radius, f"disc {disc.kind}", disc.name)
    for kind, group in enumerate(panel.groups):
        for number, path in enumerate(group.paths, start=1):
            chart.line(thinned(path), f"path s{kind % 6}", f"{group.name} {number}")
    for rule in panel.rules:
        chart.line([rule.start, rule.end], "rule", rule.name)
        chart.text(*rule.end, rule.name, anchor="end", dx=-7, dy=12)
    for kind, group in enumerate(panel.groups):
        for path in _bold(group.bold):
            chart.line(thinned(path), f"path bold s{kind % 6}", f"{group.name}: mean")
    return chart


def _probability_chart(reach: float, least: float, label: str) -> Chart:
    floor = max(0.0, math.floor(10.0 * (least - 0.02)) / 10.0)
    return Chart(
        x_range=(0.0, reach), y_range=(floor, 1.0), label=label, x_label="total shift budget B", y_label="probability"
    )


def _reach(proofs: Sequence[Certificate], rates: Sequence[Observed]) -> float:
    budgets = [proof.budget for proof in proofs if proof.budget is not None and proof.budget < math.inf]
    reach = max([1.6 * budget for budget in budgets] + [1.4 * rate.budget for rate in rates], default=0.0)
    return reach if reach > 0.0 else max(1.0 / math.sqrt(proof.charge) for proof in proofs)


def _region(chart: Chart, points: Sequence[tuple[float, float]], floor: Sequence[tuple[float, float]]) -> Markup:
    path = "L".join(f"{chart.x(x):.1f} {chart.y(max(y, floor[0][1])):.1f}" for x, y in [*points, *reversed(floor)])
    return Markup('<path class="region" d="M{}z"/>').format(path)


def _mark_budget(chart: Chart, proof: Certificate, kind: int, *, is_labelled: bool) -> None:
    if proof.budget is not None and proof.budget < math.inf:
        chart.line([(proof.budget, chart.y_range[0]), (proof.budget, proof.target)], f"drop s{kind % 6}")
        if is_labelled:
            chart.text(proof.budget, chart.y_range[0], f"B = {lower_text(proof.budget)}", dx=5, dy=-6)


def _nudges(chart: Chart, rates: Sequence[Observed]) -> list[float]:
    """Return sideways moves, 10 pixels apart, for markers that share a budget. At budget zero all move to the right."""
    moves = []
    for i, rate in enumerate(rates):
        twins = [j for j, other in enumerate(rates) if abs(chart.x(other.budget) - chart.x(rate.budget)) < 5.0]
        first = 5.0 if rate.budget == 0.0 else -5.0 * (len(twins) - 1)
        moves.append(first + 10.0 * twins.index(i))
    return moves


def _bold(path: Vector | None) -> list[Vector]:
    return [] if path is None else [path]
