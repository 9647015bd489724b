"""Say with error bars how much of the drop that the theorem allows an adversary realises.

    python experiments/goal2/tightness.py fit families RUN   # an adversary over features of the past, by weights
    python experiments/goal2/tightness.py fit strata RUN     # the same on the layouts with p near one half
    python experiments/goal2/tightness.py look FOLDER        # the same there, over features of the lidars
    python experiments/goal2/tightness.py table              # tightness.csv, from kept files alone

Shift rules that were run are compared with the nominal trial of the same reset seed and noise. The adversary over
features is fitted on the likelihood ratios of one half of the nominal trials, and scored on the other half. `fit`
needs the traces, and keeps the weights of the trials that it scores. Traces have no observations, so `look` runs the
trials again, checks their hashes, and keeps what it saw in FOLDER. It goes on where it was stopped.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import records
from numpy.typing import NDArray

from ccfs.certificates.families import drop_lower, drop_upper
from ccfs.certificates.schedule import Stage
from ccfs.files.atomic import write_atomically
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import Arm, Protocol
from ccfs.runs.build import build_arm
from ccfs.runs.reader import RunReader
from ccfs.runs.store import Store
from ccfs.runs.trace import Trace
from ccfs.runs.trial import StopRule, run_trial
from ccfs.runs.weights import mean_noise
from ccfs.study.compare import paired_bounds

WEIGHTS, TABLE = records.HERE / "tightness", records.HERE / "tightness.csv"
ATTACKED = ("attacks", "scores", "harm")
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
LIDAR_NAMES = (
    "one",
    "near",
    "ahead",
    "left",
    "near, sign of thrust",
    "near, sign of turn",
    "near, speed",
    "goal ahead",
    "goal left",
)
KEPT = {"families": "families", "strata": "strata", "lidar": "strata", "toward": "strata"}
"""Which results the trials of each file of weights are from."""
TOWARD = "toward the nearest obstacle"
HOLDS = (500, 100, 20, 5, 1)
"""For how many steps the plans of `timed_slope` hold a shift."""
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


def lidar_features(observations: Array, centers: Array) -> Array:
    """Return what an adversary that reads the lidars sees at each step: the nearest obstacle, and the goal."""
    bearings = (np.arange(16) + 0.5) * math.tau / 16
    goal, obstacles = observations[:, 12:28], np.maximum(observations[:, 28:44], observations[:, 44:60])
    # 0 from 0.6 m on, 1 in the middle of the obstacle. A hazard costs from two thirds on.
    near = np.clip((obstacles.max(axis=1) - 0.8) / 0.2, 0.0, 1.0)
    bearing, goal_bearing = bearings[obstacles.argmax(axis=1)], bearings[goal.argmax(axis=1)]
    columns = [
        np.ones(len(near)),
        near,
        near * np.cos(bearing),
        near * np.sin(bearing),
        near * np.sign(centers[:, 0]),
        near * np.sign(centers[:, 1]),
        near * observations[:, 3],
        goal.max(axis=1) * np.cos(goal_bearing),
        goal.max(axis=1) * np.sin(goal_bearing),
    ]
    return np.stack(columns, axis=1)


def look_again(protocol: Protocol, arm: Arm, lines: Sequence[Mapping[str, object]], folder: Path) -> None:
    """Run trials again, check that they give their kept traces, and write the lidar features of each."""
    wrapped, controller = build_arm(protocol, arm, None)
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    for line in lines:
        if (path := folder / str(line["trial"])).exists():
            continue
        seen, centers = [], []

        def center(observation: Array, seen: list[Array] = seen, centers: list[Array] = centers) -> Array:
            seen.append(observation)
            centers.append(controller.center(observation))
            return centers[-1]

        watched = SimpleNamespace(reset=controller.reset, center=center)
        streams = protocol.streams(arm, int(str(line["trial"])))
        row = run_trial(wrapped, watched, horizon=protocol.horizon, stop=stop, streams=streams)[1]
        if row.chain != line["chain"]:
            raise SystemExit(f"Trial {line['trial']} must give its kept trace again, got another one.")
        write_atomically(path, lidar_features(np.array(seen), np.array(centers)).tobytes())
    wrapped.close()


def looked(protocol: Protocol, arm: Arm, trial: int, folder: Path) -> tuple[Array, Array]:
    """Return lidar features and noise of a trial that was run again. 0 after the end."""
    features, noise = np.zeros((protocol.horizon, len(LIDAR_NAMES))), np.zeros((protocol.horizon, 2))
    found = np.frombuffer((folder / str(trial)).read_bytes()).reshape(-1, len(LIDAR_NAMES))
    features[: len(found)], noise[: len(found)] = found, noise_of(protocol, arm, len(found), trial)
    return features, noise


def look(folder: Path) -> None:
    """Run the layouts near one half again, and keep the weights of adversaries that read the lidars."""
    protocol, lines = records.stored_protocol("strata"), nominal("strata", ARM)
    arm = next(arm for arm in protocol.arms if arm.name == ARM)
    mu, event = _mu(arm, BUDGET), protocol.events[0].name
    held = np.array([line[f"in {event}"] for line in lines])
    rows = halves("strata", held)
    folder.mkdir(parents=True, exist_ok=True)
    look_again(protocol, arm, [lines[i] for i in sorted(np.concatenate(rows))], folder)
    both = []
    for part in rows:
        numbers = np.array([lines[i]["trial"] for i in part])
        features, noise = (
            np.array(values) for values in zip(*(looked(protocol, arm, int(n), folder) for n in numbers), strict=True)
        )
        both.append(Trials(features, noise, held[part], numbers))
    keep("lidar", *both, LIDAR_NAMES, mu)
    whole = Trials(*(np.concatenate(parts) for parts in zip(*both, strict=True)))
    log, energy = weights(whole, toward(whole, mu), mu)
    print("toward the nearest obstacle:", estimate(whole.held, log))
    columns = {"trial": whole.numbers, "held": whole.held, f"{TOWARD}: log": log, f"{TOWARD}: energy": energy}
    (WEIGHTS / "toward.parquet").write_bytes(parquet_bytes(pa.table(columns)))


def toward(trials: Trials, mu: float) -> Array:
    """Return theta of a rule that nobody fitted: thrust and turn towards the nearest obstacle, the nearer the more."""
    theta = np.zeros((len(LIDAR_NAMES), 2))
    theta[LIDAR_NAMES.index("ahead"), 0] = theta[LIDAR_NAMES.index("left"), 1] = 1.0
    energy = np.mean(np.sum((trials.features @ theta) ** 2, axis=(1, 2)))
    return np.asarray(theta * mu / math.sqrt(energy))


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
            noise.append(np.zeros((protocol.horizon, 2)))
            noise[-1][: len(trace)] = noise_of(protocol, arm, len(trace), trace.trial)
    lines = nominal(name, ARM)
    held = np.array([line[f"in {protocol.events[0].name}"] for line in lines])
    return Trials(np.array(features), np.array(noise), held, np.array([line["trial"] for line in lines]))


def noise_of(protocol: Protocol, arm: Arm, steps: int, trial: int) -> Array:
    """Return the noise of the first steps of a trial in units of its scale, drawn again."""
    blocks = tuple(block.resolved(2) for block in arm.schedule.plan.blocks(Stage.ACTION))
    drawn, charges = mean_noise(Stage.ACTION, blocks, 2, steps, protocol.streams(arm, trial))
    return np.asarray(drawn * np.sqrt(charges))


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


def halves(name: str, held: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which trials to fit on and which to score on.

    For `strata` only layouts count whose pilot draws succeeded sometimes and not always. Of the other draws there, the
    even ones are for fitting.
    """
    if name != "strata":
        middle = len(held) // 2
        return np.arange(middle), np.arange(middle, len(held))
    draws = records.stored_protocol(name).trials.draws
    assert draws is not None
    places = np.arange(len(held)).reshape(-1, draws.total)
    pilot = held[places[:, : draws.pilot]].sum(axis=1)
    chosen = places[(pilot > 0) & (pilot < draws.pilot), draws.pilot :]
    return chosen[:, ::2].ravel(), chosen[:, 1::2].ravel()


def fit(name: str, run: Path) -> None:
    """Fit both adversaries to features of the traces."""
    arm = next(arm for arm in records.stored_protocol(name).arms if arm.name == ARM)
    trials = read(run, name)
    train, test = (trials.part(rows) for rows in halves(name, trials.held))
    keep(name, train, test, NAMES, _mu(arm, BUDGET))


def keep(name: str, train: Trials, test: Trials, labels: Sequence[str], mu: float) -> None:
    """Fit both adversaries and keep their weights on the trials that they were not fitted on."""
    slope = gradient(train, mu)
    columns: dict[str, object] = {"trial": test.numbers, "held": test.held}
    for adversary, theta in (("slope of the weights", slope), ("evolution strategy", evolved(train, slope, mu))):
        log, energy = weights(test, theta, mu)
        seen = estimate(train.held, weights(train, theta, mu)[0])
        promised = np.full(len(log), seen[0])  # the same number in each line
        columns |= {f"{adversary}: log": log, f"{adversary}: energy": energy, f"{adversary}: where fitted": promised}
        print(adversary, "where it was fitted:", seen, len(train.held), "scored:", estimate(test.held, log))
        for row, label in zip(theta, labels, strict=True):
            print(f"  {label}: thrust {row[0]:+.5f}, turn {row[1]:+.5f}")
    WEIGHTS.mkdir(exist_ok=True)
    (WEIGHTS / f"{name}.parquet").write_bytes(parquet_bytes(pa.table(columns)))


def allowed(rate: float, mu: float) -> float:
    """Return the greatest drop that the theorem allows at a nominal rate."""
    normal = NormalDist()
    return rate - normal.cdf(normal.inv_cdf(rate) - mu)


def layouts() -> tuple[NDArray[np.bool_], Array]:
    """Return which draws of each layout of the strata study failed, [layouts, draws], and the noise of each draw."""
    protocol, lines = records.stored_protocol("strata"), nominal("strata", ARM)
    arm = next(arm for arm in protocol.arms if arm.name == ARM)
    shape = (-1, protocol.trials.per_seed)
    noise = np.zeros((len(lines), protocol.horizon, 2))
    for row, line in zip(noise, lines, strict=True):
        row[: line["steps"]] = noise_of(protocol, arm, line["steps"], line["trial"])
    failed = ~np.array([line[f"in {protocol.events[0].name}"] for line in lines])
    return failed.reshape(shape), noise.reshape(*failed.reshape(shape).shape, -1, 2)


def allowed_by_layout(failed: NDArray[np.bool_], budget: float) -> tuple[float, float]:
    """Return two estimates of the greatest average drop if the adversary cannot move rates between layouts.

    The first takes the observed rates, and is too small: the greatest drop is concave in the rate. The second adds
    half a draw of either outcome to each layout, and is too large where rates are near 0 or 1.
    """
    arm = next(arm for arm in records.stored_protocol("strata").arms if arm.name == ARM)
    counts, draws = failed.sum(axis=1), failed.shape[1]
    mu = _mu(arm, budget)

    def greatest(rate: float) -> float:
        return allowed(rate, mu) if 0.0 < rate < 1.0 else 0.0

    plain = [greatest(1.0 - count / draws) for count in counts]
    padded = [greatest(1.0 - (count + 0.5) / (draws + 1)) for count in counts]
    return float(np.mean(plain)), float(np.mean(padded))


def timed_slope(failed: NDArray[np.bool_], noise: Array, hold: int) -> tuple[float, float, float]:
    """Return an estimate of the mean over layouts of |g|^2 with a 95% interval: how much a plan over time can gain.

    g_b = E[failed x sum of the noise of piece b / sqrt(hold)] is how fast the failure probability of one layout grows
    with a shift in that piece. A plan that knows the layout, is fixed before the trial and is constant over pieces of
    `hold` steps gains at most |g| mu, for small mu. Each pair of draws of a layout gives an unbiased product, with the
    rate of its other draws taken off. Nothing is fitted.
    """
    layouts, draws, steps, width = noise.shape
    pieces = noise.reshape(layouts, draws, steps // hold, hold, width).sum(axis=3).reshape(layouts, draws, -1)
    products = pieces @ pieces.transpose(0, 2, 1) / hold
    total = failed.sum(axis=1)[:, None, None]
    first, second = failed[:, :, None], failed[:, None, :]
    others = (total - first - second) / (draws - 2)
    values = (first - others) * (second - others) * products
    pairs = values.sum(axis=(1, 2)) - np.trace(values, axis1=1, axis2=2)
    found = pairs / (draws * (draws - 1))
    spread = NormalDist().inv_cdf(1.0 - DELTA / 2) * float(found.std(ddof=1)) / math.sqrt(layouts)
    mean = float(found.mean())
    return mean, mean - spread, mean + spread


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
    return _paired_line(name, arms, attack, budget, [outcomes(name, arm.name, attack) for arm in arms])


def simulated() -> dict[float, tuple[list[float], list[float]]]:
    """Return the pairs of the adversary that simulates futures: in the event without shift, and with it, by budget."""
    with (records.HERE / "lookahead.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    event = records.stored_protocol("harm").events[0].name
    held = {line["trial"]: float(bool(line[f"in {event}"])) for line in nominal("harm", ARM)}
    found: dict[float, tuple[list[float], list[float]]] = {}
    for row in rows:
        before, after = found.setdefault(float(row["budget"]), ([], []))
        before.append(held[int(row["trial"])])
        # No cost until the goal: the goal came without a cost, or neither came within the horizon.
        after.append(float(row["outcome"] in ("goal", "horizon")))
    return found


def simulated_lines() -> Iterator[tuple[str, ...]]:
    """Yield the drop under the adversary that simulates futures, at each budget."""
    arms = records.stored_protocol("harm").arms
    for budget, pairs in simulated().items():
        yield _paired_line("lookahead", arms, "simulates futures", budget, [pairs])


def _paired_line(
    name: str, arms: Sequence[Arm], attack: str, budget: float, pairs: Sequence[tuple[list[float], list[float]]]
) -> tuple[str, ...]:
    """Return the line of a rule, with an interval from pairs of the same seed and noise."""
    before, after = ([value for pair in pairs for value in pair[i]] for i in (0, 1))
    rates = [sum(nominal) / len(nominal) for nominal, _ in pairs]
    most = sum(allowed(rate, _mu(arm, budget)) for rate, arm in zip(rates, arms, strict=True)) / len(arms)
    drop = (sum(before) - sum(after)) / len(before)
    label = arms[0].name if len(arms) == 1 else "all"
    numbers = (sum(before) / len(before), drop, *paired_bounds(before, after, delta=DELTA / 2), most)
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
    for file, name in KEPT.items():
        table = read_parquet((WEIGHTS / f"{file}.parquet").read_bytes())
        arm = next(arm for arm in records.stored_protocol(name).arms if arm.name == ARM)
        mu = _mu(arm, BUDGET)
        held = np.array(table["held"])
        for column in table.column_names:
            if not column.endswith(": log"):
                continue
            label = column.removesuffix(": log")
            shown = f"{label}, lidars" if file == "lidar" else label
            log, energy = np.array(table[column]), np.array(table[f"{label}: energy"])
            low, high = (rule(held, log, energy, mu=mu, delta=DELTA / 2) for rule in (drop_lower, drop_upper))
            drop, _ = estimate(held, log)
            rate = float(held.mean())
            yield _cells(name, arm.name, shown, BUDGET, len(held), (rate, drop, low, high, allowed(rate, mu)))


def main(arguments: list[str]) -> None:
    """Do what the first lines of this file say."""
    if arguments[:1] == ["fit"] and len(arguments) == 3:
        fit(arguments[1], Path(arguments[2]))
    elif arguments[:1] == ["look"] and len(arguments) == 2:
        look(Path(arguments[1]))
    elif arguments == ["table"]:
        with TABLE.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADS, *run_lines(), *simulated_lines(), *fitted_lines()])
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
