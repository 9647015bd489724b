"""Write RESULTS.md and the figures from the kept results alone: nothing here runs an environment.

python experiments/goal2/summary.py
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist

import records
import tightness
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from _shared import figures

from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import lower_text, upper_text
from ccfs.certificates.stratified import StratifiedCertificate
from ccfs.certificates.trajectory import TrajectoryCertificate, certify_event
from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import Arm, Protocol
from ccfs.protocol.tables import BlockSpec
from ccfs.report.figures import interval
from ccfs.results.table import TableRow, heads
from ccfs.study.tune import Tuning

HERE = records.HERE
PALETTE = (figures.BLUE, figures.ORANGE, figures.GREEN, figures.RED, figures.GREY, figures.INK)
LADDER = (0.5, 0.8, 0.9, 0.95, 0.99)
TITLES = {
    "table": "The table: three PPO-Lagrangian agents, lidar verifier, clipped-center fallback",
    "navigator": "The navigator: reaching the goal, certified",
    "guarded": "The same agents behind a map guard with a fallback library that makes progress",
    "attacks": "The agents of the table under more attacks",
    "harm": "Agent C1 under shifts far beyond what is certified",
    "ladder": "The ladder: one arm on 1,024 reset seeds, five levels in one simultaneous statement",
    "costs": "Whole episodes without a stop",
    "ablation": "Proposal settings, 64 reset seeds each",
    "strata": "Agent C1 with 16 draws at each reset seed: the stratified bound beside the cohort bound",
    "agents": "The agents at sigma = 1 with 8 draws at each reset seed",
    "sensing": "The navigator with noise on all 60 readings and on the actions: 1,024 reset seeds, target 0.9",
    "sensors": "The agents with noise on all 60 readings and on the actions",
    "noisyguard": "Agent C1 behind the map guard with noisy readings: 1,536 drawn layouts, target 0.9",
    "timed": "Agent C1 with noise that falls after half of the trial",
    "abstaining": "Agent C1 without a fallback: it abstains",
    "families": "Agent C1 under named disturbances: a bias and a gain error of both motors",
    "scores": "Agent C1 under three shift rules: scored on nominal trials, and really run",
    "law": "The agents for the law of reset seeds, at two scales of noise",
    "pilot": "The paper's pilot as a pilot of its own: 16 reset seeds, two events",
}


def kept() -> list[str]:
    """Return the names of the kept results in the order they are shown."""
    return [name for name in TITLES if (records.RESULTS / name).is_dir()]


def claim_rows(name: str, event: str) -> list[TableRow]:
    """Return the rows of a kept run under the bound of its claim."""
    protocol = records.stored_protocol(name)
    rows = records.rows(records.lines(name), protocol, event)
    return [row for row in rows if row.bound == protocol.claim.bound]


def cells(*values: object) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(map(str, values)) + " |"


def beside_the_paper() -> Iterator[str]:
    """Yield the table with the paper's rows between ours."""
    with (HERE / "paper.csv").open(newline="", encoding="utf-8") as file:
        theirs = {(row["controller"], row["proposals"]): list(row.values())[2:] for row in csv.DictReader(file)}
    protocol = records.stored_protocol("table")
    rows = records.rows(records.lines("table"), protocol, protocol.events[0].name)
    yield cells(*heads(rows))
    yield cells(*["---"] * len(heads(rows)))
    for row in rows:
        yield cells(*row.cells(records.BUDGET, protocol.attacks[0].name))
        if row.certificate.bound is Bound.COHORT:
            key = (row.controller, row.schedule)
            yield cells(*key, "paper", *theirs[key])


def who_acted(name: str) -> Iterator[str]:
    """Yield the share of nominal steps by the first accepted proposal and by each fallback."""
    protocol = records.stored_protocol(name)
    rows = claim_rows(name, protocol.events[0].name)
    names = list(rows[0].acted)
    yield cells("arm", *(f"{part}, % of steps" for part in names))
    yield cells(*["---"] * (len(names) + 1))
    for row in rows:
        total = sum(row.acted.values())
        yield cells(f"{row.controller}/{row.schedule}", *(f"{100 * row.acted[part] / total:.1f}" for part in names))


def realised(row: TableRow, budget: float, hits: int) -> str:
    """Return the share of the greatest drop that the theorem allows at the observed nominal rate, in percent."""
    normal, rate = NormalDist(), row.successes / row.trials
    if not 0.0 < rate < 1.0:
        return "–"
    mu = budget * math.sqrt(row.certificate.charge)
    allowed = rate - normal.cdf(normal.inv_cdf(rate) - mu)
    return f"{100 * (rate - hits / row.trials) / allowed:.0f}"


def under_attack(name: str) -> Iterator[str]:
    """Yield observed rates under each attack beside what is certified at its budget."""
    protocol = records.stored_protocol(name)
    yield cells("arm", "event", "attack", "B", "nominal", "attacked", "certified at B", "% of the allowed drop")
    yield cells(*["---"] * 8)
    for event in protocol.events:
        for row in claim_rows(name, event.name):
            for attack in protocol.attacks:
                if attack.budget is None:
                    continue
                hits = row.shifted[attack.name]
                yield cells(
                    f"{row.controller}/{row.schedule}",
                    event.name,
                    attack.name,
                    attack.budget,
                    f"{row.successes} of {row.trials}",
                    f"{hits} of {row.trials}",
                    lower_text(row.certificate.lower_at(attack.budget), 3),
                    realised(row, attack.budget, hits),
                )


def ladder_budget(protocol: Protocol, arm: Arm, row: TableRow, event: str, target: float) -> TrajectoryCertificate:
    """Return the certificate of one level; all levels rest on the same lower bound, so they hold together."""
    return certify_event(
        row.successes,
        row.trials,
        delta=protocol.claim.delta,
        family=protocol.family,
        target=target,
        schedule=arm.schedule.plan,
        bound=protocol.bound,
        event=event,
    )


def ladder() -> Iterator[str]:
    """Yield the certified budget at each level."""
    protocol = records.stored_protocol("ladder")
    yield cells("arm", "event", "in the event", "p_L", *(f"B at q = {level}" for level in LADDER))
    yield cells(*["---"] * (4 + len(LADDER)))
    for event in protocol.events:
        for arm, row in zip(protocol.arms, claim_rows("ladder", event.name), strict=True):
            budgets = [ladder_budget(protocol, arm, row, event.name, level).budget for level in LADDER]
            texts = ["–" if budget is None else lower_text(budget) for budget in budgets]
            shown = f"{row.successes} of {row.trials}"
            yield cells(arm.name, event.name, shown, lower_text(row.certificate.p_lower), *texts)


def ablation() -> Iterator[str]:
    """Yield one line a proposal setting."""
    protocol = records.stored_protocol("ablation")
    safe, goal = (claim_rows("ablation", event.name) for event in protocol.events)
    heads = ("N", "multiplier", "sigma", "safe", "goal", "cost", "p_L", "B_cert", "fallback, % of steps", "abstained")
    yield cells(*heads)
    yield cells(*["---"] * len(heads))
    for arm, row, reached in zip(protocol.arms, safe, goal, strict=True):
        block = arm.schedule.action
        assert isinstance(block, BlockSpec)
        steps = sum(row.acted.values())
        yield cells(
            block.count,
            block.multiplier or 1,
            block.sigma,
            row.successes,
            reached.successes,
            row.counts["Cost"],
            lower_text(row.certificate.p_lower, 3),
            "–" if row.certificate.budget is None else lower_text(row.certificate.budget),
            f"{100 * (steps - row.acted['proposals']) / steps:.1f}",
            row.acted["abstained"],
        )


def costs() -> Iterator[str]:
    """Yield the certified total cost: observed mean, expectation, distribution, quantile and worst tenth."""
    study = json.loads((records.RESULTS / "costs" / "costs.json").read_text(encoding="utf-8"))
    last = ("expected cost at most", "9 of 10 cost at most", "worst tenth at most")
    yield cells("arm", "B", *(f"P(cost <= {at:g})" for at in study["limits"]), *last)
    yield cells(*["---"] * (2 + len(last) + len(study["limits"])))
    for arm, found in study["arms"].items():
        totals = [value for stratum in found["certificate"]["totals"] for value in stratum]
        counts = [f"{sum(total <= at for total in totals)} of {len(totals)}" for at in study["limits"]]
        yield cells(arm, "observed", *counts, f"mean {found['observed_mean']:.1f}", "", "")
        for i, budget in enumerate(study["budgets"]):
            lowers = [lower_text(value, 3) for value in found["probability"][i]]
            uppers = [upper_text(found[key][i], 1) for key in ("expected", "quantile", "cvar")]
            yield cells(arm, f"{budget:g}", *lowers, *uppers)
    yield ""
    yield from returns()


def returns() -> Iterator[str]:
    """Yield the certified return of the same episodes: observed mean, expectation and distribution."""
    study = json.loads((records.RESULTS / "costs" / "returns.json").read_text(encoding="utf-8"))
    yield cells("arm", "B", "expected return at least", *(f"P(return >= {at:g})" for at in study["limits"]))
    yield cells(*["---"] * (3 + len(study["limits"])))
    for arm, found in study["arms"].items():
        yield cells(arm, "observed", f"mean {found['observed_mean']:.2f}", *[""] * len(study["limits"]))
        for i, budget in enumerate(study["budgets"]):
            lowers = [lower_text(value, 3) for value in found["probability"][i]]
            yield cells(arm, f"{budget:g}", lower_text(found["expected"][i], 2), *lowers)


def strata(name: str) -> Iterator[str]:
    """Yield what the stratified bound certifies, and what a count of the same trajectories would."""
    protocol = records.stored_protocol(name)
    yield cells("event", "arm", "bound", "counted", "in the event", "mu", "B_cert", "is the claim")
    yield cells(*["---"] * 8)
    for event in protocol.events:
        for row in records.rows(records.lines(name), protocol, event.name):
            proof = row.certificate
            is_claim = isinstance(proof, StratifiedCertificate)
            hits, trials = (
                (sum(proof.main_successes), sum(proof.main_draws)) if is_claim else (proof.successes, proof.trials)
            )
            sizes = ["–" if size is None else lower_text(size) for size in (proof.mu, proof.budget)]
            arm = f"{row.controller}/{row.schedule}"
            yield cells(event.name, arm, row.bound, trials, hits, *sizes, "yes" if is_claim else "no")


def ellipsoids(name: str) -> Iterator[str]:
    """Yield the half-axes of what is certified: for each stage and, if its noise varies, for each part of the trial."""
    yield cells("arm", "event", "in the event", "p_L", "mu", "how far, if nothing else is shifted")
    yield cells(*["---"] * 6)
    for document in records.stored_certificates(name):
        proof = document.trajectory
        counted = f"{proof.successes} of {proof.trials}"
        size = "–" if proof.mu is None else lower_text(proof.mu)
        axes = "nothing is certified" if proof.mu is None else ", ".join(half_axes(proof))
        yield cells(document.arm, document.event, counted, lower_text(proof.p_lower, 3), size, axes)


def half_axes(proof: TrajectoryCertificate) -> Iterator[str]:
    """Yield the half-axis of each stage, or of each row of steps with the same block."""
    for stage, budget in proof.budgets.items():
        blocks = getattr(proof.schedule, stage)
        if not isinstance(blocks, tuple):
            yield f"{stage} {lower_text(budget)}"
            continue
        first = 0
        for block, steps in itertools.groupby(blocks):
            count = len(list(steps))
            axis = proof.mu / math.sqrt(block.charge)
            yield f"{stage} in steps {first} to {first + count - 1} {lower_text(axis)}"
            first += count


def families() -> Iterator[str]:
    """Yield what is certified in each box of disturbances, by the weights of the trials and by the count alone."""
    yield cells("under every", "by weights", "by the count", "what the weights give, the count gives for", "certified")
    yield cells(*["---"] * 5)
    for document in records.stored_families("families"):
        lower = "–" if document.lower is None else lower_text(document.lower)
        share = document.share_of_count
        part = "–" if share is None else f"1/{lower_text(1.0 / share, 2)} of the box"
        yield cells(document.what, lower, lower_text(document.alone), part, "yes" if document.is_certified else "no")


def scores() -> Iterator[str]:
    """Yield the probability under each rule as nominal trials foretell it, beside the share of attacked trials."""
    yield cells("attack", "scored on nominal trials", "95% interval", "attacked trials", "95% interval")
    yield cells(*["---"] * 5)
    for score, attacked in records.scored_and_run("scores"):
        low, high = interval(attacked.successes, attacked.trials, Bound.COHORT, delta=0.05)
        foretold = f"{lower_text(score.rate_lower)} to {upper_text(score.rate_upper)}"
        seen = f"{lower_text(low)} to {upper_text(high)}"
        yield cells(score.attack, f"{score.rate:.4f}", foretold, f"{attacked.successes}/{attacked.trials}", seen)


def observation() -> Iterator[str]:
    """Yield the observation budgets."""
    rows = _rows("observation.csv")
    yield cells("results", "arm", "error in", "B_cert", "Lipschitz bound", "eta")
    yield cells(*["---"] * 6)
    for row in rows:
        budget, eta = (lower_text(float(row[key]), 5) if row[key] else "–" for key in ("budget", "eta"))
        constant = upper_text(float(row["lipschitz"]), 2)
        yield cells(row["results"], row["arm"], row["coordinates"], budget, constant, eta)


def disturbances() -> Iterator[str]:
    """Yield what is certified for each arm under the disturbances that an engineer names."""
    yield cells("results", "arm", "event", "under every", "of at most", "mu", "by weights", "by the count")
    yield cells(*["---"] * 8)
    for row in _rows("disturbances.csv"):
        lower, alone = (lower_text(float(row[key]), 3) if row[key] else "–" for key in ("lower", "count alone"))
        names = [row[key] for key in ("results", "arm", "event", "disturbance", "at most", "size")]
        yield cells(*names, lower, alone)


def shares() -> Iterator[str]:
    """Yield how much each adversary took away, with a 95% interval, and the share of what the theorem allows."""
    yield cells("results", "arm", "adversary", "B", "trials", "nominal", "drop", "95% interval", "allowed", "share, %")
    yield cells(*["---"] * 10)
    for row in _rows("tightness.csv"):
        drop, low, high, allowed = (float(row[key]) for key in ("drop", "lower", "upper", "allowed"))
        names = [row[key] for key in ("results", "arm", "adversary", "budget", "trials")]
        share = f"{100 * drop / allowed:.0f} ({100 * low / allowed:.0f} to {100 * high / allowed:.0f})"
        numbers = (f"{float(row['nominal']):.3f}", f"{drop:.3f}", f"{low:.3f} to {high:.3f}", f"{allowed:.3f}")
        yield cells(*names, *numbers, share)


def plans() -> Iterator[str]:
    """Yield how fast the failure probability can grow under plans that know the layout, and under every adversary."""
    failed, noise = tightness.layouts()
    normal = NormalDist()
    most = normal.pdf(normal.inv_cdf(float(failed.mean())))
    plain, padded = tightness.allowed_by_layout(failed, 0.1)
    draws = f"{failed.shape[1]} draws at each of {len(failed)} layouts"
    yield f"Agent C1, {draws}. The theorem allows a slope of {most:.4f}."
    yield f"At B = 0.1 it allows {plain:.3f} to {padded:.3f} if rates cannot be moved between layouts.\n"
    yield cells(
        "shift held for, steps", "squared slope", "95% interval", "slope at most", "share of the allowed, at most"
    )
    yield cells(*["---"] * 5)
    for hold in tightness.HOLDS:
        square, low, high = tightness.timed_slope(failed, noise, hold)
        slope = math.sqrt(high)
        yield cells(hold, f"{square:.4f}", f"{low:.4f} to {high:.4f}", f"{slope:.3f}", f"{100 * slope / most:.0f}%")


def sigma() -> Iterator[str]:
    """Yield the pilot that chose the larger scale: counts of each agent, and the forecast of the weakest."""
    record = Tuning.from_bytes((records.PILOTS / "sigma.json").read_bytes(), where="sigma.json")
    lines = read_parquet((records.PILOTS / "sigma.parquet").read_bytes()).to_pylist()
    agents = sorted({line["controller"] for line in lines})
    yield cells("sigma", *(f"{agent}, of {record.settings[0].trials}" for agent in agents), "forecast B", "chosen")
    yield cells(*["---"] * (3 + len(agents)))
    for setting in record.settings:
        mine = [line for line in lines if line["protocol"] in setting.pilots and line[f"in {record.event}"]]
        counts = [sum(line["controller"] == agent for line in mine) for agent in agents]
        (value,) = setting.values.values()
        yield cells(value, *counts, f"{setting.expected:.4f}", "yes" if setting.name == record.chosen else "")


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tables(name: str) -> Iterator[str]:
    """Yield the table of every event."""
    yield records.tables(records.lines(name), records.stored_protocol(name)).strip()


WRITERS = {
    "table": lambda _: beside_the_paper(),
    "ladder": lambda _: ladder(),
    "costs": lambda _: costs(),
    "ablation": lambda _: ablation(),
    "strata": strata,
    "agents": strata,
    "sensing": ellipsoids,
    "sensors": ellipsoids,
    "noisyguard": ellipsoids,
    "timed": ellipsoids,
    "families": lambda _: families(),
    "scores": lambda _: scores(),
}
"""How each kept run is shown. The others are shown as tables."""
EXTRA = {
    "Observation error seen by the controller only": observation,
    "Named disturbances of every arm, from traces that were there": disturbances,
    "How much of the allowed drop adversaries realise": shares,
    "What a plan over time can gain that knows the layout": plans,
    "The pilot of the larger scale of noise": sigma,
}
"""What is shown from files beside the kept runs."""


def where(protocol: Protocol) -> str:
    """Return which reset seeds a protocol has, in words."""
    seeds = protocol.trials.seeds
    if seeds is None:
        return f"{protocol.trials.initial_law} draws of the reset seed for each arm"
    return f"reset seeds {seeds[0]:,} to {seeds[-1]:,}"


def sections() -> Iterator[str]:
    """Yield the text, section by section."""
    yield "# Results of the SafetyPointGoal2 study"
    yield "Written by `python experiments/goal2/summary.py` from `results/`. Bounds are rounded down."
    for name in kept():
        protocol = records.stored_protocol(name)
        yield f"## {TITLES[name]}"
        claim = f"delta {protocol.claim.delta:g} over {protocol.family} claims, target {protocol.claim.target:g}"
        yield f"Protocol `{protocol.hash[:16]}`, {where(protocol)}, {claim}."
        yield "\n".join(WRITERS.get(name, tables)(name))
        if name != "ablation":
            yield "\n".join(who_acted(name))
        if protocol.attacks and name != "table":
            yield "\n".join(under_attack(name))
    for title, writer in EXTRA.items():
        yield f"## {title}"
        yield "\n".join(writer())


def draw_curves(name: str, path: Path) -> None:
    """Draw the certified probability against the budget, arms with equal counts as one, with the observed rates."""
    protocol = records.stored_protocol(name)
    event = protocol.events[0].name
    plt.rcParams.update(figures.STYLE)
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    rows = claim_rows(name, event)
    budgets = [attack.budget or 0.0 for attack in protocol.attacks]
    reach = 1.25 * max([*budgets, *(row.certificate.budget or 0.0 for row in rows), 0.02])
    groups: dict[tuple[int, float], list[TableRow]] = {}
    for row in rows:
        groups.setdefault((row.successes, round(row.certificate.charge, 6)), []).append(row)
    lowest = 1.0
    for i, (group, color) in enumerate(zip(groups.values(), PALETTE * 2, strict=False)):
        points = group[0].certificate.curve(81, reach)
        lowest = min(lowest, points[-1][1])
        names = ", ".join(f"{row.controller}/{row.schedule}" for row in group)
        axes.plot(*zip(*points, strict=True), color=color, label=names)
        place = 0.006 * reach * (i - (len(groups) - 1) / 2)
        add_rate(axes, place, group[0].successes, group[0].trials, color)
        for row in group:
            for attack in protocol.attacks:
                add_rate(axes, (attack.budget or 0.0) + place, row.shifted[attack.name], row.trials, color)
    axes.axhline(protocol.claim.target, ls=":", color=figures.INK, lw=0.8)
    low = math.floor(10 * min(lowest, protocol.claim.target)) / 10
    axes.set(xlabel="shift budget B", ylabel=f"P({event})", xlim=(-0.03 * reach, reach), ylim=(low, 1.01))
    axes.legend(loc="upper right", title="line: certified at least\ndot: observed, 95% interval", alignment="left")
    axes.set_title(textwrap.fill(TITLES[name], 66, break_on_hyphens=False))
    figures.save(figure, path)


def draw_attacks(name: str, path: Path) -> None:
    """Draw the observed rate without shift and under each attack, over what is certified at its budget."""
    protocol = records.stored_protocol(name)
    event = protocol.events[0].name
    plt.rcParams.update(figures.STYLE)
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    rows = claim_rows(name, event)
    kinds = [("without shift", 0.0, None), *((spec.name, spec.budget or 0.0, spec.name) for spec in protocol.attacks)]
    for i, (row, color) in enumerate(zip(rows, PALETTE, strict=False)):
        for at, (_, budget, attack) in enumerate(kinds):
            place = at + 0.22 * (i - (len(rows) - 1) / 2)
            add_rate(axes, place, row.successes if attack is None else row.shifted[attack], row.trials, color)
            floor = row.certificate.lower_at(budget)
            axes.plot([place - 0.09, place + 0.09], [floor, floor], color=color, lw=2.5)
        axes.plot([], [], color=color, label=f"{row.controller}/{row.schedule}")
    axes.set_xticks(range(len(kinds)), [f"{label}\nB = {budget:g}" for label, budget, _ in kinds])
    axes.set(ylabel=f"P({event})")
    axes.legend(loc="best", title="dot: observed, 95% interval\nbar: certified at least", alignment="left")
    axes.set_title(textwrap.fill(TITLES[name], 66, break_on_hyphens=False))
    figures.save(figure, path)


def draw_far(name: str, path: Path) -> None:
    """Draw one arm over budgets of every order of size: what is certified, and the observed rate under each attack."""
    protocol = records.stored_protocol(name)
    event = protocol.events[0].name
    plt.rcParams.update(figures.STYLE)
    figure, axes = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    (row,) = claim_rows(name, event)
    sizes = [0.01 * 10 ** (i / 40) for i in range(137)]
    axes.plot(sizes, [row.certificate.lower_at(size) for size in sizes], color=PALETTE[0])
    shown = {
        "simulates futures": [(size, sum(after), len(after)) for size, (_, after) in tightness.simulated().items()]
    }
    labels = {"early": "critic, at once", "even": "critic, evenly", "wide": "critic, evenly and wider"}
    for attack in protocol.attacks:
        points = shown.setdefault(labels[attack.name.split("-")[0]], [])
        points.append((attack.budget or 0.0, row.shifted[attack.name], row.trials))
    low, high = interval(row.successes, row.trials, Bound.COHORT, delta=0.05)
    axes.axhspan(low, high, color=figures.GREY, alpha=0.25, lw=0, label="without shift")
    for i, ((label, points), color) in enumerate(zip(shown.items(), PALETTE[1:], strict=False)):
        for budget, hits, trials in points:
            add_rate(axes, budget * 1.06 ** (i - 1), int(hits), trials, color)
        axes.plot([], [], "o", ms=4, color=color, label=label)
    axes.axhline(protocol.claim.target, ls=":", color=figures.INK, lw=0.8)
    axes.set(xlabel="shift budget B", ylabel=f"P({event})", xscale="log", xlim=(sizes[0], 30.0), ylim=(-0.02, 1.01))
    axes.legend(loc="lower left", title="line: certified at least\ndot: observed, 95% interval", alignment="left")
    axes.set_title(textwrap.fill(TITLES[name], 66, break_on_hyphens=False))
    figures.save(figure, path)


def add_rate(axes: Axes, x: float, hits: int, trials: int, color: str) -> None:
    """Draw an observed rate with its 95% interval."""
    low, high = interval(hits, trials, Bound.COHORT, delta=0.05)
    axes.plot([x, x], [low, high], color=color, lw=0.9, alpha=0.6)
    axes.plot([x], [hits / trials], "o", ms=4, color=color)


def text() -> str:
    """Return RESULTS.md."""
    return "\n\n".join(sections()) + "\n"


DRAWN = {"attacks": draw_attacks, "navigator": draw_attacks, "harm": draw_far}
"""How each kept run is drawn. The others are drawn as curves."""


def main() -> None:
    """Write everything."""
    (HERE / "RESULTS.md").write_text(text(), encoding="utf-8")
    for name in kept():
        if name not in ("ablation", "costs", "pilot"):
            DRAWN.get(name, draw_curves)(name, HERE / "figures" / f"{name}.png")


if __name__ == "__main__":
    main()
