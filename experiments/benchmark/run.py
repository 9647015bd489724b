"""Make rows of the benchmark: train an agent, certify it by an ordinary protocol, and keep what the row rests on.

    python experiments/benchmark/run.py CartPole-sb3-ppo-0      # one row, or several
    python experiments/benchmark/run.py --all                   # every row of rows.toml that is not kept yet
    python experiments/benchmark/run.py --check ROW             # the trials of a kept row once more: are they the same?
    python experiments/benchmark/run.py --list

Interrupt it at any time: the same command goes on. Training and runs are in runs/benchmark, finished rows in
experiments/benchmark/results. `page.py` writes docs/benchmark.md from these. Exit codes: 0 done, 1 a row failed or
differs, 2 bad input.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

if "numpy" not in sys.modules:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import bullet
import stock_omnisafe
from pydantic import Field, ValidationError, model_validator
from rich.console import Console

from ccfs.certificates.means import Total
from ccfs.controllers import zoo
from ccfs.controllers.training.config import ALGORITHMS, TrainingConfig
from ccfs.controllers.training.export import write_entry
from ccfs.controllers.training.plan import Plan
from ccfs.controllers.training.runner import furthest, run_plan
from ccfs.files.atomic import write_atomically
from ccfs.files.documents import Table
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.files.toml import read_toml, toml_text
from ccfs.protocol.errors import explain
from ccfs.protocol.model import Protocol, parse_protocol
from ccfs.results.certificate import RunCertificate
from ccfs.results.derive import certificate_name
from ccfs.results.totals import RunTotals, certify_study, default_limits, run_totals
from ccfs.results.trial_lines import event_column, trial_lines
from ccfs.results.verify import verify
from ccfs.runs.counting import certificate
from ccfs.runs.store import Store

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results"
RUNS = Path("runs/benchmark")
COST_BUDGETS = (0.0, 0.05, 0.1)
_TASK_KEYS = ("id", "env_id")
"""Arguments of an environment that may name the task in its library."""
Name = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Part of the name of a folder."""


class RefusedError(Exception):
    """Bad input. The message says what was given, what is accepted and what to do."""


class Settings(Table):
    """What is claimed about some tasks, in the words of a protocol."""

    tasks: list[Name]
    horizon: int
    environment: dict[str, Any]
    schedule: dict[str, Any]
    events: list[dict[str, Any]]
    greatest_cost: float | None = None

    @model_validator(mode="after")
    def _names_the_task(self) -> Settings:
        if not set(_TASK_KEYS) & set(self.environment.get("arguments", {})):
            raise ValueError("environment.arguments must name the task by `id` or `env_id`, got neither")
        return self


class Group(Table):
    """Rows that differ in task, algorithm and seed only."""

    tasks: list[Name]
    algorithms: list[Name]
    seeds: list[int]
    steps: int
    training: dict[str, Any] = Field(default_factory=dict)
    agent: str | None = None


class Declared(Table):
    """The content of rows.toml."""

    delta: float
    target: float
    trials: int
    settings: list[Settings]
    rows: list[Group]


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
    settings: Settings
    claim: Declared
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
        found = self.settings.environment
        texts = {key: value for key, value in found["arguments"].items() if isinstance(value, str)}
        named = {key: value.format(task=self.task) for key, value in texts.items()}
        return {**found, "arguments": {**found["arguments"], **named}}

    @property
    def env_id(self) -> str:
        """Id of the task in its library."""
        arguments = self.environment["arguments"]
        return str(next(arguments[key] for key in _TASK_KEYS if key in arguments))

    @property
    def command(self) -> str:
        """What makes this row."""
        return f"python experiments/benchmark/run.py {self.name}"


def rows() -> dict[str, Row]:
    """Return all rows of rows.toml by name, in its order."""
    try:
        declared = Declared.model_validate(read_toml((HERE / "rows.toml").read_text(encoding="utf-8")))
    except ValidationError as error:
        raise RefusedError("\n".join(f"rows.toml: {line}" for line in explain(error, Declared))) from None
    except ValueError as error:
        raise RefusedError(f"rows.toml: must be a TOML file: {error}") from None
    settings = {task: part for part in declared.settings for task in part.tasks}
    found: dict[str, Row] = {}
    for group in declared.rows:
        for row in _rows_of(group, declared, settings):
            if row.name in found:
                raise RefusedError(f"rows.toml: two rows must differ in task, algorithm or seed, got {row.name} twice.")
            found[row.name] = row
    return found


def _rows_of(group: Group, declared: Declared, settings: Mapping[str, Settings]) -> Iterator[Row]:
    for seed in group.seeds:
        for task in group.tasks:
            if task not in settings:
                raise RefusedError(
                    f"rows.toml: a task must be under [[settings]], one of {', '.join(settings)}, got {task}."
                )
            for algorithm in group.algorithms:
                agent = None if group.agent is None else group.agent.format(seed=seed)
                yield Row(
                    task=task, algorithm=algorithm, seed=seed, steps=group.steps, agent=agent, training=group.training,
                    settings=settings[task], claim=declared,
                )  # fmt: skip


# Training


def agent_of(row: Row) -> tuple[str, zoo.ZooEntry]:
    """Return the agent of a row and how a protocol names it. Train it first if it is not there."""
    folder = row.folder / "agent"
    if row.agent is None and not (folder / "card.json").exists():
        train(row, folder)
    return _loaded(row)


def _loaded(row: Row) -> tuple[str, zoo.ZooEntry]:
    try:
        entry = zoo.load(row.agent or row.folder / "agent")
    except (OSError, ValueError) as error:
        raise RefusedError(f"{row.name}: {error}") from error
    refuse_other_agent(row, entry.card)
    return row.agent or f"experiments/benchmark/results/{row.name}/agent", entry


def refuse_other_agent(row: Row, card: zoo.Card) -> None:
    """Raise unless an agent is, by its card, the one that the row asks for."""
    if row.algorithm in ALGORITHMS and card.config != _config(row).as_dict():
        raise RefusedError(
            f"{row.name}: the card of the agent must have the training settings of this row of rows.toml. For an agent "
            f"of another trainer or with other settings, choose a name of its own in `algorithms`."
        )
    # SB3 ends with a whole rollout, so it may train a little longer. Nobody may train less than the row says.
    most = row.steps + row.steps // 10
    if (card.environment, card.seed) != (row.env_id, row.seed) or not row.steps <= card.steps <= most:
        raise RefusedError(
            f"{row.name}: the card of the agent must say {row.env_id}, seed {row.seed} and {row.steps:,} to {most:,} "
            f"steps, got {card.environment}, seed {card.seed} and {card.steps:,} steps. Mend rows.toml or the agent."
        )


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
    if row.algorithm not in ALGORITHMS:
        raise RefusedError(
            f"{row.name}: there is no agent in {target}, and {row.algorithm} cannot be trained here. Write the agent "
            f"there first (docs/benchmark.md, Add your own), or take one of {', '.join(ALGORITHMS)}, sb3-ppo, "
            f"{stock_omnisafe.PREFIX}..."
        )
    config = _config(row)
    make = _bullet_copies if row.environment["make"] == "bullet:make" else None
    run_plan(Plan(configs=(config,), milestones=(row.steps,), folder=RUNS), Console(), make=make)
    state = furthest(config, RUNS / config.name)
    if state is None or state.steps != row.steps:
        raise RefusedError(f"{row.name}: another process is training it. Wait for it or stop it.")
    write_entry(state, target, command=row.command)


def _config(row: Row) -> TrainingConfig:
    about = {"environment": row.env_id, "seed": row.seed, "total_steps": row.steps, **row.training}
    try:
        return TrainingConfig.of(row.algorithm, **about)
    except (TypeError, ValueError) as error:
        raise RefusedError(f"rows.toml: the training of {row.name} has a wrong setting: {error}") from error


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
        "horizon": row.settings.horizon,
        "batch": 16,
        "trials": {"initial_law": row.claim.trials},
        "claim": {"delta": row.claim.delta, "target": row.claim.target, "bound": "clopper-pearson"},
        "environment": row.environment,
        "program": {"verifier": {"make": "accept-all"}},
        "controllers": [{"name": "agent", "make": "zoo", "arguments": {"name": agent}, "digest": digest}],
        "schedules": [{"name": "noise", **row.settings.schedule}],
        "events": row.settings.events,
    }


def certify(row: Row, agent: str, digest: str, *, ending: str = ".run") -> Store:
    """Run the protocol of a row, or what is left of it, and certify it. Not certified is a result too."""
    RUNS.mkdir(parents=True, exist_ok=True)
    path, run = RUNS / f"{row.name}.toml", RUNS / f"{row.name}{ending}"
    write_atomically(path, toml_text(protocol_of(row, agent, digest)).encode())
    command = ["-m", "ccfs", "run", str(path), "-o", str(run), "--workers", "1", "--modules", str(HERE)]
    code = subprocess.run([sys.executable, *command], check=False).returncode
    if code not in (0, 1):
        raise RefusedError(f"{row.name}: the run ended with exit code {code}, see above. Its folder is {run}.")
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
    greatest = row.settings.greatest_cost
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


def certificates(row: Row) -> Iterator[RunCertificate]:
    """Yield the certificates of a row, in the order of its events. Their numbers are recomputed from their counts."""
    for event in row.settings.events:
        try:
            yield verify(row.folder / "certificates" / "agent" / "noise" / f"{event['name']}.json", None)
        except ValueError as error:
            raise RefusedError(f"{row.name}: {error}") from error


def refuse_broken(row: Row) -> None:
    """Raise if a kept row is not whole and as declared, or if its numbers do not follow from its trial lines."""
    if broken := broken_seals(row.folder):
        raise RefusedError(
            f"{row.name}: files of a kept row must have their checksums, got others for {', '.join(broken)}. Restore "
            f"them. If the change is meant, delete {row.folder / 'sums'} and make the row again."
        )
    agent, entry = _loaded(row)
    protocol = parse_protocol(protocol_of(row, agent, entry.actor.digest), where=f"{row.name}.toml")
    if protocol.hash != Store(row.folder).protocol().hash:
        raise RefusedError(
            f"{row.name}: rows.toml and the agent must be as they were when the row was kept, got another protocol."
        )
    lines, (arm,) = lines_of(row), protocol.arms
    planned = [(trial, protocol.streams(arm, trial).reset_seed) for trial in range(protocol.trials.count)]
    if [(line["trial"], line["reset_seed"]) for line in lines] != planned:
        raise RefusedError(f"{row.name}: the trial lines must be those of the {len(planned)} planned trials, in order.")
    refuse_other_certificates(row, protocol, lines, entry.actor.digest)
    totals, path = costs(row, protocol, lines), row.folder / "costs.json"
    if (None if totals is None else totals.to_bytes()) != (path.read_bytes() if path.exists() else None):
        raise RefusedError(f"{row.name}: costs.json does not follow from the trial lines.")


def refuse_other_certificates(
    row: Row, protocol: Protocol, lines: Sequence[Mapping[str, Any]], controller: str
) -> None:
    """Raise unless the certificates of a row are those that its protocol and its trial lines give, one per event."""
    (arm,) = protocol.arms
    declared = {certificate_name(arm, event) for event in protocol.events}
    stored = {path.relative_to(row.folder).as_posix() for path in (row.folder / "certificates").rglob("*.json")}
    if stored - declared:
        raise RefusedError(f"{row.name}: has certificates of no event of its protocol: {sorted(stored - declared)}.")
    for event, document in zip(protocol.events, certificates(row), strict=True):
        inside = [line[event_column(event.name)] for line in lines]
        # All that a number depends on, and not the count alone: delta, claims, target, bound and noise.
        expected = {
            "protocol": protocol.hash, "arm": arm.name, "event": event.name, "definition": event,
            "horizon": protocol.horizon, "seed": protocol.seed, "environment": protocol.environment,
            "controller": controller, "resolution": protocol.environment.resolution, "quick_look_of": None,
            "outcomes": Counter(line["outcome"] for line in lines),
            "claim": certificate(protocol, arm, event.name, inside),
        }  # fmt: skip
        found = {name: getattr(document, name) for name in expected} | {"claim": document.trajectory}
        if wrong := [name for name, value in expected.items() if found[name] != value]:
            raise RefusedError(
                f"{row.name}: the certificate of {event.name} does not follow from the protocol and the trial lines. "
                f"It differs in {', '.join(wrong)}."
            )


def check(row: Row) -> bool:
    """Run the trials of a kept row again and say whether they are the same, to the bit."""
    if not is_kept(row):
        raise RefusedError(f"{row.name} must be a kept row, got one that is open. Make it first.")
    refuse_broken(row)
    agent, entry = _loaded(row)
    RUNS.mkdir(parents=True, exist_ok=True)
    # A folder of its own, so that every trial is run here and now, whatever somebody left in runs/benchmark.
    with tempfile.TemporaryDirectory(prefix=f"{row.name}.check-", dir=RUNS) as folder:
        ending = Path(folder).name.removeprefix(row.name) + "/run"
        store = certify(row, agent, entry.actor.digest, ending=ending)
        lines = trial_lines(store, store.protocol()).to_pylist()
    differing = sum(ours != theirs for ours, theirs in zip(lines, lines_of(row), strict=True))
    print(f"{row.name}: {differing} of {len(lines)} trials differ from the kept ones.")
    return differing == 0


def make(row: Row) -> None:
    """Train, certify and keep one row, or what is left of it."""
    if is_kept(row):
        refuse_broken(row)
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
        got = f"no row {', '.join(unknown)}" if unknown else "none"
        raise RefusedError(f"usage: run.py ROW..., --check ROW..., --all or --list, which names the rows. Got: {got}.")
    if is_check:
        results = [check(known[name]) for name in wanted]
    else:
        results = [_is_made(known[name], is_all=is_all) for name in wanted]
    return 0 if all(results) else 1


def _is_made(row: Row, *, is_all: bool) -> bool:
    try:
        make(row)
    except Exception as error:
        if not is_all:
            raise
        print(error if isinstance(error, RefusedError) else f"{row.name}: {error!r}", file=sys.stderr)
        return False
    return True


def from_the_root(call: Callable[[], int]) -> int:
    """Call a command in the root of the repository, wherever it was started. A refusal is said and ends with 2."""
    os.chdir(ROOT)
    try:
        return call()
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    sys.exit(from_the_root(lambda: main(sys.argv[1:])))
