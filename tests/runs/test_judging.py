"""Runs without traces: the counts of full traces, bound to code, and nothing forged passes a replay."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from toy_protocol import contents, protocol, text
from typer.testing import CliRunner

from ccfs.audit.run import Draw, audit
from ccfs.cli.demo import demo_protocol
from ccfs.cli.main import app
from ccfs.files.digests import canonical_json, file_digest
from ccfs.files.documents import DocumentError
from ccfs.files.parquet import parquet_bytes, read_parquet
from ccfs.protocol.model import ProtocolError
from ccfs.results.certificate import RunCertificate
from ccfs.results.certify import certify
from ccfs.results.retrace import retrace
from ccfs.runs.batches import plan, run_batch
from ccfs.runs.build import build_event
from ccfs.runs.counting import merkle_root
from ccfs.runs.events import holds, is_lost_by_ending
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.journal import Journal
from ccfs.runs.judging import answers, leaf
from ccfs.runs.manifest import write_manifest
from ccfs.runs.outcomes import Outcome
from ccfs.runs.reader import NoTracesError, RunReader
from ccfs.runs.record import TrajectoryRow, lines_of, table_of
from ccfs.runs.run import run
from ccfs.runs.store import PremiseError, RunError, Store, Trust
from ccfs.runs.trace import traces

ATTACK = (text().partition("[[attacks]]")[1] + text().partition("[[attacks]]")[2], "")
HASHES = ("batch = 4", 'batch = 4\ntraces = "hashes"')
# An event that some trials lose because of how they end, besides the usual one.
EVENTS = (
    'name = "safe"\nevent = "no-cost-until-goal"',
    'name = "safe"\nevent = "no-cost-until-goal"\n\n[[events]]\nname = "lasts"\nevent = "no-abstention"',
)
# Without a fallback some trials abstain.
PICKY = ('[[program.fallbacks]]\nname = "center"\nmake = "center"\nunverified = true\n', "")
TIGHT = ("low = [-0.5], high = [0.5]", "low = [-0.35], high = [0.35]")
CERTIFICATE = "certificates/steer/one/safe.json"


def hashed(folder, trials=24, **replaced):
    changes = {"traces": HASHES, "attacks": ATTACK, "events": EVENTS, "picky": PICKY, "tight": TIGHT, **replaced}
    return protocol(folder, trials=trials, **{key: value for key, value in changes.items() if value is not None})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hashed")
    certify(run(hashed(folder), folder / "run", serial_engine(), where="p"))
    return folder


@pytest.fixture(scope="module")
def study(made):
    return Store(made / "run").protocol()


@pytest.fixture
def store(made, tmp_path):
    return Store(shutil.copytree(made / "run", tmp_path / "run"), trust=Trust.HERE)


def test_protocol_without_the_key_has_the_hash_it_had(tmp_path):
    """The stored number is the hash of the demo before the key was added. Noise depends on it."""
    assert demo_protocol().hash == "14962b56b810e8e7854dc999a37e6358b3a17f46022c96904bebf81aaadc8f88"
    plain = protocol(tmp_path)
    assert protocol(tmp_path, full=("batch = 4", 'batch = 4\ntraces = "full"')).hash == plain.hash
    without = {"attacks": ATTACK}
    assert protocol(tmp_path, **without, traces=HASHES).hash != protocol(tmp_path, **without).hash


def test_protocol_with_attacks_or_another_word_is_refused(tmp_path):
    with pytest.raises(ProtocolError, match=r'`attacks` and `families` must be empty with traces = "hashes"'):
        protocol(tmp_path, traces=HASHES)
    with pytest.raises(ProtocolError, match="traces"):
        protocol(tmp_path, attacks=ATTACK, traces=("batch = 4", 'batch = 4\ntraces = "none"'))


@pytest.mark.slow
def test_run_keeps_lines_and_verdicts_that_full_traces_of_the_same_trials_give(made, study):
    """Oracle: the same trials run with their traces, and the events asked about those."""
    store = Store(made / "run")
    reader = RunReader(store, study)
    assert not any(name.startswith("traces/") for name in store.files())
    events = {spec.name: build_event(study, spec) for spec in study.events}
    some_lost = 0
    for arm in study.arms:
        for batch in reader.batches(arm, None):
            steps, lines = run_batch(study.canonical, replace(batch, keeps_traces=True, is_judged=False))
            rows = lines_of(TrajectoryRow, read_parquet(lines))
            assert repr(rows) == repr(reader.trajectories(batch))
            found = traces(rows, read_parquet(steps))
            kept = reader.judgements(batch)
            for name, event in events.items():
                expected = [(holds(event, trace), is_lost_by_ending(event, trace)) for trace in found]
                assert kept[name] == expected
                some_lost += sum(is_lost for _, is_lost in expected)
    assert some_lost > 0  # so that the test sees both


@pytest.mark.slow
def test_run_gives_the_same_bytes_on_several_workers_and_after_an_interruption(made, study, tmp_path):
    engine = process_engine(2)
    again = run(study, tmp_path / "run", engine, where="p")
    certify(again)
    assert contents(tmp_path / "run") == contents(made / "run")
    again.path("batches/steer/one/nominal/batch-00002.json").unlink()
    again.path("verdicts/steer/one/nominal/batch-00003.json").unlink()
    with pytest.raises(RunError, match="does not match the files of its batch, of which verdicts"):
        run(study, tmp_path / "run", serial_engine(), where="p")
    again.path("batches/steer/one/nominal/batch-00003.json").unlink()
    certify(run(study, tmp_path / "run", serial_engine(), where="p"))
    assert contents(tmp_path / "run") == contents(made / "run")


@pytest.mark.slow
def test_certificate_has_the_root_over_every_line_and_verdict(made, study):
    store = Store(made / "run")
    document = RunCertificate.from_bytes(store.read(CERTIFICATE), where="c")
    reader = RunReader(store, study)
    arm = study.arms[0]
    assert (document.root, document.traces) == (merkle_root(store, study, arm), {})
    rows = [row for batch in reader.batches(arm, None) for row in reader.trajectories(batch)]
    one = leaf(rows[0], [(True, False), (False, True)])
    assert one[-2:] == b"\x01\x02"
    assert one[-34:-2] == rows[0].chain
    others = [
        leaf(rows[0], [(True, False), (False, False)]),
        *(leaf(rows[0]._replace(**{name: value}), [(True, False), (False, True)]) for name, value in OTHER.items()),
    ]
    assert len({one, *others}) == len(others) + 1


OTHER = {
    "trial": 99, "reset_seed": 1, "outcome": "crashed", "steps": 3, "total_reward": 0.5, "total_cost": None,
    "goal_step": 2, "first_cost_step": 2, "error": "ValueError", "first_observation": b"x" * 16, "chain": b"y" * 32,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", ["costs", "table", "report --drawing toys:x"])
def test_command_that_needs_traces_says_that_there_are_none_and_how_to_make_them(made, command):
    name, *rest = command.split()
    result = CliRunner().invoke(app, [name, str(made / "run"), *rest])
    if name == "report":
        assert result.exit_code == 0, (
            result.output
        )  # claims need no traces; drawings are left out, and the page says so
        page = (made / "run" / "report.html").read_text()
        assert "No traces are kept" in page
        assert "ccfs retrace" in page
        write_back(made)
        return
    assert result.exit_code == 2
    assert 'keeps no traces (`traces = "hashes"` in its protocol)' in result.stderr
    assert "`ccfs retrace RUN -o FOLDER --trials 0:100` makes those of chosen trials again" in result.stderr


def write_back(made):
    store = Store(made / "run")
    store.path("report.html").unlink()
    write_manifest(store, store.protocol())


@pytest.mark.slow
def test_reader_refuses_steps_of_every_kind(made, study):
    reader = RunReader(Store(made / "run"), study)
    batch = next(plan(study, study.arms[0], None))
    for ask in (reader.traces, lambda b: reader.columns(b, ["t"]), lambda b: list(reader.steps(b, {0}))):
        with pytest.raises(NoTracesError, match="keeps no traces"):
            ask(batch)


@pytest.mark.slow
def test_verify_counts_stored_verdicts_and_says_so(made):
    root = made / "run"
    result = CliRunner().invoke(app, ["verify", str(root / CERTIFICATE), "--run", str(root)])
    assert result.exit_code == 0, result.output
    assert "the counts from the stored verdicts: this run keeps no traces" in result.output
    assert "`ccfs audit RUN --replay K` makes K of them again" in result.output


def reseal(store, *, certificates=True):
    """What a forger does after changing a batch: journals, certificates and manifest fit again."""
    study = store.protocol()
    for arm in study.arms:
        for batch in plan(study, arm, None):
            files = {name: file_digest(store.path(name)) for name in batch.files}
            store.write(batch.journal, Journal(trials=batch.trials, files=files).to_bytes())
    write_manifest(store, study)
    if certificates:
        certify(store)


def first(store):
    study = store.protocol()
    return next(plan(study, study.arms[0], None))


def change_verdicts(store, change):
    batch = first(store)
    found = json.loads(store.read(batch.verdicts))
    change(found)
    store.write(batch.verdicts, (canonical_json(found) + "\n").encode())


def change_row(store, place, **changes):
    batch = first(store)
    rows = lines_of(TrajectoryRow, read_parquet(store.read(batch.trajectories)))
    rows[place] = rows[place]._replace(**changes)
    store.write(batch.trajectories, parquet_bytes(table_of(TrajectoryRow, rows)))


def _flip_verdict(store):
    def change(found):
        said = found["events"]["safe"]
        place = said.index(False) if False in said else 0
        said[place] = not said[place]
        found["lost"]["safe"] = [trial for trial in found["lost"]["safe"] if trial != found["trials"][place]]

    change_verdicts(store, change)


def _hide_loss(store):
    """One more, or one fewer, that failed because of how it ended."""

    def change(found):
        said, lost = found["events"]["lasts"], found["lost"]["lasts"]
        failed = [trial for trial, is_inside in zip(found["trials"], said, strict=True) if not is_inside]
        found["lost"]["lasts"] = [] if lost else failed[:1]

    batch = first(store)
    before = store.read(batch.verdicts)
    change_verdicts(store, change)
    assert store.read(batch.verdicts) != before


def _other_chain(store):
    change_row(store, 1, chain=b"forged" + bytes(26))


def _other_reward(store):
    change_row(store, 2, total_reward=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("forge", [_flip_verdict, _hide_loss, _other_chain, _other_reward])
def test_forged_trial_passes_hashes_and_is_exposed_by_its_replay(store, forge):
    forge(store)
    reseal(store)
    assert audit(store, replay=0).is_clean  # a consistent forger is found by a replay alone, and the page says so
    assert not audit(store, replay=None).is_clean


@pytest.mark.slow
def test_draw_exposes_a_forged_trial_exactly_if_it_is_among_the_drawn(store):
    _other_chain(store)
    reseal(store)
    forged = 1  # its position among all trials of the run
    draws = [Draw.of(store, 48, 24, str(seed)).chosen for seed in range(6)]
    found = [audit(store, replay=24, seed=str(seed)).is_clean for seed in range(6)]
    assert found == [forged not in chosen for chosen in draws]
    assert {True, False} == set(found)


def _wrong_seed(store):
    change_row(store, 0, reset_seed=5)


def _too_long(store):
    change_row(store, 0, steps=7)


def _goal_without_rule(store):
    change_row(store, 0, outcome="goal")


def _horizon_too_early(store):
    change_row(store, 0, outcome="horizon", steps=2)


def _crash_without_error(store):
    change_row(store, 0, outcome="crashed", error=None)


def _no_such_outcome(store):
    change_row(store, 0, outcome="won")


def _event_missing(store):
    change_verdicts(store, lambda found: (found["events"].pop("lasts"), found["lost"].pop("lasts")))


def _event_more(store):
    change_verdicts(store, lambda found: (found["events"].update(x=[True] * 4), found["lost"].update(x=[])))


def _verdict_missing(store):
    change_verdicts(store, lambda found: found["events"]["safe"].pop())


def _lost_and_inside(store):
    change_verdicts(store, lambda found: found["lost"].update(safe=list(found["trials"])))


def _lost_elsewhere(store):
    change_verdicts(store, lambda found: found["lost"].update(safe=[1000]))


def _no_losses(store):
    change_verdicts(store, lambda found: found.pop("lost"))


def _trial_twice(store):
    change_row(store, 1, trial=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forge",
    [
        _wrong_seed, _too_long, _goal_without_rule, _horizon_too_early, _crash_without_error, _no_such_outcome,
        _event_missing, _event_more, _verdict_missing, _lost_and_inside, _lost_elsewhere, _no_losses, _trial_twice,
    ],
)  # fmt: skip
def test_line_or_verdict_that_no_trial_can_have_is_a_fault_without_replay(store, forge):
    forge(store)
    reseal(store, certificates=False)
    assert not audit(store, replay=0).is_clean
    stored = store.read(CERTIFICATE)
    try:
        again = [made.to_bytes() for made in certify(store)]
    except (RunError, DocumentError, ValueError):
        return
    # A line that can be counted gives another root. A verdict about no event gives none.
    assert stored not in again or forge is _event_more


@pytest.mark.slow
def test_certificate_with_another_root_or_none_is_refused(store):
    content = json.loads(store.read(CERTIFICATE))
    for change in ({"root": "0" * 64}, {"root": None}, {"traces": {"traces/a.parquet": "0" * 64}}):
        forged = {key: value for key, value in {**content, **change}.items() if (key, value) != ("root", None)}
        store.write(CERTIFICATE, json.dumps(forged, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        write_manifest(store, store.protocol())
        result = CliRunner().invoke(app, ["verify", str(store.root / CERTIFICATE), "--run", str(store.root)])
        assert result.exit_code == 1
        assert not audit(store, replay=0).is_clean


@pytest.mark.slow
def test_audit_prints_its_draw_and_what_the_draw_exposes(made):
    result = CliRunner().invoke(app, ["audit", str(made / "run"), "--replay", "8", "--seed", "mine"])
    assert result.exit_code == 0, result.output
    assert "48 trajectories, 8 replayed bit for bit" in result.output
    assert (
        "Drawn by the seed mine. Such a draw exposes 15 or more forged ones (31.25%) with probability 0.95"
        in result.output
    )
    store = Store(made / "run", trust=Trust.HERE)
    one, two = audit(store, replay=8), audit(store, replay=8)
    assert one.seed != two.seed
    assert len(one.seed) == 32
    assert one.exposure == two.exposure
    assert audit(store, replay=None).seed is None


@pytest.mark.slow
def test_draw_does_not_change_with_a_page_that_is_written_later(store):
    before = Draw.of(store, 48, 5, "s").chosen
    store.write("report.html", b"page")
    write_manifest(store, store.protocol())
    assert Draw.of(store, 48, 5, "s").chosen == before
    _other_chain(store)
    reseal(store)
    assert Draw.of(store, 48, 5, "s").chosen != before


@pytest.mark.slow
def test_retrace_writes_traces_whose_hashes_are_the_stored_ones(store, tmp_path, study):
    assert retrace(store, tmp_path / "again", range(3, 6), arm="steer/one") == 3
    names = sorted(path.relative_to(tmp_path / "again").as_posix() for path in (tmp_path / "again").rglob("*.parquet"))
    assert names == [
        f"{kind}/steer/one/nominal/batch-0000{number}.parquet"
        for kind in ("traces", "trajectories")
        for number in (0, 1)
    ]
    batch = list(plan(study, study.arms[0], None))[1]
    expected = run_batch(study.canonical, replace(batch, trials=(4, 5), keeps_traces=True, is_judged=False))
    assert (tmp_path / "again" / batch.traces).read_bytes() == expected[0]
    for wrong, words in (
        ({"trials": range(100, 101)}, "must name trials of the run, which are 0 to 23"),
        ({"arm": "none"}, "`--arm` must be one of"),
        ({"folder": tmp_path / "again"}, "must be a new folder"),
    ):
        arguments = {"folder": tmp_path / "other", "trials": range(1), **wrong}
        with pytest.raises(ValueError, match=words):
            retrace(store, arguments.pop("folder"), arguments.pop("trials"), **arguments)
    _other_chain(store)
    reseal(store)
    with pytest.raises(RunError, match="trial 1 does not come out as it is stored"):
        retrace(store, tmp_path / "third", range(2))


@pytest.mark.slow
def test_command_retrace_takes_a_range_and_refuses_a_run_with_traces(made, tmp_path):
    words = ["retrace", str(made / "run"), "-o", str(tmp_path / "out"), "--trials"]
    result = CliRunner().invoke(app, [*words, "7", "--arm", "steer/four"])
    assert result.exit_code == 0, result.output
    assert "1 trials, each with its stored hash" in result.output
    for wrong in ("-1", "a", "1:", ":2", "1:2:3"):
        assert CliRunner().invoke(app, [*words, wrong]).exit_code == 2
    run(protocol(tmp_path, trials=8), tmp_path / "full", serial_engine(), where="p")
    result = CliRunner().invoke(app, ["retrace", str(tmp_path / "full"), "-o", str(tmp_path / "new")])
    assert result.exit_code == 2
    assert "keeps its traces" in result.stderr


OWN = """\
class Event:
    def holds(self, trace):
        return bool((trace.cost <= 0.0).all())
"""


def own_study(folder, name, code):
    (folder / f"{name}.py").write_text(code)
    event = ('event = "no-cost-until-goal"', f'event = "{name}:Event"')
    return hashed(folder, trials=8, events=event)


@pytest.mark.slow
def test_event_of_the_users_own_is_bound_to_its_code_and_asked_by_a_trusted_replay_alone(tmp_path):
    study = own_study(tmp_path, "own_hashed", OWN)
    done = run(study, tmp_path / "run", serial_engine(), where="p", modules=tmp_path)
    certify(done)
    parts = json.loads(done.read(CERTIFICATE))["provenance"]["parts"]
    assert parts["events.safe"] not in ("built in", "not here")
    words = ["audit", str(tmp_path / "run"), "--modules", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 3
    assert "NOT CHECKED: whether 16 of 16 trajectories replay" in result.output
    assert "would run events.safe: own_hashed:Event" in result.output
    assert CliRunner().invoke(app, [*words, "--trust"]).exit_code == 0
    (tmp_path / "own_hashed.py").write_text(OWN.replace("<= 0.0", "<= 9.0"))
    for command in (["certify", str(tmp_path / "run")], words):
        result = CliRunner().invoke(app, [*command, "--modules", str(tmp_path)] if command is not words else words)
        assert result.exit_code in (1, 2)
        assert "is not the one" in result.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("own_memory", OWN.replace("return", "self.n = not vars(self)\n        return self.n and"), "two answers"),
        ("own_number", OWN.replace("return bool(", "return float("), "must return True or False"),
        ("own_exit", OWN.replace("return", "raise SystemExit(0)\n        return"), "tried to end the process"),
    ],
)  # fmt: skip
def test_event_that_misbehaves_leaves_no_manifest(tmp_path, name, code, words):
    study = own_study(tmp_path, name, code)
    with pytest.raises((RunError, PremiseError), match=words):
        run(study, tmp_path / "run", serial_engine(), where="p", modules=tmp_path)
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
def test_stopping_rule_counts_stored_verdicts(tmp_path):
    law = ("cohort = { first = 100, count = 24 }", "initial_law = 24")
    claim = ('bound = "cohort"', 'bound = "anytime"\nstop_at_budget = 0.0')
    study = hashed(tmp_path, law=law, claim=claim, events=None, picky=None, tight=None)
    store = run(study, tmp_path / "run", serial_engine(), where="p")
    documents = certify(store)
    assert all(document.is_certified and document.trials < 24 for document in documents)
    assert audit(store, replay=4).is_clean


class Dealt:
    """An event whose answers were dealt before, so that no generator can be found."""

    def __init__(self, cards):
        self.cards = iter(cards)

    def holds(self, trace):
        return next(self.cards)


@pytest.mark.parametrize("rate", [0.98, 0.9, 0.5])
def test_answers_misses_hidden_dice_as_rarely_as_promised(rate):
    """The promise for n traces is (q**4 + (1 - q)**4) ** n. Simulated 1,500 times, five standard errors allowed for."""
    found = [SimpleNamespace(trial=i, outcome=Outcome.HORIZON) for i in range(8)]
    dice, missed = np.random.default_rng(11), 0
    for _ in range(1500):
        with suppress(PremiseError):
            answers("run", "dealt", Dealt((dice.random(32) < rate).tolist()), found)
            missed += 1
    promised = (rate**4 + (1.0 - rate) ** 4) ** 8
    assert abs(missed / 1500 - promised) <= 5.0 * (promised * (1.0 - promised) / 1500) ** 0.5 + 1.0 / 1500


def test_answers_asks_our_own_events_once():
    asked = []

    class Told:
        def holds(self, trace):
            asked.append(trace.trial)
            return True

    found = [SimpleNamespace(trial=i, outcome=Outcome.HORIZON) for i in range(3)]
    assert answers("run", "told", Told(), found) == [True] * 3
    assert asked == [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]
    asked.clear()
    Told.__module__ = "ccfs.runs.events"
    assert answers("run", "told", Told(), found) == [True] * 3
    assert asked == [0, 1, 2]
