"""Several draws at each reset seed: protocol, run, certificate, verification, audit, table and page."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from toy_protocol import contents, protocol
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.certificates.bounds import Bound
from ccfs.certificates.stratified import GRID, StratifiedCertificate
from ccfs.certificates.trajectory import CertificateError, certify_event
from ccfs.cli.main import app
from ccfs.protocol.model import ProtocolError, parse_protocol
from ccfs.protocol.tables import StrataSpec
from ccfs.report.figures import interval, observed
from ccfs.report.page import render
from ccfs.results.certificate import RunCertificate, in_words
from ccfs.results.certify import certify
from ccfs.results.table import shown_bounds, table_document, table_rows
from ccfs.results.trial_lines import trial_lines
from ccfs.results.verify import verification, verify
from ccfs.runs.counting import certificate, impossible, recorded_events, tally
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.run import run
from ccfs.runs.store import RunError
from ccfs.runtime.streams import Purpose

pytestmark = pytest.mark.slow  # most tests share a run that takes a second
STRATIFIED = ('bound = "cohort"', 'bound = "stratified"')
ONE_ARM = ('[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', "")


def draws(trials, pilot=2, main=6):
    old = f"cohort = {{ first = 100, count = {trials} }}"
    return old, f"{old}\ndraws = {{ pilot = {pilot}, main = {main} }}"


def law(trials, pilot=2, main=6):
    return (
        f"cohort = {{ first = 100, count = {trials} }}",
        f"initial_law = {trials}\ndraws = {{ pilot = {pilot}, main = {main} }}",
    )


def call(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


@pytest.fixture(scope="module", params=["cohort", "law"])
def finished(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("strata")
    trials = draws(24) if request.param == "cohort" else law(24)
    made = protocol(folder, trials=24, a=trials, b=STRATIFIED, c=ONE_ARM, d=("batch = 4", "batch = 20"))
    store = run(made, folder / "run", serial_engine(), where="p")
    (document,) = certify(store)
    return made, store, document


def test_absent_keys_do_not_change_the_hash_and_given_ones_do(tmp_path):
    plain = protocol(tmp_path)
    stored = plain.model_dump(mode="json")
    assert "draws" not in stored["trials"]
    assert "strata" not in stored["claim"]
    made = protocol(tmp_path, a=draws(10), b=STRATIFIED)
    content = made.model_dump(mode="json")
    assert content["claim"]["strata"] == {"step": 0.02, "last": 6.0, "prior": [0.25, 0.25], "cap": 0.98}
    assert parse_protocol(content, where="p").hash == made.hash
    seen = {made.hash, plain.hash}
    for change in ({"step": 0.05}, {"last": 5.0}, {"prior": [0.5, 0.5]}, {"cap": 0.9}):
        other = {**content, "claim": {**content["claim"], "strata": {**content["claim"]["strata"], **change}}}
        seen.add(parse_protocol(other, where="p").hash)
    for pilot, main in ((1, 7), (0, 8), (2, 7)):
        seen.add(protocol(tmp_path, a=draws(10, pilot, main), b=STRATIFIED).hash)
    assert len(seen) == 9


def test_default_sizes_are_those_of_the_function():
    assert StrataSpec().grid == GRID
    assert StrataSpec(step=0.1, last=0.35).grid == (0.0, 0.1, 0.2, 0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"b": STRATIFIED}, r"`trials\.draws` must be given with `claim\.bound` = 'stratified', and only then"),
        ({"a": draws(10)}, r"`trials\.draws` must be given with .* got draws = 8 with bound = 'cohort'"),
        ({"a": draws(10, main=0), "b": STRATIFIED}, r"`trials\.draws\.main`: .*greater than or equal to 1, got 0"),
        ({"a": draws(10, pilot=-1), "b": STRATIFIED}, r"`trials\.draws\.pilot`: .*equal to 0, got -1"),
        ({"a": draws(10, main=1_000_000), "b": STRATIFIED}, r"`draws` must leave at most 1000000 trials"),
        ({"b": ('bound = "cohort"', 'bound = "cohort"\nstrata = { cap = 0.9 }')}, r"`strata` must be given with bound"),
        (
            {"a": draws(10), "b": (STRATIFIED[0], STRATIFIED[1] + "\nstop_at_budget = 0.1")},
            r"`claim\.stop_at_budget` must not be given for a cohort: the claim is about the average over all",
        ),
        (
            {"a": law(10), "b": (STRATIFIED[0], STRATIFIED[1] + "\nstop_at_budget = 0.1")},
            r"`batch` must be a multiple of the 8 draws at a reset seed .* got 4",
        ),
        *(
            ({"a": draws(10), "b": (STRATIFIED[0], f"{STRATIFIED[1]}\nstrata = {{ {text} }}")}, message)
            for text, message in (
                ("step = 0.0", r"`claim\.strata\.step`: .*equal to 0\.0001"),
                ("step = nan", r"`claim\.strata\.step`: .*"),
                ("step = 0.001, last = 50.0", r"`last` must be at most 1000 steps of 0\.001, got 50\.0"),
                ("cap = 1.0", r"`claim\.strata\.cap`: .*less than 1"),
                ("prior = [0.0, 1.0]", r"`claim\.strata\.prior\.0`: .*greater than 0"),
                ("prior = [1.0]", r"`claim\.strata\.prior"),
                ("grid = [1.0]", r"unknown key `claim\.strata\.grid`"),
            )
        ),
    ],
)
def test_protocol_refuses(tmp_path, changes, message):
    with pytest.raises(ProtocolError, match=message):
        protocol(tmp_path, **changes)


def test_draws_share_the_reset_seed_and_no_noise(tmp_path):
    for trials in (draws(5), law(5)):
        made = protocol(tmp_path, trials=5, a=trials, b=STRATIFIED)
        assert (made.trials.count, made.trials.strata, made.trials.per_seed) == (40, 5, 8)
        arm = made.arms[0]
        streams = [made.streams(arm, trial) for trial in range(40)]
        seeds = [one.reset_seed for one in streams]
        assert seeds == [seed for seed in seeds[::8] for _ in range(8)]
        assert len(set(seeds)) == 5
        keys = {one.key(purpose) for one in streams for purpose in Purpose if purpose is not Purpose.TRANSITION}
        assert len(keys) == 40 * (len(Purpose) - 1)
        listed = [one for one in made.arms for _ in range(5)] if "law" in trials[1] else [arm] * 5
        assert len(list(made.reset_seeds())) == len(listed)
    assert set(made.reset_seeds()) == {made.streams(one, trial).reset_seed for one in made.arms for trial in range(40)}


def test_quick_look_takes_whole_seeds(tmp_path):
    made = protocol(tmp_path, a=draws(10), b=STRATIFIED)
    look = made.first(3)
    assert (look.trials.count, look.trials.strata, list(look.trials.seeds)) == (24, 3, [100, 101, 102])
    assert (look.trials.draws, look.claim.strata) == (made.trials.draws, made.claim.strata)
    assert look.quick_look_of == made.hash != look.hash
    assert protocol(tmp_path, a=law(10), b=STRATIFIED).first(2).trials.count == 16
    with pytest.raises(ProtocolError, match=r"`seeds` must be in \[1, 10\], got 11"):
        made.first(11)


def test_used_seeds_are_refused_with_draws_too(tmp_path):
    with pytest.raises(ProtocolError, match="disjoint from `used_before`, both hold 103"):
        protocol(tmp_path, a=(draws(10)[0], draws(10)[1] + "\nused_before = [103]"), b=STRATIFIED)


def test_certificate_counts_each_seed_and_leaves_the_pilot_out(finished):
    made, store, document = finished
    proof = document.trajectory
    assert isinstance(proof, StratifiedCertificate)
    with recorded_events(store, made) as events:
        inside = tally(store, made, made.arms[0], None, events)["safe"]
    strata = [inside[i : i + 8] for i in range(0, 192, 8)]
    assert proof.pilot_successes == tuple(sum(stratum[:2]) for stratum in strata)
    assert proof.main_successes == tuple(sum(stratum[2:]) for stratum in strata)
    assert (set(proof.pilot_draws), set(proof.main_draws)) == ({2}, {6})
    assert proof.sampling is made.sampling
    assert (document.trials, document.planned_trials, document.successes) == (192, 192, sum(inside))
    assert (proof.grid, proof.prior, proof.cap) == (GRID, (0.25, 0.25), 0.98)
    assert document.is_certified
    assert document.p_lower == 0.5
    assert document.lower_at(document.budget) == 0.5 > document.lower_at(2.0 * document.budget) > 0.0
    assert "Pilot trajectories are not among the counted ones." in document.premises[0]


def test_sentence_says_what_is_counted_and_does_not_promise_a_nominal_bound(finished):
    made, _, document = finished
    words = document.sentence
    proof = document.trajectory
    counted = f"{sum(proof.main_successes)} of 144 counted nominal trials at 24 reset seeds, after a pilot of 48"
    assert counted in words
    assert ("on average over the cohort's fixed reset seeds" in words) == (made.trials.seeds is not None)
    assert "stays at least 0.5 without shift and under every causal shift" in words
    assert in_words(replace(proof, mu=None)).endswith(
        f"is not certified to be at least 0.5 ({counted}, failure probability 0.05)."
    )
    assert "without shift, and no shift is certified" in in_words(replace(proof, mu=0.0))


def test_certificate_file_is_verified_with_and_without_the_run(finished, tmp_path):
    _, store, document = finished
    path = store.path("certificates/steer/one/safe.json")
    assert verify(path, None) == verify(path, store) == document
    assert "from the counts at 24 reset seeds" in verification(document, is_recounted=True).recomputed[0]
    content = json.loads(path.read_text())
    for key, value in (
        ("mu", 1.9),
        ("budget", 9.0),
        ("main_successes", [6] * 24),
        ("pilot_draws", [1] * 24),
        ("grid", [0.0, 0.5]),
        ("sampling", "law" if content["claim"]["sampling"] == "cohort" else "cohort"),
    ):
        changed = {**content, "claim": {**content["claim"], key: value}}
        other = tmp_path / "changed.json"
        other.write_text(json.dumps(changed, sort_keys=True, separators=(",", ":")) + "\n")
        with pytest.raises(CertificateError):
            verify(other, None)


def test_certificate_moved_from_pilot_to_main_is_refused_by_the_run(finished, tmp_path):
    """Its numbers follow from its counts, but its counts are not those of the protocol."""
    made, store, _ = finished
    with recorded_events(store, made) as events:
        inside = tally(store, made, made.arms[0], None, events)["safe"]
    content = made.model_dump(mode="json")
    content["trials"]["draws"] = {"pilot": 0, "main": 8}
    reused = certificate(parse_protocol(content, where="p"), made.arms[0], "safe", inside)
    forged = json.loads(store.path("certificates/steer/one/safe.json").read_text())
    forged["claim"] = json.loads(json.dumps(reused.to_entries()))
    path = tmp_path / "forged.json"
    path.write_bytes(RunCertificate.model_validate_json(json.dumps(forged)).to_bytes())
    assert verify(path, None).trajectory == reused
    with pytest.raises(CertificateError, match="is not what the traces of"):
        verify(path, store)


def test_run_is_audited_clean_and_a_changed_certificate_is_a_fault(finished):
    _, store, document = finished
    report = audit(store, replay=3)
    assert (report.faults, report.trajectories, report.replayed) == ((), 2 * 192, 3)
    name = "certificates/steer/one/safe.json"
    kept = store.read(name)
    try:
        changed = json.loads(kept)
        changed["claim"]["main_successes"][0] = (document.trajectory.main_successes[0] + 1) % 7
        store.write_json(name, changed)
        write_manifest(store, store.protocol())
        assert any(name in fault for fault in audit(store).faults)
    finally:
        store.write(name, kept)
        write_manifest(store, store.protocol())


def test_table_shows_the_claim_first_and_the_count_beside_it(finished):
    made, store, document = finished
    lines = trial_lines(store, made)
    claim, beside = table_rows(lines, made, "safe", shown_bounds(made))
    assert (claim.bound, claim.certificate, claim.trials) == ("stratified", document.trajectory, 192)
    inside = [line["in safe"] for line in lines.to_pylist() if line["attack"] == "nominal"]
    is_cohort = made.trials.seeds is not None
    counted = inside if is_cohort else inside[::8]
    rule = Bound.COHORT if is_cohort else Bound.CLOPPER_PEARSON
    assert beside.certificate == certify_event(
        sum(counted),
        len(counted),
        delta=0.05,
        family=1,
        target=0.5,
        schedule=made.arms[0].schedule.plan,
        bound=rule,
        event="safe",
    )
    found = [(line.bound, line.is_claim) for line in table_document([claim, beside], made, "safe", 0.02).lines]
    assert found == [("stratified", True), (rule.value, False)]
    shown = call("table", store.root)
    assert shown.exit_code == 0
    assert "stratified" in shown.output
    assert rule.value in shown.output


def test_page_marks_the_claim_and_calls_the_other_bound_a_comparison(finished):
    made, store, document = finished
    page = render(store, most_steps=0)
    assert "stratified ◆" in page
    assert "It is no claim of this study." in page
    assert "There are 8 trials at each of 24 reset seeds." in page
    assert document.sentence.split(" (")[1].split(",")[0] in page
    nominal, pushed = observed(document.trajectory, document.attacks)
    assert (nominal.certified, nominal.trials, pushed.trials) == (0.5, 192, 192)
    hits = document.successes
    if made.trials.seeds is not None:
        assert (nominal.low, nominal.high) == interval(hits, 192, Bound.COHORT, delta=0.05)
    else:  # 24 independent seeds, whatever the number of trials
        half = math.sqrt(math.log(2 / 0.05) / 48)
        assert nominal.low == pytest.approx(max(hits // 8 / 24 - half, 0.0), abs=1e-12)
        assert nominal.high == pytest.approx(min(1 - (192 - hits) // 8 / 24 + half, 1.0), abs=1e-12)


def test_run_gives_the_same_bytes_on_two_processes_and_after_an_interruption(finished, tmp_path):
    made, store, _ = finished
    files = {name: content for name, content in contents(store.root).items() if name != "manifest.json"}
    run(made, tmp_path / "again", process_engine(2), where="p")
    (tmp_path / "again" / "batches/steer/one/nominal/batch-00003.json").unlink()
    again = run(made, tmp_path / "again", serial_engine(), where="p")
    certify(again)
    assert {name: content for name, content in contents(again.root).items() if name != "manifest.json"} == files


def test_impossible_claims_are_named_before_the_first_trial(tmp_path):
    assert impossible(protocol(tmp_path, a=draws(10), b=STRATIFIED)) is None
    never = protocol(tmp_path, a=draws(10), b=STRATIFIED, c=("target = 0.5", "target = 0.999"))
    assert impossible(never).startswith("even 80 of 80 successes would not certify the target 0.999")
    refused = call("run", tmp_path / "protocol.toml", "-o", tmp_path / "run", "--workers", 1)
    assert refused.exit_code == 2
    assert "more reset seeds or more draws are needed" in refused.output + refused.stderr
    assert not (tmp_path / "run").exists()


STOPPING = {
    "a": law(60),
    "b": (STRATIFIED[0], STRATIFIED[1] + "\nstop_at_budget = 0.05"),
    "c": ONE_ARM,
    "d": ("batch = 4", "batch = 16"),
}


def test_run_on_a_law_stops_after_whole_seeds_and_the_audit_knows_where(tmp_path):
    made = protocol(tmp_path, trials=60, **STOPPING)
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    (document,) = certify(store)
    proof = document.trajectory
    assert document.trials < document.planned_trials == 480
    assert document.trials % 16 == 0
    assert document.budget >= 0.05
    with recorded_events(store, made) as events:
        inside = tally(store, made, made.arms[0], None, events)["safe"]
    before = certificate(made, made.arms[0], "safe", inside[:-16])
    assert (before.budget or 0.0) < 0.05
    assert "may have stopped after any complete initial state" in proof.sampling_premise
    assert audit(store, replay=0).faults == ()
    assert "Stopped after" in render(store, most_steps=0)
    shorter = inside[: len(inside) - 4]
    with pytest.raises(ValueError, match="must have 8 trials at each reset seed"):
        certificate(made, made.arms[0], "safe", shorter)


def test_unfinished_cohort_is_refused(finished):
    made, store, _ = finished
    name = "batches/steer/one/nominal/batch-00009.json"
    kept = store.read(name)
    store.path(name).unlink()
    try:
        write_manifest(store, made)
        with pytest.raises(RunError, match="must have all 192 planned trials, got 180"):
            certify(store)
    finally:
        store.write(name, kept)
        write_manifest(store, made)
