from __future__ import annotations

import json
import random
import re
import shutil

import numpy as np
import pytest
from toy_protocol import contents, protocol

from ccfs.audit.run import audit, fault_lines
from ccfs.certificates.trajectory import CertificateError
from ccfs.files.digests import file_digest
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.results.certificate import RunCertificate, in_words
from ccfs.results.certify import certify
from ccfs.results.verify import refuse_no_file, verify
from ccfs.runs.batches import plan
from ccfs.runs.build import resolve
from ccfs.runs.counting import recorded_events, tally
from ccfs.runs.executors import serial_engine
from ccfs.runs.journal import Journal
from ccfs.runs.manifest import write_manifest
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow, chain_start, chain_step, lines_of, table_of
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store
from ccfs.runs.trust import UntrustedError
from ccfs.runtime.wrapper import Widths

pytestmark = pytest.mark.slow
ONE = Widths(center=1, action=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited")
    store = run(protocol(folder), folder / "run", serial_engine(), where="p")
    certify(store)
    return store


@pytest.fixture
def store(finished, tmp_path):
    """A copy to tamper with."""
    shutil.copytree(finished.root, tmp_path / "run")
    return Store(tmp_path / "run")


def test_audit_of_an_honest_run_is_clean_with_full_replay(finished):
    report = audit(finished, replay=None)
    assert report.faults == ()
    assert report.notes == ()
    assert (report.trajectories, report.replayed) == (40, 40)


def test_audit_replays_as_many_as_asked(finished):
    assert audit(finished, replay=7).replayed == 7
    assert audit(finished).replayed == 0
    with pytest.raises(ValueError, match="`replay`"):
        audit(finished, replay=-1)


def mutations(rng, files):
    """Yield (name of the file that must be reported, what to do with the folder)."""
    names = sorted(files)
    while True:
        name = rng.choice(names)
        content = files[name]
        kind = rng.choice(("flip", "delete", "truncate", "insert", "reorder", "swap", "empty", "add"))
        place = rng.randrange(len(content))
        changed = bytearray(content)
        if kind == "flip":
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == "truncate":
            del changed[place:]
        elif kind == "insert":
            changed.insert(place, rng.randrange(256))
        elif kind == "reorder":
            other = rng.randrange(len(content))
            changed[place], changed[other] = changed[other], changed[place]
        elif kind == "empty":
            changed.clear()
        elif kind == "swap":
            changed = bytearray(files[rng.choice(names)])
        elif kind == "add":
            yield f"{name}.bak", content
            continue
        if kind == "delete":
            yield name, None
        elif bytes(changed) != content:
            yield name, bytes(changed)


def test_audit_misses_none_of_600_mutations(store):
    files = contents(store.root)
    stream = mutations(random.Random(4), files)
    missed = []
    for _ in range(600):
        name, content = next(stream)
        path = store.path(name)
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)
        faults = audit(store).faults
        if not any(fault.startswith(f"{name}:") or f"/{name}:" in fault for fault in faults):
            missed.append((name, faults))
        if name in files:
            path.write_bytes(files[name])
        else:
            path.unlink()
    assert missed == []
    assert audit(store).faults == ()


def reseal(store):
    """What a forger would do: recompute journals and manifest after changing a table."""
    made = store.protocol()
    for arm in made.arms:
        for attack in (None, *made.attacks):
            for batch in plan(made, arm, attack):
                files = {name: file_digest(store.path(name)) for name in batch.files}
                store.write(batch.journal, Journal(trials=batch.trials, files=files).to_bytes())
    write_manifest(store, made)


def rechain(steps, row):
    chain, made = chain_start(row.reset_seed, ONE, row.first_observation), []
    for step in steps:
        chain = chain_step(chain, step, ONE)
        made.append(step._replace(chain=chain))
    return made, chain


TRACES = "traces/steer/four/nominal/batch-00001.parquet"
ROWS = "trajectories/steer/four/nominal/batch-00001.parquet"
PRIVATE = "private/steer/four/push/batch-00001.parquet"


def forge_steps(store, change):
    steps = lines_of(StepRow, read_parquet(store.read(TRACES)))
    store.write(TRACES, parquet_bytes(table_of(StepRow, change(steps), ONE)))
    reseal(store)


def forge_rows(store, change):
    rows = lines_of(TrajectoryRow, read_parquet(store.read(ROWS)))
    store.write(ROWS, parquet_bytes(table_of(TrajectoryRow, change(rows))))
    reseal(store)


def changed_first(rows, **values):
    return [rows[0]._replace(**values), *rows[1:]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda steps: changed_first(steps, reward=9.0), r"hash chain breaks at step 0"),
        (lambda steps: changed_first(steps, action=(0.123,)), r"hash chain breaks at step 0"),
        (lambda steps: steps[1:], r"must have the steps 0, 1"),
        (lambda steps: [steps[1], steps[0], *steps[2:]], r"must have the steps 0, 1"),
        (lambda steps: [*steps[6:12], *steps[:6], *steps[12:]], r"each once and in order"),
        (lambda steps: [*steps, *steps[:6]], r"must have at most 24 rows, got 30"),
        (lambda steps: steps[:-1], r"is not what its steps give"),
    ],
)
def test_audit_finds_forged_steps_behind_new_hashes(store, change, message):
    forge_steps(store, change)
    faults = audit(store).faults
    assert any(message in fault.replace("\\", "") for fault in faults), faults
    assert all("steer/four/nominal/batch-00001.parquet:" in fault for fault in faults)


@pytest.mark.parametrize(
    "values",
    [
        {"reset_seed": 3},
        {"steps": 2},
        {"outcome": "goal"},
        {"outcome": "terminated"},
        {"outcome": "truncated"},
        {"outcome": "won"},
        {"goal_step": 1},
        {"chain": b"1" * 32},
    ],
)
def test_audit_finds_forged_trajectory_lines_behind_new_hashes(store, values):
    forge_rows(store, lambda rows: changed_first(rows, **values))
    faults = audit(store).faults
    assert faults
    assert all("steer/four/nominal/batch-00001.parquet:" in fault for fault in faults)


def test_audit_finds_a_terminated_trial_that_is_called_horizon(store):
    steps = lines_of(StepRow, read_parquet(store.read(TRACES)))
    rows = lines_of(TrajectoryRow, read_parquet(store.read(ROWS)))
    mine = [step for step in steps if step.trial == 4]
    mine, chain = rechain([*mine[:-1], mine[-1]._replace(terminated=True)], rows[0])
    store.write(TRACES, parquet_bytes(table_of(StepRow, [*mine, *(step for step in steps if step.trial != 4)], ONE)))
    store.write(ROWS, parquet_bytes(table_of(TrajectoryRow, changed_first(rows, chain=chain))))
    reseal(store)
    (fault,) = audit(store).faults
    assert fault == f"{ROWS}: trial 4 has the outcome 'horizon', which its steps contradict."


def test_audit_finds_a_dropped_trial_behind_new_hashes(store):
    forge_rows(store, lambda rows: rows[1:])
    assert any("must hold the trials 4 to 7" in fault for fault in audit(store).faults)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"energy": 0.0}, "another energy"),
        ({"shift": (0.9,)}, "must keep the energy"),
        ({"t": 3}, "must hold the shifts of each step"),
    ],
)
def test_audit_finds_forged_shifts_behind_new_hashes(store, values, message):
    rows = lines_of(ShiftRow, read_parquet(store.read(PRIVATE)))
    store.write(PRIVATE, parquet_bytes(table_of(ShiftRow, changed_first(rows, **values), ONE)))
    reseal(store)
    assert any(fault.startswith(PRIVATE) and message in fault for fault in audit(store).faults)


def test_audit_replay_finds_a_forgery_that_is_consistent_in_itself(store):
    # A hit of the post turned into a pass, with chain, trajectory line, journal, manifest and certificate all redone.
    steps = lines_of(StepRow, read_parquet(store.read(TRACES)))
    rows = lines_of(TrajectoryRow, read_parquet(store.read(ROWS)))
    mine = [step._replace(reward=step.reward + 0.25) for step in steps if step.trial == 4]
    mine, chain = rechain(mine, rows[0])
    store.write(TRACES, parquet_bytes(table_of(StepRow, [*mine, *(step for step in steps if step.trial != 4)], ONE)))
    total = float(sum(step.reward for step in mine))
    forged = changed_first(rows, chain=chain, total_reward=total)
    store.write(ROWS, parquet_bytes(table_of(TrajectoryRow, forged)))
    reseal(store)
    certify(store)
    assert audit(store).faults == ()
    faults = audit(store, replay=None).faults
    assert set(faults) == {
        f"{TRACES}: trial 4 does not replay: first difference at step 0: reward.",
        f"{ROWS}: trial 4 does not replay: first difference: total_reward.",
    }


def test_audit_finds_a_forged_certificate_behind_new_hashes(store):
    name = "certificates/steer/one/safe.json"
    document = json.loads(store.read(name))
    document["attacks"][0]["successes"] = 10 - document["attacks"][0]["successes"] + 1
    store.write_json(name, document)
    write_manifest(store, store.protocol())
    assert audit(store).faults == (f"{name}: is not what the traces give.",)


def test_audit_finds_stray_batches_and_a_written_lock(store):
    store.write("traces/steer/one/nominal/batch-00009.parquet", b"x")
    write_manifest(store, store.protocol())
    assert audit(store).faults == ("traces/steer/one/nominal/batch-00009.parquet: is not in the protocol's plan.",)
    store.path("traces/steer/one/nominal/batch-00009.parquet").unlink()
    write_manifest(store, store.protocol())
    store.path("traces/.partial-batch").write_bytes(b"x")
    assert audit(store).faults == ("traces/.partial-batch: is not part of the run.",)
    store.path("traces/.partial-batch").unlink()
    store.path("lock").write_text("mine")
    assert audit(store).faults == ("lock: must be empty.",)


def test_audit_refuses_links_and_unknown_files(store, tmp_path):
    outside = tmp_path / "outside.parquet"
    linked = store.root / TRACES
    linked.rename(outside)
    linked.symlink_to(outside)
    assert audit(store).faults == (f"{TRACES}: must be a plain file or folder.",)
    linked.unlink()
    outside.rename(linked)
    store.write("notes.txt", b"x")
    write_manifest(store, store.protocol())
    assert audit(store).faults == ("notes.txt: is not in the protocol's plan.",)


@pytest.mark.parametrize("content", [b"[]", b"{", b'{ "protocol": 1 }'])
def test_audit_names_a_broken_provenance(store, content):
    store.write("provenance.json", content)
    write_manifest(store, store.protocol())
    for replay in (0, 1):
        assert any(fault.startswith("provenance.json: ") for fault in audit(store, replay=replay).faults)


def test_audit_refuses_a_protocol_in_other_bytes(store):
    store.write("protocol.json", store.read("protocol.json").replace(b",", b", ", 1))
    write_manifest(store, store.protocol())
    assert audit(store).faults == ("protocol.json: must be the canonical text of its protocol.",)


def test_audit_with_replay_refuses_another_controller(store):
    record = store.read_json("provenance.json")
    record["controllers"]["steer"] = "0" * 64
    store.write_json("provenance.json", record)
    write_manifest(store, store.protocol())
    certify(store)
    assert audit(store, replay=0).faults == ()
    (fault,) = audit(store, replay=1).faults
    assert fault.startswith(f"provenance.json: controllers steer: {'0' * 64} when the run was made, ")


def test_audit_notes_what_differs_here_but_does_not_fail(finished, monkeypatch):
    monkeypatch.setattr("ccfs.runs.provenance._installed", lambda: (("numpy", "0.0.0"),))
    report = audit(finished, replay=2)
    assert report.is_clean
    assert any(note.startswith("packages numpy:") for note in report.notes)


def test_audit_and_certify_refuse_an_unfinished_run(tmp_path):
    store = Store(tmp_path / "run")
    made = protocol(tmp_path)
    run(made, store.root, serial_engine(), where="p")
    store.path("manifest.json").unlink()
    assert audit(store).faults[0].startswith("manifest.json: is missing")
    with pytest.raises(RunError, match=r"manifest\.json: is missing, so the run is not finished"):
        certify(store)


def test_certify_counts_what_the_traces_show(finished):
    made = finished.protocol()
    for arm in made.arms:
        content = finished.read(f"certificates/{arm.name}/safe.json")
        document = RunCertificate.from_bytes(content, where="c")
        with recorded_events(finished, made) as events:
            inside = tally(finished, made, arm, None, events)["safe"]
        proof = document.trajectory
        assert (proof.successes, proof.trials) == (sum(inside), len(inside))
        assert (proof.family, proof.delta, proof.bound.value) == (2, 0.05, "cohort")
        assert document.unverified_fallbacks == ("center",)
        assert document.is_center_clipped
        (attacked,) = document.attacks
        assert attacked.energy <= attacked.energy_limit
        assert attacked.trials == 10
        assert f"{arm.name}: P(safe within 6 steps)" in document.sentence
        # One sentence: the words about the proof are those that `in_words` has for the proof alone.
        assert document.sentence.partition(" seeds, ")[2] == in_words(proof).partition(" seeds, ")[2] != ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"event": "better"}, "names the events 'better', 'safe' and 'safe'"),
        ({"planned_trials": 1000}, "has 10 of 1000 planned trials"),
        ({"planned_trials": 9}, "has 10 of 9 planned trials"),
    ],
)
def test_certificate_that_contradicts_its_claim_is_refused(finished, change, message):
    name = f"certificates/{finished.protocol().arms[0].name}/safe.json"
    document = RunCertificate.from_bytes(finished.read(name), where="c")
    with pytest.raises(CertificateError, match=message):
        RunCertificate.from_bytes(document.model_copy(update=change).to_bytes(), where="c")
    (attacked,) = document.attacks
    more = document.model_copy(update={"attacks": (attacked.model_copy(update={"successes": attacked.trials + 1}),)})
    with pytest.raises(CertificateError, match="more successes than trials"):
        RunCertificate.from_bytes(more.to_bytes(), where="c")


def test_certificate_states_the_horizon_of_its_event(tmp_path):
    short = ('"no-cost-until-goal"', '"no-cost-until-goal"\narguments = { horizon = 2 }')
    store = run(protocol(tmp_path, trials=4, x=short), tmp_path / "short", serial_engine(), where="p")
    document = certify(store)[0]
    assert "P(safe within 2 steps)" in document.sentence
    assert (document.definition, document.horizon) == (store.protocol().events[0], 6)
    late, soon = (f'{{ name = "{n}", event = "no-abstention", arguments = {{ horizon = {n} }} }}' for n in (6, 3))
    both = ('"no-cost-until-goal"', f'"all-of"\nevents = [{late}, {soon}]')
    store = run(protocol(tmp_path, trials=4, x=both), tmp_path / "both", serial_engine(), where="p")
    assert "P(safe within 6 and 3 steps)" in certify(store)[0].sentence
    assert "Quick look" not in certify(store)[0].sentence


def test_verify_accepts_the_honest_and_refuses_the_changed(finished, store, tmp_path):
    path = finished.path("certificates/steer/one/safe.json")
    assert verify(path, None).arm == "steer/one"
    assert verify(path, finished).event == "safe"
    changed = tmp_path / "changed.json"
    changed.write_bytes(path.read_bytes().replace(b"safe", b"sage", 1))
    with pytest.raises(CertificateError):
        verify(changed, finished)
    changed.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(CertificateError, match="was changed"):
        verify(changed, None)
    document = json.loads(path.read_bytes())
    document["claim"]["p_lower"] = 0.99
    changed.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n")
    with pytest.raises(CertificateError, match="p_lower"):
        verify(changed, None)
    with pytest.raises(CertificateError, match="cannot be read"):
        verify(tmp_path / "absent.json", None)


def test_audit_without_replay_and_verify_import_nothing_that_the_protocol_names(finished, monkeypatch):
    """A stranger's run must be judged without running the stranger's code."""

    def refuse(key, path):
        if path.startswith("ccfs.runs.events:"):  # the shipped events, which counting needs
            return resolve(key, path)
        raise AssertionError(f"{path} was imported for {key}")

    for place in ("ccfs.runs.build.resolve",):
        monkeypatch.setattr(place, refuse)
    assert audit(finished, replay=0).is_clean
    name = next(name for name in finished.files() if name.startswith("certificates/"))
    verify(finished.path(name), finished)
    with pytest.raises(AssertionError, match="was imported"):
        audit(finished, replay=1)


def drop_batches(store, chosen):
    """What a forger would do with the batches that went badly."""
    made = store.protocol()
    for arm in made.arms:
        for attack in (None, *made.attacks):
            batches = list(plan(made, arm, attack))
            for number in chosen:
                for name in (*batches[number].files, batches[number].journal):
                    store.path(name).unlink()
    write_manifest(store, made)


@pytest.mark.parametrize("chosen", [[0], [1], [2], [1, 2], [0, 1, 2]])
def test_run_without_some_of_its_batches_is_refused_behind_a_new_manifest(store, chosen):
    drop_batches(store, chosen)
    with pytest.raises(RunError, match=r"steer/one must have all 10 planned trials, got \d"):
        certify(store)
    with pytest.raises(CertificateError, match="planned trials"):
        verify(store.path("certificates/steer/one/safe.json"), store)
    assert any(fault.startswith("batches/steer/one/nominal") for fault in audit(store).faults)


def test_certify_refuses_an_attack_without_some_of_its_batches(store):
    made = store.protocol()
    batch = list(plan(made, made.arms[0], made.attacks[0]))[1]
    for name in (*batch.files, batch.journal):
        store.path(name).unlink()
    write_manifest(store, made)
    with pytest.raises(RunError, match="steer/one/push must have its first 10 trials"):
        certify(store)


def test_anytime_run_with_a_hole_is_refused(tmp_path):
    law = ("cohort = { first = 100, count = 400 }", "initial_law = 400")
    rule = ('bound = "cohort"', 'bound = "anytime"\nstop_at_budget = 0.05')
    store = run(protocol(tmp_path, trials=400, x=law, y=rule), tmp_path / "run", serial_engine(), where="p")
    certify(store)
    drop_batches(store, [1])
    with pytest.raises(RunError, match="steer/one/nominal must have its first"):
        certify(store)


@pytest.mark.parametrize("change", [lambda rows: [rows[0]] * len(rows), lambda rows: rows[1:], lambda rows: rows[::-1]])
def test_certify_and_verify_refuse_doubled_and_missing_trajectory_lines(store, change):
    forge_rows(store, change)
    message = r"must hold the trials 4 to 7, each once and in order"
    with pytest.raises(RunError, match=message):
        certify(store)
    with pytest.raises(CertificateError, match=message):
        verify(store.path("certificates/steer/four/safe.json"), store)


def test_audit_of_a_short_run_with_foreign_events_is_a_fault(tmp_path):
    foreign = ('event = "no-cost-until-goal"', 'event = "toys:NoCostUntilGoal"\narguments = { horizon = 6 }')
    store = run(protocol(tmp_path, event=foreign), tmp_path / "run", serial_engine(), where="p")
    drop_batches(store, [2])
    assert "batches/steer/one/nominal/batch-00002.json: is missing." in audit(store, replay=0).faults


def test_audit_and_verify_do_not_count_by_foreign_code(tmp_path, monkeypatch):
    foreign = ('event = "no-cost-until-goal"', 'event = "toys:NoCostUntilGoal"\narguments = { horizon = 6 }')
    store = run(protocol(tmp_path, trials=4, event=foreign), tmp_path / "run", serial_engine(), where="p")
    certify(store)
    assert audit(store, replay=1).faults == ()
    for place in ("ccfs.runs.build.resolve",):
        monkeypatch.setattr(place, lambda key, path: pytest.fail(f"{path} was imported for {key}"))
    stranger = Store(store.root)
    report = audit(stranger, replay=0)
    assert report.is_clean
    assert report.unchecked == ("whether the counts of the events safe follow from the traces.",)
    (part,) = report.would_run
    assert re.fullmatch(r"events\.safe: toys:NoCostUntilGoal\(horizon=6\), digest [0-9a-f]{16}", part)
    name = next(name for name in store.files() if name.startswith("certificates/"))
    with pytest.raises(UntrustedError, match=r"counting safe runs code that the run names: .*toys:NoCostUntilGoal"):
        verify(store.path(name), stranger)


def test_audit_names_a_missing_trace_even_without_a_manifest(store):
    store.path("manifest.json").unlink()
    store.path(TRACES).unlink()
    store.path(ROWS.replace("four", "one")).write_bytes(b"other")
    faults = audit(store, replay=None).faults
    assert faults[0].startswith("manifest.json: is missing")
    assert f"{TRACES}: is missing." in faults
    assert any(fault.startswith(ROWS.replace("four", "one")) for fault in faults)


def test_audit_of_an_interrupted_run_has_one_fault(store):
    store.path("manifest.json").unlink()
    for batch in list(plan(store.protocol(), store.protocol().arms[1], None))[1:]:
        for name in (*batch.files, batch.journal):
            store.path(name).unlink()
    (fault,) = audit(store, replay=None).faults
    assert fault.startswith("manifest.json: is missing")


def test_audit_reads_nothing_behind_links_and_survives_a_bad_protocol_without_a_manifest(store, tmp_path):
    store.path("manifest.json").unlink()
    kept = store.path("protocol.json").read_bytes()
    store.path("protocol.json").write_text("{}")
    first, second = (fault.partition(":")[0] for fault in audit(store).faults[:2])
    assert (first, second) == ("manifest.json", "protocol.json")
    (tmp_path / "elsewhere").write_bytes(kept)
    store.path("protocol.json").unlink()
    store.path("protocol.json").symlink_to(tmp_path / "elsewhere")
    assert audit(store).faults == ("protocol.json: must be a plain file or folder.",)


def test_certify_writes_a_missing_certificate_again_and_refuses_a_changed_one(store):
    before = contents(store.root)
    first, second = sorted(name for name in before if name.startswith("certificates/"))
    store.path(first).unlink()
    assert audit(store).faults == (f"{first}: is missing.",)
    certify(store)
    assert contents(store.root) == before
    store.path(first).unlink()
    store.path(second).write_bytes(b"{}")
    with pytest.raises(RunError, match=rf"{second}: was changed"):
        certify(store)
    assert not store.exists(first)


@pytest.mark.parametrize("name", ["report.html", "traces/steer/one/nominal/batch-00000.parquet", "provenance.json"])
def test_certify_forgives_no_other_missing_file(store, name):
    store.path("report.html").write_text("page")
    write_manifest(store, store.protocol())
    store.path(name).unlink()
    with pytest.raises(RunError, match=rf"{name}: is missing\. Audit this run"):
        certify(store)


def test_fault_lines_name_ten_of_a_kind_and_count_the_others():
    many = [f"traces/a/batch-0000{i % 3}.parquet: trial {i} does not replay: at step {i}: center." for i in range(25)]
    other = ["lock: must be empty.", "provenance.json: controllers a: " + "0" * 64 + " then, " + "f" * 64 + " here."]
    shown = list(fault_lines([other[0], *many, other[1]]))
    assert shown == [other[0], *many[:10], "... and 15 more of this kind.", other[1]]
    assert list(fault_lines(many[:10])) == many[:10]
    assert list(fault_lines(many[:11]))[10:] == ["... and 1 more of this kind."]
    assert list(fault_lines([])) == []
    with pytest.raises(ValueError, match="`most` must be at least 1, got 0"):
        list(fault_lines(many, most=0))


def test_audit_says_where_a_replay_differs_first(finished, monkeypatch):
    monkeypatch.setattr("ccfs.envs.toys.corridor.Steering.center", lambda self, observation: np.array([0.1]))
    faults = audit(finished, replay=None).faults
    what = "first difference at step 0: center (is the controller deterministic?)"
    assert faults[0] == f"traces/steer/one/nominal/batch-00000.parquet: trial 0 does not replay: {what}."
    assert faults[1].startswith("trajectories/steer/one/nominal/batch-00000.parquet: trial 0 does not replay: first d")


def test_verify_says_what_to_take_instead_of_a_folder_or_another_file(finished, tmp_path):
    with pytest.raises(ValueError, match=r"got a folder\. The first one there is .*certificates/steer/four/safe\.json"):
        refuse_no_file(finished.root)
    with pytest.raises(ValueError, match=r"The first one there is .*certificates/steer/one/safe\.json"):
        refuse_no_file(finished.root / "certificates/steer/one")
    with pytest.raises(ValueError, match=r"got a folder without any"):
        refuse_no_file(tmp_path)
    with pytest.raises(ValueError, match=r"nothing\.json: must be a certificate file, but there is none"):
        refuse_no_file(tmp_path / "nothing.json")
    for text in ('name = "toy"\n', "[]", "[" * 100_000, ""):
        (tmp_path / "p.toml").write_text(text)
        refuse_no_file(tmp_path / "p.toml")
        with pytest.raises(CertificateError, match=r"p\.toml: must be a certificate of a run \(JSON, as in"):
            verify(tmp_path / "p.toml", None)


STAGED = (
    'name = "one"\naction = { count = 1, sigma = 0.2 }',
    'name = "one"\naction = { count = 1, sigma = 0.2 }\nsensor = { sigma = [0.05, 0.0] }',
)
SENSED = Widths(center=1, action=1, sensor=2)
SENSOR_LOG = "private/steer/one/push/batch-00000.parquet"


@pytest.fixture(scope="module")
def sensed(tmp_path_factory):
    """A run with a sensor stage whose trials end at a cost, so that a reading may be drawn that nobody uses."""
    folder = tmp_path_factory.mktemp("sensed")
    other = ('\n[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', "")
    attack = ("budget = 0.1\narguments = { direction = [1.0] }", 'stage = "all"\nenergy = 0.8')
    rule = ('rule = "constant"', 'rule = "random"')
    stop = ("[program]\n", "[stop]\ngoal = true\n[program]\n")
    made = protocol(folder, trials=6, a=STAGED, b=other, c=attack, d=rule, e=stop)
    store = run(made, folder / "run", serial_engine(), where="p")
    certify(store)
    return store


def test_audit_of_a_run_with_a_sensor_stage_is_clean_with_full_replay(sensed):
    report = audit(sensed, replay=None)
    assert (report.faults, report.notes, report.replayed) == ((), (), 12)
    table = read_parquet(sensed.read(SENSOR_LOG))
    assert {"sensor_0", "sensor_1", "shift_0"} <= set(table.column_names)
    assert max(table.column("spent").to_pylist()) == pytest.approx(0.8, rel=1e-9)
    steps = read_parquet(sensed.read("traces/steer/one/push/batch-00000.parquet"))
    assert len(set(steps.column("reading").to_pylist())) == len(steps)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sensor": (0.9, 0.0)}, "must keep the energy"),
        ({"sensor": (0.0, 1e-9)}, "which has no noise"),
        ({"sensor": (0.0, 0.0)}, "another energy at step 0"),
        ({"shift": (0.0,)}, "another energy at step 0"),
        ({"sensor": None}, "has no shift of the sensor stage at step 0"),
        ({"shift": None}, "has no shift of the action stage at step 0"),
        ({"energy": 0.0}, "another energy at step 0"),
    ],
)
def test_audit_finds_forged_shifts_of_either_stage(sensed, tmp_path, values, message):
    shutil.copytree(sensed.root, tmp_path / "run")
    store = Store(tmp_path / "run")
    rows = lines_of(ShiftRow, read_parquet(store.read(SENSOR_LOG)))
    store.write(SENSOR_LOG, parquet_bytes(table_of(ShiftRow, changed_first(rows, **values), SENSED)))
    reseal(store)
    faults = audit(store).faults
    assert any(fault.startswith(SENSOR_LOG) and message in fault for fault in faults), faults


def test_audit_finds_a_forged_reading_and_tables_of_other_widths(sensed, tmp_path):
    shutil.copytree(sensed.root, tmp_path / "run")
    store = Store(tmp_path / "run")
    name = "traces/steer/one/nominal/batch-00000.parquet"
    kept = store.read(name)
    steps = lines_of(StepRow, read_parquet(kept))
    for forged, widths, message in (
        (changed_first(steps, reading=bytes(16)), SENSED, "hash chain breaks at step 0"),
        (steps, SENSED._replace(sensor=3), "hash chain breaks at step 0"),
        (steps, ONE, "must have readings if, and only if"),
    ):
        store.write(name, parquet_bytes(table_of(StepRow, forged, widths)))
        reseal(store)
        faults = audit(store).faults
        assert any(message in fault for fault in faults), faults
    table = read_parquet(kept)
    for said in (b"1 1", b"1 1 x", b"9999999999 1 2", b"-1 1 2"):
        store.write(name, parquet_bytes(table.replace_schema_metadata({b"format": b"ccfs/trace/3", b"widths": said})))
        reseal(store)
        assert any("widths" in fault for fault in audit(store).faults)


def test_audit_charges_named_slices_where_the_environment_may_be_asked(tmp_path):
    named = (STAGED[1], STAGED[1].replace("[0.05, 0.0]", "{ position = 0.05 }"))
    attack = ("budget = 0.1\narguments = { direction = [1.0] }", 'stage = "sensor"\nbudget = 0.01')
    rule = ('rule = "constant"', 'rule = "random"')
    other = ('\n[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', "")
    made = protocol(tmp_path, trials=4, a=STAGED, b=named, c=attack, d=rule, e=other)
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    certify(store)
    assert audit(store, replay=1).notes == ()
    (note,) = audit(store).notes
    assert "only the environment knows where the named slices are" in note
    rows = lines_of(ShiftRow, read_parquet(store.read(SENSOR_LOG)))
    store.write(SENSOR_LOG, parquet_bytes(table_of(ShiftRow, changed_first(rows, energy=0.0), SENSED)))
    reseal(store)
    assert audit(store).faults == ()
    assert any("another energy at step 0" in fault for fault in audit(store, replay=1).faults)
