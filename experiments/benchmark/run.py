"""Make rows of the benchmark: train an agent, certify it by an ordinary protocol, and keep what the row rests on.

    python experiments/benchmark/run.py CartPole-sb3-ppo-0      # one row, or several
    python experiments/benchmark/run.py --all                   # every row of rows.toml that is not kept yet
    python experiments/benchmark/run.py --check ROW             # the trials of a kept row once more: are they the same?
    python experiments/benchmark/run.py --list

From the root of the repository. Interrupt it at any time: the same command goes on. Training and runs are in
runs/benchmark, finished rows in experiments/benchmark/results. `page.py` writes docs/benchmark.md from these.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if "numpy" not in sys.modules:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import bullet
import stock_omnisafe
from rich.console import Console

from ccfs.certificates.means import Total
from ccfs.controllers import zoo
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.export import write_entry
from ccfs.controllers.training.plan import Plan
from ccfs.controllers.training.runner import furthest, run_plan
from ccfs.files.atomic import write_atomically
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.files.toml import read_toml, toml_text
from ccfs.protocol.model import Protocol
from ccfs.results.totals import RunTotals, certify_study, default_limits, run_totals
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.store import Store

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
RUNS = Path("runs/benchmark")
COST_BUDGETS = (0.0, 0.05, 0.1)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row: an agent, and the settings of its task.

    Args:
        agent: name of an agent of the zoo, for a row that needs no training.
        training: settings of training that are not the defaults of the algorithm.
    """

    task: str
    algorithm: str
    seed: int
    steps: int
    settings: Mapping[str, Any]
    claim: Mapping[str, Any]
    agent: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the row and of its folder."""
        return f"{self.task}-{self.algorithm}-{self.seed}"

    @property
    def folder(self) -> Path:
        """Where the row is kept."""
        return RESULTS / self.name

    @property
    def environment(self) -> dict[str, Any]:
        """The environment as a protocol names it."""
        found = dict(self.settings["environment"])
        arguments = {key: value.format(task=self.task) for key, value in found["arguments"].items()}
        return found | {"arguments": arguments}

    @property
    def env_id(self) -> str:
        """Id of the task in its library."""
        (found,) = self.environment["arguments"].values()
        return str(found)

    @property
    def command(self) -> str:
        """What makes this row."""
        return f"python experiments/benchmark/run.py {self.name}"


def rows() -> dict[str, Row]:
    """Return all rows of rows.toml by name, in its order."""
    table: Any = read_toml((HERE / "rows.toml").read_text(encoding="utf-8"))
    settings = {task: part for part in table["settings"] for task in part["tasks"]}
    claim = {key: table[key] for key in ("delta", "target", "trials")}
    found = [
        _row(group, task, algorithm, seed, settings=settings[task], claim=claim)
        for group in table["rows"]
        for seed in group["seeds"]
        for task in group["tasks"]
        for algorithm in group["algorithms"]
    ]
    if len({row.name for row in found}) != len(found):
        raise SystemExit("rows.toml: two rows must differ in task, algorithm or seed.")
    return {row.name: row for row in found}


def _row(group: Mapping[str, Any], task: str, algorithm: str, seed: int, **common: Any) -> Row:
    agent = group.get("agent")
    return Row(
        task=task,
        algorithm=algorithm,
        seed=seed,
        steps=group["steps"],
        agent=None if agent is None else agent.format(seed=seed),
        training=group.get("training", {}),
        **common,
    )


# Training


def agent_of(row: Row) -> tuple[str, zoo.ZooEntry]:
    """Return the agent of a row and how a protocol names it. Train it first if it is not there."""
    if row.agent is not None:
        return row.agent, zoo.load(row.agent)
    folder = row.folder / "agent"
    if not (folder / "card.json").exists():
        train(row, folder)
    return folder.relative_to(HERE.parents[1]).as_posix(), zoo.load(folder)


def train(row: Row, target: Path) -> None:
    """Train the agent of a row and write its actor and card."""
    if row.algorithm == "sb3-ppo":
        entry = _trained_by_sb3(row, RUNS / "sb3" / row.name)
        zoo.write(target, entry.actor, **_fields(entry.card, command=row.command))
        return
    if row.algorithm.startswith(stock_omnisafe.PREFIX):
        stock_omnisafe.train(
            row.algorithm.removeprefix(stock_omnisafe.PREFIX), row.env_id, target, seed=row.seed, steps=row.steps,
            settings=row.training, runs=RUNS / row.name, command=row.command,
        )  # fmt: skip
        return
    config = TrainingConfig.of(
        row.algorithm, environment=row.env_id, seed=row.seed, total_steps=row.steps, **row.training
    )
    make = _bullet_copies if row.environment["make"] == "bullet:make" else None
    run_plan(Plan(configs=(config,), milestones=(row.steps,), folder=RUNS), Console(), make=make)
    state = furthest(config, RUNS / config.name)
    if state is None or state.steps != row.steps:
        raise SystemExit(f"{row.name}: another process is training it.")
    write_entry(state, target, command=row.command)


def _trained_by_sb3(row: Row, folder: Path) -> zoo.ZooEntry:
    from ccfs.controllers.training.sb3 import train_sb3

    # A model is written last. It is there if an interruption came between training and keeping.
    if not (models := list(folder.glob("*/model.zip"))):
        settings = dict(row.training)
        count = settings.pop("environments", 1)
        card = train_sb3(
            row.env_id, seed=row.seed, steps=row.steps, penalty=0.0, folder=folder, console=Console(),
            environments=count, settings=settings,
        )  # fmt: skip
        models = [folder / card.name / "model.zip"]
    return zoo.load(models[0].parent)


def _fields(card: zoo.Card, **changed: object) -> dict[str, Any]:
    kept = json.loads(card.as_json())
    for name in ("format", "actor_sha256", "digest"):
        del kept[name]
    lists = {name: tuple(kept[name]) for name in ("training_reset_seeds", "versions")}
    return {**kept, **lists, **changed}


class _WithCost:
    """A Gymnasium task as the trainer wants it, with the cost among the results of a step."""

    def __init__(self, env: bullet.Repeatable) -> None:
        self._env = env
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def reset(self, *, seed: int | None = None) -> Any:
        return self._env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return observation, reward, float(info["cost"]), terminated, truncated, info


def _bullet_copies(config: TrainingConfig) -> list[Any]:
    return [_WithCost(bullet.make(config.environment)) for _ in range(config.environments)]


# Certifying


def protocol_of(row: Row, agent: str, digest: str) -> dict[str, Any]:
    """Return the protocol of a row, as it stands in a file."""
    return {
        "name": f"benchmark-{row.name}",
        "description": f"{row.algorithm} with seed {row.seed} on {row.env_id}. Its card says how far it was trained.",
        "seed": 20261119,
        "horizon": row.settings["horizon"],
        "batch": 16,
        "trials": {"initial_law": row.claim["trials"]},
        "claim": {"delta": row.claim["delta"], "target": row.claim["target"], "bound": "clopper-pearson"},
        "environment": row.environment,
        "program": {"verifier": {"make": "accept-all"}},
        "controllers": [{"name": "agent", "make": "zoo", "arguments": {"name": agent}, "digest": digest}],
        "schedules": [{"name": "noise", **row.settings["schedule"]}],
        "events": row.settings["events"],
    }


def certify(row: Row, agent: str, digest: str, *, ending: str = ".run") -> Store:
    """Run the protocol of a row, or what is left of it, and certify it. Not certified is a result too."""
    RUNS.mkdir(parents=True, exist_ok=True)
    path, run = RUNS / f"{row.name}.toml", RUNS / f"{row.name}{ending}"
    write_atomically(path, toml_text(protocol_of(row, agent, digest)).encode())
    command = ["-m", "ccfs", "run", str(path), "-o", str(run), "--workers", "1", "--modules", str(HERE)]
    code = subprocess.run([sys.executable, *command], check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"{row.name}: the run ended with exit code {code}.")
    return Store(run)


# Keeping


def keep(row: Row, store: Store) -> None:
    """Copy the small part of a certified run into the folder of the row, with checksums."""
    files: Any = store.read_json("manifest.json")["files"]
    for name in ("protocol.json", "provenance.json", *(name for name in files if name.startswith("certificates/"))):
        write_atomically(row.folder / name, store.read(name))
    lines = trial_lines(store, store.protocol())
    write_atomically(row.folder / "trajectories.parquet", parquet_bytes(lines))
    totals = costs(row, store.protocol(), lines.to_pylist())
    if totals is not None:
        write_atomically(row.folder / "costs.json", totals.to_bytes())
    record = {"command": row.command, "manifest": hashlib.sha256(store.read("manifest.json")).hexdigest()}
    write_atomically(row.folder / "record.json", (json.dumps(record, indent=1) + "\n").encode())
    seal(row.folder)


def costs(row: Row, protocol: Protocol, lines: Sequence[Mapping[str, Any]]) -> RunTotals | None:
    """Return the certified total cost, None for a task without cost. A trial that ended early counts as the worst."""
    greatest = row.settings.get("greatest_cost")
    if greatest is None:
        return None
    whole = ("horizon", protocol.horizon)
    totals = [[line["total_cost"] if (line["outcome"], line["steps"]) == whole else greatest] for line in lines]
    (arm,) = protocol.arms
    study = certify_study(protocol, Total.COST, {arm.name: totals}, lowest=0.0, highest=greatest, is_range_given=True)
    return run_totals(study, COST_BUDGETS, default_limits(study))


def seal(folder: Path) -> None:
    """Write SHA-256 sums of every file in the format of `sha256sum -c`, last: they say that the row is whole."""
    write_atomically(folder / "sums", "".join(f"{digest}  {name}\n" for name, digest in _digests(folder)).encode())


def broken_seals(folder: Path) -> list[str]:
    """Return the files of a row that differ from their checksum, are missing or were added."""
    listed = (folder / "sums").read_text(encoding="utf-8").splitlines()
    stored = {tuple(line.split("  ", 1)[::-1]) for line in listed}
    return sorted({name for name, _ in stored ^ set(_digests(folder))})


def _digests(folder: Path) -> list[tuple[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "sums")
    return [(path.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


def is_kept(row: Row) -> bool:
    """Return whether a row is finished."""
    return (row.folder / "sums").exists()


def lines_of(row: Row) -> list[dict[str, Any]]:
    """Return the kept trial lines of a row."""
    found: list[dict[str, Any]] = read_parquet((row.folder / "trajectories.parquet").read_bytes()).to_pylist()
    return found


def check(row: Row) -> bool:
    """Run the trials of a kept row again and say whether they are the same, to the bit."""
    if not is_kept(row) or (broken := broken_seals(row.folder)):
        found = "no such row" if not is_kept(row) else f"other checksums of {', '.join(broken)}"
        raise SystemExit(f"{row.name} must be a kept row that is whole, got {found}.")
    agent, entry = agent_of(row)
    store = certify(row, agent, entry.actor.digest, ending=".check")
    lines = trial_lines(store, store.protocol()).to_pylist()
    differing = sum(ours != theirs for ours, theirs in zip(lines, lines_of(row), strict=True))
    print(f"{row.name}: {differing} of {len(lines)} trials differ from the kept ones.")
    return differing == 0


def make(row: Row) -> None:
    """Train, certify and keep one row, or what is left of it."""
    if is_kept(row):
        print(f"{row.name}: kept in {row.folder}")
        return
    agent, entry = agent_of(row)
    keep(row, certify(row, agent, entry.actor.digest))
    print(f"{row.name}: kept in {row.folder}. Next: python experiments/benchmark/page.py")


def main(words: Sequence[str]) -> int:
    """Make or check the named rows. With `--all`, a row that fails does not stop the others."""
    known = rows()
    if list(words) == ["--list"]:
        for row in known.values():
            print(f"{'kept' if is_kept(row) else 'open'}  {row.name}  {row.steps:,} steps")
        return 0
    is_all, is_check = list(words) == ["--all"], list(words[:1]) == ["--check"]
    wanted = list(known) if is_all else list(words[is_check:])
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        usage = "usage: run.py ROW..., --check ROW..., --all or --list."
        raise SystemExit(f"{usage} Rows: {', '.join(known)}. Got: {list(words)}")
    if is_check:
        results = [check(known[name]) for name in wanted]
    else:
        results = [_is_made(known[name], is_all=is_all) for name in wanted]
    return 0 if all(results) else 1


def _is_made(row: Row, *, is_all: bool) -> bool:
    try:
        make(row)
    except (Exception, SystemExit) as error:
        if not is_all:
            raise
        print(f"{row.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.exit(main(sys.argv[1:]))
