from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from toy_protocol import contents, protocol

from ccfs.protocol.model import ProtocolError
from ccfs.runs.batches import plan, run_batch
from ccfs.runs.counting import certificate, recorded_events, tally
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.provenance import TABLES
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted serial run, the oracle of every other way to run."""
    folder = tmp_path_factory.mktemp("reference")
    made = protocol(folder)
    run(made, folder / "run", serial_engine(), where="protocol.toml")
    return made, contents(folder / "run")


def test_run_makes_every_batch_once(reference):
    _, files = reference
    names = [name for name in files if name.startswith("batches/")]
    assert len(names) == 2 * 2 * 3  # arms, nominal and attacked, batches of 4 + 4 + 2
    trials = [t for name in names if "steer/one/nominal" in name for t in json.loads(files[name])["trials"]]
    assert trials == list(range(10))
    assert set(json.loads(files["manifest.json"])["files"]) == set(files) - {"manifest.json"}


def test_run_names_no_machine(reference):
    _, files = reference
    texts = {name: content.decode() for name, content in files.items() if name.endswith(".json")}
    assert set(json.loads(texts["provenance.json"])) == {"format", "protocol", "events", *TABLES}
    for name, content in files.items():
        assert os.fsencode(os.getcwd()) not in content, name
        assert os.fsencode(sys.prefix) not in content, name


def test_run_again_changes_nothing(reference, tmp_path):
    made, files = reference
    for _ in range(2):
        run(made, tmp_path / "run", serial_engine(), where="p")
    assert contents(tmp_path / "run") == files


@pytest.mark.slow
def test_run_in_processes_gives_the_same_bytes(reference, tmp_path):
    made, files = reference
    seen = []
    run(made, tmp_path / "run", process_engine(2), where="p", advance=seen.append)
    assert contents(tmp_path / "run") == files
    assert sum(seen) == 40


def test_run_replays_zero_shift_as_nominal(tmp_path):
    made = protocol(
        tmp_path, x=('rule = "constant"', 'rule = "none"'), y=("arguments = { direction = [1.0] }", "arguments = {}")
    )
    run(made, tmp_path / "run", serial_engine(), where="p")
    for arm in ("one", "four"):
        for kind in ("traces", "trajectories"):
            folder = tmp_path / "run" / kind / "steer" / arm
            assert contents(folder / "nominal") == contents(folder / "push")


def test_batch_is_a_pure_function_of_protocol_and_trials(reference):
    made, files = reference
    batch = list(plan(made, made.arms[1], made.attacks[0]))[1]
    assert run_batch(made.canonical, batch) == tuple(files[name] for name in batch.files)


def test_run_refuses_another_protocol(reference, tmp_path):
    made, _ = reference
    run(made, tmp_path / "run", serial_engine(), where="p")
    other = protocol(tmp_path, x=("seed = 7", "seed = 8"))
    before = contents(tmp_path / "run")
    with pytest.raises(RunError, match="belongs to the protocol 'toy' with hash"):
        run(other, tmp_path / "run", serial_engine(), where="p")
    assert contents(tmp_path / "run") == before


def test_run_batch_refuses_a_worker_with_other_versions(reference, tmp_path):
    made, files = reference
    batch = next(plan(made, made.arms[0], None))
    record = json.loads(files["provenance.json"])
    assert run_batch(made.canonical, batch, json.dumps(record)) == tuple(files[name] for name in batch.files)
    record["packages"]["numpy"] = "0.9"
    with pytest.raises(RuntimeError, match=r"a worker has other `packages` than the run: numpy is .*, not 0\.9"):
        run_batch(made.canonical, batch, json.dumps(record))


def test_run_controller_that_changes_between_runs_is_refused(tmp_path):
    import toys

    made = protocol(
        tmp_path,
        x=('make = "steering"\narguments = { gain = 0.2 }', 'make = "toys:Drifting"'),
    )
    run(made, tmp_path / "run", serial_engine(), where="p")
    toys.Drifting.digest = "retrained"
    try:
        with pytest.raises(RunError, match=r"was begun with `controllers` steer drifting, got retrained\. Restore"):
            run(made, tmp_path / "run", serial_engine(), where="p")
    finally:
        toys.Drifting.digest = "drifting"


DRIFTING = ('make = "steering"\narguments = { gain = 0.2 }', 'make = "toys:Drifting"')


def test_run_refuses_a_controller_that_changes_within_the_run(tmp_path, monkeypatch):
    import toys

    made = protocol(tmp_path, x=DRIFTING)

    def retrain(trials):
        monkeypatch.setattr(toys.Drifting, "digest", "retrained")

    with pytest.raises(RunError, match=r"batch-00001: controller 'steer' has the digest retrained here, .* drifting"):
        run(made, tmp_path / "run", serial_engine(), where="p", advance=retrain)
    assert len(list((tmp_path / "run" / "batches").rglob("*.json"))) == 1
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_run_batch_refuses_a_worker_with_another_controller(reference):
    made, files = reference
    record = json.loads(files["provenance.json"])
    record["controllers"]["steer"] = "0" * 64
    with pytest.raises(RuntimeError, match="controller 'steer' has the digest"):
        run_batch(made.canonical, next(plan(made, made.arms[0], None)), json.dumps(record))


def test_run_code_that_ends_the_process_stops_the_run(tmp_path, monkeypatch):
    def end(*given):
        raise SystemExit(0)

    monkeypatch.setattr("ccfs.runs.batches.batch_files", end)
    message = r"batch-00000: code that the protocol names tried to end the process: SystemExit"
    with pytest.raises(RunError, match=message):
        run(protocol(tmp_path), tmp_path / "run", serial_engine(), where="p")


def test_run_refuses_other_packages(reference, tmp_path, monkeypatch):
    made, _ = reference
    run(made, tmp_path / "run", serial_engine(), where="p")
    monkeypatch.setattr("ccfs.runs.provenance._installed", lambda: (("numpy", "0.0.0"),))
    with pytest.raises(RunError, match="was begun with `packages`"):
        run(made, tmp_path / "run", serial_engine(), where="p")


def test_run_refuses_a_controller_whose_hash_changed(tmp_path):
    made = protocol(tmp_path, x=('name = "steer"', f'name = "steer"\ndigest = "{"0" * 64}"'))
    with pytest.raises(
        ProtocolError, match=r"p\.toml: `controllers\.0\.digest` must be the controller's own, .* got 000"
    ):
        run(made, tmp_path / "run", serial_engine(), where="p.toml")
    assert not (tmp_path / "run" / "protocol.json").exists()


def test_run_refuses_a_changed_batch(reference, tmp_path):
    made, _ = reference
    run(made, tmp_path / "run", serial_engine(), where="p")
    path = tmp_path / "run" / "traces/steer/one/nominal/batch-00001.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(RunError, match=r"batches/steer/one/nominal/batch-00001\.json: does not match"):
        run(made, tmp_path / "run", serial_engine(), where="p")


def test_run_failing_batch_names_it_and_keeps_the_others(tmp_path):
    made = protocol(
        tmp_path,
        x=('rule = "constant"', 'rule = "scripted"'),
        y=("direction = [1.0]", "shifts = [[9.0]]"),
    )
    with pytest.raises(RunError, match=r"steer/one/push/batch-00000: `shift` must keep the energy"):
        run(made, tmp_path / "run", serial_engine(), where="p")
    nominal = [name for name in contents(tmp_path / "run") if name.startswith("batches/")]
    assert len(nominal) == 6
    assert not (tmp_path / "run" / "manifest.json").exists()


KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.protocol.model import load_protocol
from ccfs.runs.provenance import TABLES
from ccfs.runs.run import run

if __name__ == "__main__":
    source, folder, rng, interrupted = Path(sys.argv[1]), Path(sys.argv[2]), random.Random(20), 0
    for attempt in range(20):
        # Forked, not started: what is killed is a main process, and twenty imports would only cost time.
        child = os.fork()
        if child == 0:
            engine = process_engine(2) if attempt == 10 else serial_engine()
            run(load_protocol(source), folder, engine, where=str(source))
            os._exit(0)
        goal = len(list(folder.rglob("*"))) + rng.randrange(1, 12)
        deadline = time.monotonic() + (8 if attempt == 10 else 3)
        while time.monotonic() < deadline and len(list(folder.rglob("*"))) < goal:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.01)
        os.kill(child, signal.SIGKILL)
        interrupted += os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    print(interrupted)
    run(load_protocol(source), folder, serial_engine(), where=str(source))
"""


@pytest.mark.slow
def test_run_survives_kill_at_twenty_random_moments(tmp_path):
    made = protocol(tmp_path, trials=40)
    run(made, tmp_path / "whole", serial_engine(), where="p")
    (tmp_path / "killer.py").write_text(KILLER)
    command = [sys.executable, tmp_path / "killer.py", tmp_path / "protocol.toml", tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 15
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


ANYTIME = {
    "a": ("cohort = { first = 100, count = 400 }", "initial_law = 400"),
    "b": ('bound = "cohort"', 'bound = "anytime"\nstop_at_budget = 0.05'),
}


@pytest.mark.slow
def test_run_stops_as_soon_as_the_budget_is_certified(tmp_path):
    made = protocol(tmp_path, trials=400, **ANYTIME)
    store = run(made, tmp_path / "serial", serial_engine(), where="p")
    with recorded_events(store, made) as events:
        nominal = [tally(store, made, arm, None, events) for arm in made.arms]
        attacked = [tally(store, made, arm, made.attacks[0], events) for arm in made.arms]
    assert [len(found["safe"]) for found in attacked] == [len(found["safe"]) for found in nominal]
    for arm, found in zip(made.arms, nominal, strict=True):
        inside = found["safe"]
        assert len(inside) < 400
        assert len(inside) % made.batch == 0
        assert certificate(made, arm, "safe", inside).budget >= 0.05
        assert (certificate(made, arm, "safe", inside[: -made.batch]).budget or 0.0) < 0.05


@pytest.mark.slow
def test_run_stopping_time_does_not_depend_on_the_engine(tmp_path):
    made = protocol(tmp_path, trials=400, **ANYTIME)
    run(made, tmp_path / "serial", serial_engine(), where="p")
    run(made, tmp_path / "processes", process_engine(2), where="p")
    assert contents(tmp_path / "serial") == contents(tmp_path / "processes")


@pytest.mark.slow
@pytest.mark.parametrize("is_missing", [True, False])
def test_run_that_is_refused_leaves_a_finished_run_as_it_was(reference, tmp_path, is_missing):
    made, files = reference
    root = tmp_path / "run"
    run(made, root, serial_engine(), where="p")
    name = "traces/steer/four/push/batch-00002.parquet"
    missing = "batches/steer/one/nominal/batch-00000.json"  # a batch to rerun, before the changed one
    (root / missing).unlink()
    if is_missing:
        (root / name).unlink()
    else:
        (root / name).write_bytes(b"other")
    before = contents(root)
    what = rf"batch, of which {name} is missing\." if is_missing else r"batch\. "
    with pytest.raises(RunError, match=rf"batches/steer/four/push/batch-00002\.json: does not match .*{what}"):
        run(made, root, serial_engine(), where="p")
    assert contents(root) == before
    assert "manifest.json" in before
    (root / "batches/steer/four/push/batch-00002.json").unlink()  # what the message says
    run(made, root, serial_engine(), where="p")
    assert contents(root) == files


@pytest.mark.slow
def test_run_removes_the_manifest_before_it_writes_a_batch(reference, tmp_path, monkeypatch):
    made, _ = reference
    root = tmp_path / "run"
    run(made, root, serial_engine(), where="p")
    (root / "batches/steer/one/nominal/batch-00000.json").unlink()
    present = []
    original = Store.write_together

    def write_together(self, contents):
        present.append((len(contents), self.exists("manifest.json")))
        original(self, contents)

    monkeypatch.setattr(Store, "write_together", write_together)
    run(made, root, serial_engine(), where="p")
    assert present == [(2, False), (1, False), (1, False)]  # two tables, the journal, the new manifest
