"""Say with error bars how much of the drop that the theorem allows an adversary realises.

    python experiments/goal2/tightness.py fit families RUN   # an adversary over features of the past, by weights
    python experiments/goal2/tightness.py fit strata RUN     # the same on the layouts with p near one half
    python experiments/goal2/tightness.py table              # tightness.csv, from kept files alone

Shift rules that were run are compared with the nominal trial of the same reset seed and noise. The adversary over
features is fitted on the likelihood ratios of one half of the nominal trials, and scored on the other half. Nothing
here runs an environment. `fit` needs the traces, and keeps the weights of the trials that it scores.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import records
from numpy.typing import NDArray

from ccfs.certificates.families import drop_lower, drop_upper
from ccfs.certificates.schedule import Stage
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import Arm, Protocol
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store
from ccfs.runs.trace import Trace
from ccfs.runs.weights import mean_noise
from ccfs.study.compare import paired_bounds

WEIGHTS, TABLE = records.HERE / "tightness", records.HERE / "tightness.csv"
ATTACKED = ("attacks", "scores")
ARM, BUDGET, DELTA = "C1/one", 0.1, 0.05
"""The arm that features are fitted to, the budget of the attacks study, and 1 minus the level of every interval."""
NAMES = (
    "one",
    "thrust",
    "turn",
    "last thrust",
    "last turn",
    "sign of thrust",
    "sign of turn",
    "undecided",
    "time",
    "reward",
)
POPULATION, GENERATIONS, PARENTS = 24, 16, 6
HEADS = ("results", "arm", "adversary", "budget", "trials", "nominal", "drop", "lower", "upper", "allowed")

Array = NDArray[np.float64]


class Trials(NamedTuple):
    """Features of the public past [trials, steps, k], noise in units of its scale [trials, steps, 2], and outcomes."""

    features: Array
    noise: Array
    held: NDArray[np.bool_]
    numbers: NDArray[np.int64]

    def part(self, rows: NDArray[np.int64]) -> Trials:
        """Return some of the trials."""
        return Trials(*(field[rows] for field in self))


def features_of(trace: Trace, horizon: int) -> Array:
    """Return what the adversary reads at each step, all of it public before the block is drawn. 0 after the end."""
    steps, centers = len(trace), trace.centers
    last = np.concatenate([np.zeros((1, 2)), trace.actions[: steps - 1]])
    reward = np.concatenate([[0.0], trace.reward[: steps - 1]])
    columns = [
        np.ones(steps),
        *centers.T,
        *last.T,
        *np.sign(centers).T,
        np.abs(centers[:, 0]) < 0.3,  # thrust saturates early, so that a push matters where its sign is open
        np.arange(steps) / horizon,
        np.clip(20.0 * reward, -1.0, 1.0),
    ]
    found = np.zeros((horizon, len(columns)))
    found[:steps] = np.stack(columns, axis=1)
    return found


def read(run: Path, name: str) -> Trials:
    """Return the nominal trials of the arm from the traces of a run whose results are kept."""
    store = Store(run)
    protocol = store.protocol()
    if protocol.hash != records.stored_protocol(name).hash:
        raise SystemExit(f"{run} must be a run of the protocol of results/{name}.")
    arm = next(arm for arm in protocol.arms if arm.name == ARM)
    reader, features, noise = RunReader(store, protocol), [], []
    for batch in reader.batches(arm, None):
        for trace in reader.traces(batch):
            features.append(features_of(trace, protocol.horizon))
            noise.append(noise_of(protocol, arm, trace))
    lines = nominal(name, ARM)
    held = np.array([line[f"in {protocol.events[0].name}"] for line in lines])
    return Trials(np.array(features), np.array(noise), held, np.array([line["trial"] for line in lines]))


def noise_of(protocol: Protocol, arm: Arm, trace: Trace) -> Array:
    """Return the noise of a trial in units of its scale, drawn again. 0 after the end."""
    blocks = tuple(block.resolved(2) for block in arm.schedule.plan.blocks(Stage.ACTION))
    drawn, charges = mean_noise(Stage.ACTION, blocks, 2, len(trace), protocol.streams(arm, trace.trial))
    found = np.zeros((protocol.horizon, 2))
    found[: len(trace)] = drawn * np.sqrt(charges)
    return found


def nominal(name: str, arm: str) -> list[dict[str, object]]:
    """Return the nominal trial lines of an arm."""
    lines = records.lines(name).to_pylist()
    return [line for line in lines if f"{line['controller']}/{line['schedule']}" == arm and line["attack"] == "nominal"]


def weights(trials: Trials, theta: Array, mu: float) -> tuple[Array, Array]:
    """Return log likelihood ratio and energy of each trial under the shift features times theta.

    The shift stops for good before its energy would exceed mu squared, as a ledger demands.
    """
    shift = trials.features @ theta
    energies = np.sum(shift**2, axis=2)
    is_paid = np.cumsum(energies, axis=1) <= mu**2
    log = np.sum((np.sum(shift * trials.noise, axis=2) - energies / 2) * is_paid, axis=1)
    return log, np.sum(energies * is_paid, axis=1)


def estimate(held: NDArray[np.bool_], log: Array) -> tuple[float, float]:
    """Return the estimated drop and its standard error, with the ratio itself, whose mean is 1, as control variate."""
    ratio = np.exp(log)
    drop = ~held * (ratio - 1.0)
    spread = float(np.var(ratio))
    slope = float(np.cov(drop, ratio, ddof=0)[0, 1]) / spread if spread > 0.0 else 0.0
    left = drop - slope * (ratio - 1.0)
    return float(left.mean()), float(left.std() / math.sqrt(len(left)))


def gradient(trials: Trials, mu: float) -> Array:
    """Return theta along the slope of the failure probability at no shift, with mean energy mu squared."""
    features, size = trials.features, trials.features.shape[2]
    scores = np.einsum("ntk,ntm->nkm", features, trials.noise)
    energy = np.einsum("ntk,ntl->kl", features, features) / len(features)
    energy += 1e-3 * np.trace(energy) / size * np.eye(size)
    failed = ~trials.held - np.mean(~trials.held)
    theta = np.linalg.solve(energy, np.einsum("n,nkm->km", failed, scores) / len(failed))
    return np.asarray(theta * mu / math.sqrt(np.einsum("km,kl,lm->", theta, energy, theta)))


def evolved(trials: Trials, start: Array, mu: float) -> Array:
    """Return theta after an evolution strategy that raises the estimated drop less one standard error."""
    rng = np.random.default_rng(20261118)
    mean, spread = start, 0.5 * float(np.abs(start).mean())
    for _ in range(GENERATIONS):
        tried = [mean, *(mean + spread * rng.standard_normal(start.shape) for _ in range(POPULATION - 1))]
        found = [estimate(trials.held, weights(trials, theta, mu)[0]) for theta in tried]
        order = sorted(range(POPULATION), key=lambda i: found[i][1] - found[i][0])
        mean, spread = np.mean([tried[i] for i in order[:PARENTS]], axis=0), 0.9 * spread
    return np.asarray(mean)


def halves(name: str, trials: Trials) -> tuple[Trials, Trials]:
    """Return the trials to fit on and those to score on.

    For `strata` only layouts count whose pilot draws succeeded sometimes and not always. Of the other draws there, the
    even ones are for fitting.
    """
    if name != "strata":
        middle = len(trials.held) // 2
        return trials.part(np.arange(middle)), trials.part(np.arange(middle, len(trials.held)))
    draws = records.stored_protocol(name).trials.draws
    assert draws is not None
    places = np.arange(len(trials.held)).reshape(-1, draws.total)
    pilot = trials.held[places[:, : draws.pilot]].sum(axis=1)
    chosen = places[(pilot > 0) & (pilot < draws.pilot), draws.pilot :]
    return trials.part(chosen[:, ::2].ravel()), trials.part(chosen[:, 1::2].ravel())


def fit(name: str, run: Path) -> None:
    """Fit both adversaries and keep their weights on the trials that they were not fitted on."""
    protocol = records.stored_protocol(name)
    arm = next(arm for arm in protocol.arms if arm.name == ARM)
    mu = _mu(arm, BUDGET)
    train, test = halves(name, read(run, name))
    slope = gradient(train, mu)
    columns: dict[str, object] = {"trial": test.numbers, "held": test.held}
    for adversary, theta in (("slope of the weights", slope), ("evolution strategy", evolved(train, slope, mu))):
        log, energy = weights(test, theta, mu)
        seen = estimate(train.held, weights(train, theta, mu)[0])
        promised = np.full(len(log), seen[0])  # the same number in each line
        columns |= {f"{adversary}: log": log, f"{adversary}: energy": energy, f"{adversary}: where fitted": promised}
        print(adversary, "where it was fitted:", seen, len(train.held), "scored:", estimate(test.held, log))
        for row, label in zip(theta, NAMES, strict=True):
            print(f"  {label}: thrust {row[0]:+.5f}, turn {row[1]:+.5f}")
    WEIGHTS.mkdir(exist_ok=True)
    (WEIGHTS / f"{name}.parquet").write_bytes(parquet_bytes(pa.table(columns)))


def allowed(rate: float, mu: float) -> float:
    """Return the greatest drop that the theorem allows at a nominal rate."""
    normal = NormalDist()
    return rate - normal.cdf(normal.inv_cdf(rate) - mu)


def run_lines() -> Iterator[tuple[str, ...]]:
    """Yield the drop of each rule that was run, for each arm and for all arms together."""
    for name in ATTACKED:
        protocol = records.stored_protocol(name)
        groups = [(arm,) for arm in protocol.arms]
        groups += [protocol.arms] if len(groups) > 1 else []
        for arms in groups:
            for attack in protocol.attacks:
                if attack.budget is not None:
                    yield _run_line(name, arms, attack.name, attack.budget)


def _run_line(name: str, arms: Sequence[Arm], attack: str, budget: float) -> tuple[str, ...]:
    """Return the line of a rule, with an interval from pairs of the same seed and noise."""
    pairs = [outcomes(name, arm.name, attack) for arm in arms]
    before, after = ([value for pair in pairs for value in pair[i]] for i in (0, 1))
    rates = [sum(nominal) / len(nominal) for nominal, _ in pairs]
    most = sum(allowed(rate, _mu(arm, budget)) for rate, arm in zip(rates, arms, strict=True)) / len(arms)
    drop = (sum(before) - sum(after)) / len(before)
    label = arms[0].name if len(arms) == 1 else "all"
    numbers = (sum(before) / len(before), drop, *paired_bounds(before, after, delta=DELTA), most)
    return _cells(name, label, attack, budget, len(before), numbers)


def outcomes(name: str, arm: str, attack: str) -> tuple[list[float], list[float]]:
    """Return whether each nominal trial of an arm was in the event, and the attacked trial of the same seed."""
    event = records.stored_protocol(name).events[0].name
    lines = records.lines(name).to_pylist()
    mine = [line for line in lines if f"{line['controller']}/{line['schedule']}" == arm]
    first, second = (
        {line["reset_seed"]: float(line[f"in {event}"]) for line in mine if line["attack"] == kind}
        for kind in ("nominal", attack)
    )
    return list(first.values()), [second[seed] for seed in first]


def _mu(arm: Arm, budget: float) -> float:
    return budget * math.sqrt(float(arm.schedule.plan.blocks(Stage.ACTION)[0].resolved(2).charge))


def _cells(name: str, arm: str, label: str, budget: float, trials: int, numbers: Sequence[float]) -> tuple[str, ...]:
    return name, arm, label, f"{budget:g}", str(trials), *(f"{number:.6f}" for number in numbers)


def fitted_lines() -> Iterator[tuple[str, ...]]:
    """Yield the drop under each fitted adversary, from the kept weights of trials that it was not fitted on."""
    for name in ("families", "strata"):
        table = read_parquet((WEIGHTS / f"{name}.parquet").read_bytes())
        arm = next(arm for arm in records.stored_protocol(name).arms if arm.name == ARM)
        mu = _mu(arm, BUDGET)
        held = np.array(table["held"])
        for column in table.column_names:
            if not column.endswith(": log"):
                continue
            label = column.removesuffix(": log")
            log, energy = np.array(table[column]), np.array(table[f"{label}: energy"])
            low, high = (rule(held, log, energy, mu=mu, delta=DELTA / 2) for rule in (drop_lower, drop_upper))
            drop, _ = estimate(held, log)
            rate = float(held.mean())
            yield _cells(name, arm.name, label, BUDGET, len(held), (rate, drop, low, high, allowed(rate, mu)))


def main(arguments: list[str]) -> None:
    """Do what the first lines of this file say."""
    if arguments[:1] == ["fit"] and len(arguments) == 3:
        fit(arguments[1], Path(arguments[2]))
    elif arguments == ["table"]:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADS, *run_lines(), *fitted_lines()])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
