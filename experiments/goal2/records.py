"""Keep what a claim rests on: a run's trial lines, certificates, table and trace hashes, small and with checksums."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from ccfs.certificates.means import Total
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import Protocol
from ccfs.results.certificate import AttackedCount, RunCertificate
from ccfs.results.derive import refuse_missing_trials
from ccfs.results.families import FamilyDocument
from ccfs.results.scores import SCORES, AttackScore, ScoresDocument
from ccfs.results.table import TableRow, markdown, shown_bounds, table_rows
from ccfs.results.totals import RunTotals, certify_study, default_limits, run_totals
from ccfs.results.trial_lines import trial_lines
from ccfs.results.verify import verify
from ccfs.runs.store import Store

HERE = Path(__file__).resolve().parent
RESULTS, PILOTS = HERE / "results", HERE / "pilots"
BUDGET = 0.02
COST_BUDGETS = (0.0, 0.02, 0.1)
RETURN_RANGE, RETURN_LIMITS = (-10.0, 50.0), (-2.0, 0.0, 2.0)
"""What a return is cut to: the least is a robot that runs ten metres away, the greatest a goal in every ten steps."""


def keep(run: Path, name: str, command: str) -> Path:
    """Copy the small part of a finished and certified run into `results/NAME`."""
    store = Store(run)
    protocol = store.protocol()
    refuse_missing_trials(store, protocol)
    if protocol.quick_look_of is not None:
        raise SystemExit(f"{run} is a quick look: only whole runs are kept.")
    manifest = store.read_json("manifest.json")
    files = manifest["files"]
    assert isinstance(files, dict)
    folder = RESULTS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    documents = [file for file in files if file.startswith(("certificates/", "families/")) or file == SCORES]
    for file in ("protocol.json", "provenance.json", *documents):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(store.read(file))
    (folder / "trajectories.parquet").write_bytes(parquet_bytes(trial_lines(store, protocol)))
    traces = {file: digest for file, digest in files.items() if file.startswith(("traces/", "private/"))}
    record = {"command": command, "protocol": protocol.hash, "traces": traces}
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if not protocol.stop.cost:  # whole episodes: their total cost is worth a study
        (folder / "costs.json").write_bytes(costs(name).to_bytes())
        (folder / "returns.json").write_bytes(returns(name).to_bytes())
    (folder / "table.md").write_text(tables(lines(name), protocol), encoding="utf-8")
    seal(folder)
    return folder


def keep_tuning(tuned: Path, name: str) -> None:
    """Keep the record of `ccfs tune` and the trial lines of its pilots as pilots/NAME.json and pilots/NAME.parquet."""
    record = (tuned / "tuning.json").read_bytes()
    stores = [Store(folder) for folder in sorted((tuned / "pilots").glob("*/*"))]
    tables = []
    for store in stores:
        protocol = store.protocol()
        refuse_missing_trials(store, protocol)
        found = trial_lines(store, protocol)
        tables.append(found.append_column("protocol", pa.array([protocol.hash] * len(found))))
    (PILOTS / f"{name}.json").write_bytes(record)
    (PILOTS / f"{name}.parquet").write_bytes(parquet_bytes(pa.concat_tables(tables)))


def costs(name: str) -> RunTotals:
    """Return the certified total costs of a kept run, from its trial lines. Every step of these runs cost 0 or 1."""
    protocol = stored_protocol(name)
    ceiling = float(protocol.horizon)

    def total(line: dict[str, object]) -> object:
        is_whole = (line["outcome"], line["steps"]) == ("horizon", protocol.horizon)
        return line["total_cost"] if is_whole else ceiling

    study = certify_study(protocol, Total.COST, _totals(name, total), lowest=0.0, highest=ceiling, is_range_given=False)
    return run_totals(study, COST_BUDGETS, default_limits(study), of=protocol.hash)


def returns(name: str) -> RunTotals:
    """Return the certified returns of a kept run, from its trial lines. A return is cut to the declared range."""
    protocol, (least, most) = stored_protocol(name), RETURN_RANGE

    def total(line: dict[str, object]) -> float:
        is_whole = (line["outcome"], line["steps"]) == ("horizon", protocol.horizon)
        return min(max(float(str(line["total_reward"])), least), most) if is_whole else least

    study = certify_study(protocol, Total.RETURN, _totals(name, total), lowest=least, highest=most, is_range_given=True)
    return run_totals(study, COST_BUDGETS, RETURN_LIMITS, of=protocol.hash)


def _totals(name: str, total: Callable[[dict[str, object]], object]) -> dict[str, list[list[float]]]:
    """Return the total of each nominal trial, by arm, one stratum each."""
    nominal = [line for line in lines(name).to_pylist() if line["attack"] == "nominal"]
    return {
        arm.name: [[total(line)] for line in nominal if f"{line['controller']}/{line['schedule']}" == arm.name]
        for arm in stored_protocol(name).arms
    }


def seal(folder: Path) -> None:
    """Write SHA-256 sums of every file in the format of `sha256sum -c`."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names if name != "sums"]
    (folder / "sums").write_text("".join(sums), encoding="utf-8")


def broken_seals(folder: Path) -> list[str]:
    """Return the stored files that differ from their checksum, are missing or were added."""
    stored = dict(line.split("  ", 1)[::-1] for line in (folder / "sums").read_text(encoding="utf-8").splitlines())
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "sums"
    }
    return sorted(name for name in stored.keys() | found.keys() if stored.get(name) != found.get(name))


def stored_protocol(name: str) -> Protocol:
    """Return the protocol of a kept run."""
    return Store(RESULTS / name).protocol()


def stored_certificates(name: str) -> Iterator[RunCertificate]:
    """Yield the kept certificates. Their numbers are recomputed from their counts as they are read."""
    for path in sorted((RESULTS / name / "certificates").rglob("*.json")):
        yield verify(path, None)


def stored_families(name: str) -> Iterator[FamilyDocument]:
    """Yield the kept certificates of named disturbances, as they were written."""
    for path in sorted((RESULTS / name / "families").rglob("*.json")):
        yield FamilyDocument.from_bytes(path.read_bytes(), where=path.name)


def scored_and_run(name: str) -> Iterator[tuple[AttackScore, AttackedCount]]:
    """Yield each score of a shift rule beside the count of the trials that the rule attacked."""
    scores = ScoresDocument.from_bytes((RESULTS / name / SCORES).read_bytes(), where=SCORES)
    counts = {(c.arm, c.event, a.attack): a for c in stored_certificates(name) for a in c.attacks}
    for score in scores.scores:
        yield score, counts[score.arm, score.event, score.attack]


def lines(name: str) -> pa.Table:
    """Return the trial lines of a kept run."""
    return read_parquet((RESULTS / name / "trajectories.parquet").read_bytes())


def rows(table: pa.Table, protocol: Protocol, event: str) -> list[TableRow]:
    """Return the table's rows under the bound of the claim and those that stand beside it."""
    return table_rows(table, protocol, event, shown_bounds(protocol))


def tables(table: pa.Table, protocol: Protocol) -> str:
    """Return the Markdown tables of every event."""
    parts = [f"{spec.name}, L at B = {BUDGET}:\n\n{_table(table, protocol, spec.name)}\n" for spec in protocol.events]
    return "\n".join(parts)


def _table(table: pa.Table, protocol: Protocol, event: str) -> str:
    return markdown(rows(table, protocol, event), BUDGET, protocol.attacks[0] if protocol.attacks else None)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--costs"] and len(sys.argv) == 3:  # again from the kept lines
        (RESULTS / sys.argv[2] / "costs.json").write_bytes(costs(sys.argv[2]).to_bytes())
        (RESULTS / sys.argv[2] / "returns.json").write_bytes(returns(sys.argv[2]).to_bytes())
        seal(RESULTS / sys.argv[2])
        raise SystemExit
    if sys.argv[1:2] == ["--tuning"] and len(sys.argv) == 4:
        keep_tuning(Path(sys.argv[2]), sys.argv[3])
        raise SystemExit
    if len(sys.argv) != 3:
        raise SystemExit("usage: python experiments/goal2/records.py RUN NAME, --costs NAME, or --tuning FOLDER NAME")
    study = "goal2" if sys.argv[2] == "table" else f"goal2-{sys.argv[2]}"
    print(keep(Path(sys.argv[1]), sys.argv[2], f"ccfs study run {study} -o {sys.argv[1]}"))
