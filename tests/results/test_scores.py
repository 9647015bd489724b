"""Scores of shift rules that were not run: exact on the corridor, beside really attacked trials, kept and audited."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from toy_protocol import contents, protocol
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.cli.main import app
from ccfs.envs.toys.corridor import nominal_probability
from ccfs.protocol.model import ProtocolError
from ccfs.report.page import render
from ccfs.results.certify import certify
from ccfs.results.scores import SCORES, ScoresDocument, rules_in, score, score_lines
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trust import UntrustedError

pytestmark = pytest.mark.slow
TRIALS = 300
RULES = """
[[attacks]]
name = "worst"
rule = "corridor-worst"
arguments = { gain = 0.2 }
budget = 0.2

[[attacks]]
name = "random"
rule = "random"
budget = 0.2

[[attacks]]
name = "none"
rule = "none"
budget = 0.2
"""
OPEN = {
    "law": (f"cohort = {{ first = 100, count = {TRIALS} }}", f"initial_law = {TRIALS}"),
    "bound": ('bound = "cohort"', 'bound = "clopper-pearson"'),
    "verifier": ('make = "box", arguments = { low = [-0.5], high = [0.5] }', 'make = "accept-all"'),
    "batch": ("batch = 4", "batch = 100"),
    "four": ('[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', ""),
    "post": ("post = 0.6", "post = 0.3"),
    "budget": ("budget = 0.1", "budget = 0.2"),
}


def exact(moved: float) -> float:
    """The passing probability of the corridor when its last position is moved towards the post."""
    return nominal_probability(horizon=6, post=0.3 - moved, start=0.0, gain=0.2, sigma=0.2, kappa=1.0)


WEIGHTS = 0.8 ** np.arange(5, -1, -1)
# The rule `constant` spends an even share of its energy at each step, `worst` in proportion to the weights.
TRUTH = {
    "push": exact(0.2 / math.sqrt(6.0) * WEIGHTS.sum()),
    "worst": exact(0.2 * float(np.linalg.norm(WEIGHTS))),
    "none": exact(0.0),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores")
    store = run(protocol(folder, trials=TRIALS, **OPEN), folder / "run", serial_engine(), where="p")
    certify(store)
    (folder / "rules.toml").write_text(RULES)
    return store, folder / "rules.toml"


def call(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


def test_scores_enclose_the_exact_probability_and_the_exact_loss(finished):
    """Intervals at 0.05 each on a fixed seed. The point estimates are within three standard errors."""
    store, rules = finished
    attacks = (*store.protocol().attacks, *rules_in(store.protocol(), rules))
    found = {one.attack: one for one in score(store, attacks, is_kept=False).scores}
    for name, truth in TRUTH.items():
        one = found[name]
        assert one.rate_lower <= truth <= one.rate_upper
        assert one.drop_lower <= exact(0.0) - truth <= one.drop_upper
        assert abs(one.drop - (exact(0.0) - truth)) <= 3.0 * one.drop_error + 1e-12
        one.recheck()
    assert found["worst"].drop_lower > 0.0
    assert found["none"].drop == found["none"].drop_error == 0.0
    # Paired: the loss is known better than either rate.
    assert found["push"].drop_upper - found["push"].drop_lower < found["push"].rate_upper - found["push"].rate_lower
    # A random direction hardly moves the cart on average.
    assert abs(found["random"].drop) < 0.05


def test_scores_agree_with_trials_that_were_really_attacked(finished):
    """The attacked trials of the run are a second, unpaired observation of the same rate."""
    store, _ = finished
    (one,) = score(store, store.protocol().attacks, is_kept=False).scores
    from ccfs.results.certificate import RunCertificate

    path = store.path("certificates/steer/one/safe.json")
    (attacked,) = RunCertificate.from_bytes(path.read_bytes(), where="").attacks
    rate = attacked.successes / attacked.trials
    spread = math.sqrt(rate * (1.0 - rate) / attacked.trials) + one.drop_error
    assert abs(one.rate - rate) <= 4.0 * spread


def test_scoring_changes_no_file_unless_it_is_kept(finished):
    store, _ = finished
    before = contents(store.root)
    score(store, store.protocol().attacks, is_kept=False)
    assert contents(store.root) == before


def test_kept_scores_are_audited_and_shown(finished):
    store, rules = finished
    told = call("score", store.root)
    assert told.exit_code == 0, told.output
    assert "steer/one, safe under push:" in told.output
    assert "observations about the rules, not claims" in told.output
    found = json.loads(call("score", store.root, "--attacks", rules, "--json").output)
    assert found["format"] == "ccfs/scores/1"
    assert [one["attack"] for one in found["scores"]] == ["worst", "random", "none"]
    report = audit(store, replay=0)
    assert report.faults == ()
    assert any(note.startswith("scores.json: its ratios are quoted") for note in report.notes)
    page = render(store, most_steps=0)
    assert "scored, not run" in page
    made = ScoresDocument.from_bytes(store.read(SCORES), where=SCORES)
    assert len(list(score_lines(made))) == 4
    forged = made.model_copy(update={"scores": (made.scores[0].model_copy(update={"drop": 0.0}), *made.scores[1:])})
    try:
        store.write(SCORES, forged.to_bytes())
        write_manifest(store, store.protocol())
        assert any("does not follow from its ratios" in fault for fault in audit(store, replay=0).faults)
    finally:
        store.path(SCORES).unlink()
        write_manifest(store, store.protocol())


def test_rules_of_a_file_must_fit_the_protocol(finished, tmp_path):
    store, _ = finished
    path = tmp_path / "rules.toml"
    path.write_text('seed = 1\n[[attacks]]\nname = "a"\nrule = "none"\nbudget = 0.1\n')
    with pytest.raises(ProtocolError, match=r"must hold `\[\[attacks\]\]` and nothing else"):
        rules_in(store.protocol(), path)
    path.write_text('[[attacks]]\nname = "a"\nrule = "none"\nstage = "sensor"\nbudget = 0.1\n')
    with pytest.raises(ProtocolError, match="does not fit"):
        rules_in(store.protocol(), path)
    with pytest.raises(ValueError, match="must have shift rules to score"):
        score(store, ())


def test_scoring_refuses_a_trial_that_does_not_replay_and_a_changed_run(finished, monkeypatch):
    store, _ = finished
    from ccfs.results import scores

    played = scores.run_trial
    monkeypatch.setattr(scores, "run_trial", lambda *a, **k: (None, played(*a, **k)[1]._replace(chain=b"other")))
    with pytest.raises(RunError, match="does not replay to its stored hash"):
        score(store, store.protocol().attacks, is_kept=False)
    monkeypatch.undo()
    stray = store.path("stray.txt")
    stray.write_text("x")
    try:
        with pytest.raises(RunError, match="Audit this run before scoring"):
            score(store, store.protocol().attacks, is_kept=False)
    finally:
        stray.unlink()


def test_rules_of_the_users_own_need_trust_and_run_confined(finished, tmp_path, monkeypatch):
    store, _ = finished
    (tmp_path / "own_rule.py").write_text(
        "from ccfs.attacks.rules import ConstantShift\n\n\ndef make():\n    return ConstantShift(direction=(1.0,))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "rules.toml"
    path.write_text('[[attacks]]\nname = "own"\nrule = "own_rule:make"\nbudget = 0.2\n')
    rules = rules_in(store.protocol(), path)
    with pytest.raises(UntrustedError, match=r"scoring attacks runs code that the run names: attacks\.own"):
        score(Store(store.root), rules, is_kept=False)
    (own,) = score(Store(store.root, trust=Trust.CONFINED), rules, is_kept=False).scores
    (push,) = score(store, store.protocol().attacks, is_kept=False).scores
    assert own.log_ratios == push.log_ratios
    assert own.drop_upper == push.drop_upper


def test_sensor_and_action_shifts_are_weighed_together(tmp_path):
    """Every stage with noise. With ten times the shift the interval is far on the other side."""
    noisy = ("action = { count = 1, sigma = 0.2 }", "action = { count = 1, sigma = 0.2 }\nsensor = { sigma = 0.1 }")
    worst = (
        'rule = "constant"\nbudget = 0.2\narguments = { direction = [1.0] }',
        'rule = "corridor-worst"\nenergy = 1.0\nstage = "all"\narguments = { gain = 0.2, action = 0.2, sensor = 0.1 }',
    )
    made = protocol(tmp_path, trials=TRIALS, **{**OPEN, "sensor": noisy, "worst": worst})
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    (one,) = score(store, made.attacks, is_kept=False).scores
    nominal = nominal_probability(horizon=6, post=0.3, start=0.0, gain=0.2, sigma=0.2, kappa=1.0, sensor=0.1)
    # The worst attack attains the theorem's bound at mu = 1.
    from ccfs.certificates.gaussian import event_lower

    truth = event_lower(nominal, 1.0)
    assert one.rate_lower <= truth <= one.rate_upper
    assert one.drop_lower <= nominal - truth <= one.drop_upper
    assert max(one.energies) <= 1.0 + 1e-9
    assert min(one.energies) > 0.9
