"""Named disturbances of a run: protocol, weights, certificates, verification, audit, page and commands."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from toy_protocol import protocol, text
from typer.testing import CliRunner

from ccfs.audit.run import audit
from ccfs.certificates.bounds import Bound
from ccfs.certificates.documents import CertificateError
from ccfs.certificates.gaussian import event_lower
from ccfs.cli.main import app
from ccfs.envs.toys.corridor import nominal_probability
from ccfs.protocol.model import ProtocolError, load_protocol
from ccfs.report.page import render
from ccfs.results.certificate import NotACertificateError
from ccfs.results.certify import certify
from ccfs.results.families import FamilyDocument, family_name, stored_families, verify_family
from ccfs.runs.build import build_arm
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import write_manifest
from ccfs.runs.preflight import preflight
from ccfs.runs.reader import RunReader
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.weights import Past, center, disturbance, lag, mean_noise
from ccfs.runtime.streams import Purpose
from ccfs.runtime.wrapper import Widths

pytestmark = pytest.mark.slow  # most tests share a run that takes some seconds
TRIALS, GAIN, POST = 400, 0.2, 0.6
FAMILIES = """
[[families]]
name = "bias"
features = "constant"
box = [0.05]
cells = [5]

[[families]]
name = "gain"
features = "center"
box = [0.5]
most = [0.3]
cells = [5]

[[families]]
name = "lag"
features = "lag"
box = [[0.0, 0.5]]
most = [0.3]
cells = [3]
"""
OPEN = {
    "law": (f"cohort = {{ first = 100, count = {TRIALS} }}", f"initial_law = {TRIALS}"),
    "bound": ('bound = "cohort"', 'bound = "clopper-pearson"'),
    "verifier": ('make = "box", arguments = { low = [-0.5], high = [0.5] }', 'make = "accept-all"'),
    "batch": ("batch = 4", "batch = 100"),
    "arm": ('[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', ""),
    "attacks": ('[[attacks]]\nname = "push"', FAMILIES + '\n[[attacks]]\nname = "push"'),
}
OWN = '''"""Features of this test."""

import numpy as np


def make(scale=1.0):
    """Return the center, as the shipped features do."""
    return lambda past: scale * past.center[:, None]
'''


def families(trials=10, tables=FAMILIES, **replaced):
    return {"trials": trials, "f": ("[[attacks]]", f"{tables}\n[[attacks]]"), **replaced}


def call(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    made = protocol(folder, trials=TRIALS, **OPEN)
    store = run(made, folder / "run", serial_engine(), where="p")
    certify(store)
    return made, store


def document(made, store, arm=0, family=0):
    name = family_name(made.arms[arm], made.events[0], made.families[family])
    return store.path(name), FamilyDocument.from_bytes(store.read(name), where=name)


def test_absent_families_do_not_change_the_hash_and_given_ones_do(tmp_path):
    plain = protocol(tmp_path)
    assert "families" not in plain.model_dump(mode="json")
    assert plain.claims == plain.family == 2
    made = protocol(tmp_path, **families())
    assert made.claims == made.family == 8
    seen = {plain.hash, made.hash}
    for old, new in (("[0.05]", "[0.06]"), ("cells = [5]", "cells = [6]"), ('"bias"', '"tilt"'), ("[0.3]", "[0.4]")):
        other = protocol(tmp_path, **families(tables=FAMILIES.replace(old, new)))
        assert other.hash not in seen
        seen.add(other.hash)
    assert made.first(2).families == made.families


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("box = [0.05]", "box = [-0.05]"), "`box` must have the least value first and no negative size"),
        (("box = [0.05]", "box = [[0.1, 0.0]]"), "`box` must have the least value first"),
        (("box = [0.05]", "box = []"), "box"),
        (("box = [0.05]", "box = [nan]"), "finite number"),
        (("cells = [5]", "cells = [5, 5]"), "`cells` must have one entry for each of the 1 coordinates"),
        (("cells = [5]", "cells = [0]"), "greater than or equal to 1"),
        (("cells = [5]", "coordinates = [0, 1]"), "`coordinates` must have one entry for each of the 1"),
        (("cells = [5]", "most = [1.0]"), "`most` must not be given with constant features"),
        (("cells = [5]", "arguments = { a = 1 }"), "`arguments` must be given to features of your own only"),
        (('"constant"', '"center"'), "`most` must say the greatest absolute value of each feature"),
        (('"constant"', '"centre"'), "must be one of constant, center, lag"),
        (('"constant"', '"ccfs.runs.weights:constant"'), "must name a part of ccfs by its short name"),
        (("most = [0.3]", "most = [-0.3]"), "`most` must be finite and at least 0"),
        (("most = [0.3]", "most = [[0.3]]"), "`most` must be a list of lists"),
        (("most = [0.3]", "most = [0.3, 0.3]"), "`most` must have one number for each of the 1 coordinates"),
        (('"gain"', '"bias"'), "`families` must have different names"),
    ],
)
def test_protocols_refuse_families_that_do_not_fit(tmp_path, change, message):
    old, new = change
    assert old in FAMILIES
    with pytest.raises(ProtocolError, match=message):
        protocol(tmp_path, **families(tables=FAMILIES.replace(old, new, 1)))


def test_protocols_refuse_families_without_a_fixed_number_of_independent_trials(tmp_path):
    law, anytime = (
        ("cohort = { first = 100, count = 10 }", "initial_law = 10"),
        'bound = "anytime"\nstop_at_budget = 0.1',
    )
    with pytest.raises(ProtocolError, match="`families` need a number of trials that is fixed"):
        protocol(tmp_path, **families(a=law, b=('bound = "cohort"', anytime)))
    several = ("count = 10 }", "count = 10 }\ndraws = { pilot = 1, main = 2 }")
    with pytest.raises(ProtocolError, match="`families` need one trial at each reset seed"):
        protocol(tmp_path, **families(a=several, b=('bound = "cohort"', 'bound = "stratified"')))
    with pytest.raises(ProtocolError, match=r"at least 8 .arms times events times one more than families"):
        protocol(tmp_path, **families(a=("delta = 0.05", "delta = 0.05\nfamily = 3")))


def test_preflight_refuses_families_that_the_environment_does_not_fit(tmp_path):
    for change, message in (
        (("box = [0.05]\ncells = [5]", "box = [0.05, 0.05]"), "one entry for each of the 1 coordinates of the stage"),
        (("cells = [5]", "coordinates = [3]"), "must have `coordinates` below 1, got 3"),
        (("cells = [5]", 'stage = "sensor"'), "must shift a stage with noise, action, got sensor"),
    ):
        made = protocol(tmp_path, **families(tables=FAMILIES.replace(*change, 1)))
        with pytest.raises(ProtocolError, match=message):
            preflight(made, where="p")


def test_sensor_families_are_constant_and_need_numbers(tmp_path):
    def made(sensor, features):
        noisy = 'name = "one"\naction = { count = 1, sigma = 0.2 }'
        extra = "" if features == "constant" else "most = [1.0]\n"
        table = f'[[families]]\nname = "x"\nfeatures = "{features}"\nstage = "sensor"\nbox = [0.1]\n{extra}'
        table += "coordinates = [0]\n"
        four = ('[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', "")
        return protocol(
            tmp_path, **families(tables=table, a=(noisy, f"{noisy}\nsensor = {{ sigma = {sensor} }}"), b=four)
        )

    preflight(made("0.1", "constant"), where="p")
    preflight(made("[0.1, 0.0]", "constant"), where="p")
    with pytest.raises(ProtocolError, match="must have features = 'constant' for the sensor stage"):
        preflight(made("0.1", "center"), where="p")
    with pytest.raises(ProtocolError, match="must not shift coordinate 0, which has no noise"):
        preflight(made("[0.0, 0.1]", "constant"), where="p")
    with pytest.raises(ProtocolError, match="needs numbers as `sigma` of the sensor stage"):
        preflight(made("{ position = 0.1 }", "constant"), where="p")


def test_noise_drawn_again_is_that_of_the_trial(tmp_path):
    """Every block of a trial, recorded as it was drawn, has the mean that its stream gives again."""
    sensor = "action = { count = 1, sigma = 0.2 }\nsensor = { sigma = [0.05, 0.1] }"
    made = protocol(tmp_path, a=("action = { count = 1, sigma = 0.2 }", sensor))
    for arm in made.arms:
        wrapped, controller = build_arm(made, arm, None)
        streams = made.streams(arm, 3)
        wrapped.use_streams(streams)
        reading, _ = wrapped.reset(seed=streams.reset_seed)
        plan = wrapped.resolved
        readings, centers, blocks = [], [], []
        while True:
            if plan.sensor is not None:
                readings.append(np.asarray(reading) - wrapped.observation)
            centers.append(controller.center(reading))
            generator = wrapped._rng
            state = generator.bit_generator.state
            blocks.append(plan.at(plan.deciding, len(blocks)).sample_block(centers[-1], generator).mean(axis=0))
            generator.bit_generator.state = state
            reading, _, terminated, truncated, _ = wrapped.step(centers[-1])
            if terminated or truncated:
                break
        noise, charges = mean_noise(plan.deciding, plan.blocks(plan.deciding), 1, len(blocks), streams)
        np.testing.assert_allclose(noise, np.array(blocks) - np.array(centers), rtol=0, atol=1e-15)
        assert charges[0, 0] == pytest.approx(float(plan.at(plan.deciding, 0).charge_exact), rel=1e-15)
        if readings:
            stage = plan.stages[0]
            noise, charges = mean_noise(stage, plan.blocks(stage), 2, len(readings), streams)
            np.testing.assert_allclose(noise, readings, rtol=0, atol=1e-12)
            assert charges[0].tolist() == pytest.approx([400.0, 100.0])
        wrapped.close()


def test_blocks_that_differ_from_step_to_step_are_drawn_again_in_order(tmp_path):
    blocks = ", ".join(f"{{ count = {1 + t % 3}, sigma = {0.1 * (t + 1)} }}" for t in range(6))
    varied = {"a": ("action = { count = 1, sigma = 0.2 }", f"action = [{blocks}]"), "b": ("budget", "energy")}
    made = protocol(tmp_path, **families(**varied))
    plan, streams = made.arms[0].schedule.plan, made.streams(made.arms[0], 0)
    stage = plan.deciding
    noise, charges = mean_noise(stage, plan.blocks(stage), 1, 6, streams)
    rng = streams.generator(Purpose.PROPOSAL)
    for t, block in enumerate(plan.blocks(stage)):
        assert noise[t, 0] == pytest.approx(block.sample_block(np.zeros(1), rng).mean(), abs=1e-15)
        assert charges[t, 0] == float(block.charge_exact)
    ceiling = disturbance(made, made.arms[0], made.families[0], Widths(1, 1)).ceiling[0][0]
    assert ceiling == pytest.approx(sum(float(block.charge_exact) for block in plan.blocks(stage)))
    assert ceiling >= math.fsum(charges[:, 0])


def test_weights_are_sums_over_all_blocks_and_features_are_limited(finished):
    made, store = finished
    reader, arm = RunReader(store, made), made.arms[0]
    trace = reader.traces(reader.batches(arm, None)[0])[7]
    streams, centers = made.streams(arm, 7), trace.centers
    noise, charges = mean_noise(
        arm.schedule.plan.deciding, arm.schedule.plan.blocks(arm.schedule.plan.deciding), 1, 6, streams
    )
    features = {"bias": np.ones((6, 1)), "gain": center()(centers), "lag": lag()(centers)}
    assert features["lag"][0, 0] == 0.0
    assert features["lag"][2, 0] == centers[1, 0] - centers[2, 0]
    for spec in made.families:
        found = disturbance(made, arm, spec, Widths(1, 1))
        weight = found.weight(trace, streams)
        expected = np.clip(features[spec.name], -(spec.most or (1.0,))[0], (spec.most or (1.0,))[0])
        assert weight.score[0] == pytest.approx((expected * charges * noise).sum(), rel=1e-12)
        assert weight.energy[0][0] == pytest.approx((expected**2 * charges).sum(), rel=1e-12)
        assert weight.energy[0][0] <= found.ceiling[0][0]
    tight = made.families[1].model_copy(update={"most": (1e-3,)})
    limited = disturbance(made, arm, tight, Widths(1, 1)).weight(trace, streams)
    assert limited.energy[0][0] <= 6 * 1e-6 * charges[0, 0] * (1 + 1e-12)


def test_default_cells_are_small_and_two_entries_of_a_row_share_it(tmp_path):
    made = protocol(tmp_path, **families())
    spec = made.families[0].model_copy(update={"cells": None})
    found = disturbance(made, made.arms[0], spec, Widths(1, 1))
    size = math.sqrt(found.ceiling[0][0]) * 0.1
    assert found.cells == (math.ceil(16 * size),)
    own = spec.model_copy(update={"features": "m:f", "box": (0.1, 0.1), "most": ((1.0, 2.0),)})
    wide = disturbance(made, made.arms[0], own, Widths(1, 1), is_made=False)
    assert [wide.ceiling[0][0], wide.ceiling[1][1]] == pytest.approx([2 * 150.0, 2 * 4 * 150.0])
    theta = np.array([0.3, -0.7])
    assert 150.0 * (np.array([1.0, -2.0]) @ theta) ** 2 * 6 / 6 <= theta @ np.array(wide.ceiling) @ theta


def exact(gain: float, bias: float = 0.0) -> float:
    """The passing probability of the corridor with a steady bias, which moves the post."""
    weights = (1.0 - gain) ** np.arange(6)
    return nominal_probability(
        horizon=6, post=POST - bias * float(weights.sum()), start=0.0, gain=gain, sigma=0.2, kappa=1.0
    )


def test_certificates_are_below_the_exact_probability_of_the_corridor(finished):
    """The whole box, not only what was sampled: bias against the post, and a gain that is wrong either way.

    At delta = 0.05 for 4 claims a false alarm has probability below 0.05, and the seed is fixed.
    """
    made, store = finished
    bias, gain = (document(made, store, family=i)[1] for i in (0, 1))
    assert bias.kept is not None
    assert gain.kept is not None
    assert bias.kept <= min(exact(GAIN, theta) for theta in np.linspace(-0.05, 0.05, 21)) == exact(GAIN, 0.05)
    # Centers stay far below 0.3 here, so that the limit of the features is not met.
    assert gain.kept <= min(exact(GAIN * (1.0 + theta)) for theta in np.linspace(-0.5, 0.5, 21))
    assert gain.lower is not None
    assert gain.lower > gain.alone + 0.2
    assert gain.share_of_count is not None
    assert 0.0 < gain.share_of_count < 0.5
    count = Bound(gain.bound).lower(gain.claim.successes, TRIALS, delta=0.05 / 4)
    assert event_lower(count, gain.share_of_count * gain.claim.size) == pytest.approx(gain.lower, abs=1e-9)
    assert "of the box." in gain.comparison
    lagging = document(made, store, family=2)[1]
    assert lagging.lower is not None
    assert lagging.lower > lagging.alone + 0.2


def test_claims_share_delta_and_say_what_they_are_about(finished):
    made, store = finished
    _, one = document(made, store)
    assert (one.claim.family, one.claim.delta, one.claim.trials) == (4, 0.05, TRIALS)
    assert one.sentence.startswith("steer/one: P(safe within 6 steps) stays at least 0.")
    assert "every constant bias of the proposal centers of at most 0.05 (" in one.sentence
    assert "Theorem 14 for every causal shift of size mu = 0.6124" in one.comparison
    assert any("What a fallback does is not disturbed: center" in premise for premise in one.premises)
    _, gain = document(made, store, family=1)
    assert "error of the gain of the proposal centers, as a share of it, of at most 0.5 (" in gain.sentence
    assert any("cut off: [0.3]" in premise for premise in gain.premises)
    assert "from 0 to 0.5" in document(made, store, family=2)[1].sentence
    assert one.kept == max(one.lower, one.alone)


def test_verify_computes_a_certificate_again_and_refuses_what_was_changed(finished, tmp_path):
    made, store = finished
    path, one = document(made, store)
    assert verify_family(path, None) == one
    assert verify_family(path, store) == one
    changed = tmp_path / "changed.json"
    for change, message in (
        ({"lower": 0.999}, "`lower` is 0.999 on the certificate"),
        ({"held": [True] * TRIALS}, "`alone` is"),
        ({"box": [[-0.01, 0.01]]}, "has the box"),
        ({"sampling": "cohort"}, "is about a cohort, but its bound is 'clopper-pearson'"),
        ({"name": "tilt"}, "names the claims"),
    ):
        content = json.loads(path.read_text())
        content["claim"].update(change)
        changed.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n")
        made_bytes = FamilyDocument.model_validate_json(changed.read_text()).to_bytes()
        changed.write_bytes(made_bytes)
        with pytest.raises(CertificateError, match=message):
            verify_family(changed, None)
    changed.write_text("{}")
    with pytest.raises(NotACertificateError):
        verify_family(changed, None)


def test_weights_of_a_certificate_must_be_those_of_the_traces(finished, tmp_path):
    """Consistent numbers from other weights pass without the run, and do not pass with it."""
    made, store = finished
    _, one = document(made, store)
    from ccfs.certificates.families import certify_family

    claim = one.claim
    other = certify_family(
        claim.held, np.zeros((TRIALS, 1)), claim.energies, name="bias", box=claim.box, ceiling=claim.ceiling,
        cells=claim.cells, delta=claim.delta, family=claim.family, sampling="law",
    )  # fmt: skip
    forged = one.model_copy(update={"claim": type(claim).model_validate_json(json.dumps(other.to_entries()))})
    changed = tmp_path / "forged.json"
    changed.write_bytes(forged.to_bytes())
    verify_family(changed, None)
    with pytest.raises(CertificateError, match="is not what the traces of"):
        verify_family(changed, store)


def test_audit_derives_the_certificates_again(finished):
    _, store = finished
    assert audit(store, replay=0).faults == ()
    path = store.path("families/steer/one/safe/bias.json")
    before = path.read_bytes()
    other = store.path("families/steer/one/safe/gain.json").read_bytes()
    stray = store.path("families/steer/one/safe/more.json")
    try:
        path.write_bytes(other)
        write_manifest(store, store.protocol())
        assert "families/steer/one/safe/bias.json: is not what the traces give." in audit(store, replay=0).faults
        path.write_bytes(before)
        stray.write_bytes(before)
        write_manifest(store, store.protocol())
        assert "families/steer/one/safe/more.json: is not in the protocol's plan." in audit(store, replay=0).faults
        stray.unlink()
        path.unlink()
        with pytest.raises(RunError, match=r"is missing\. Run `ccfs certify` first"):
            stored_families(store, store.protocol())
    finally:
        stray.unlink(missing_ok=True)
        path.write_bytes(before)
        write_manifest(store, store.protocol())


def test_commands_print_families_and_exit_by_the_target(finished, tmp_path):
    _, store = finished
    told = call("families", store.root)
    assert told.exit_code == 0, told.output
    assert told.output.count("stays at least") == 3
    found = json.loads(call("families", store.root, "--json").output)
    assert found["format"] == "ccfs/families/1"
    assert len(found["claims"]) == 3
    assert all(claim["kept"] >= 0.5 and claim["is_certified"] for claim in found["claims"])
    certificate = store.path(found["claims"][0]["file"])
    told = call("verify", certificate, "--run", store.root)
    assert told.exit_code == 0, told.output
    assert "the weights of each of 400 nominal trials" in told.output
    assert json.loads(call("verify", certificate, "--json").output)["holds"] is True
    page = render(store, most_steps=0)
    assert "Named disturbances" in page
    assert "every</th>" in page
    plain = run(protocol(tmp_path), tmp_path / "plain", serial_engine(), where="p")
    certify(plain)
    assert call("families", plain.root).exit_code == 2


def test_a_trial_that_crashed_counts_with_the_greatest_weight(tmp_path):
    """Trials that come close to the post crash, after their block was drawn, so the trace hides a block."""
    crashing = ('make = "corridor"', 'make = "toys:Fragile"')
    made = protocol(
        tmp_path,
        **families(trials=40, tables=FAMILIES.split('[[families]]\nname = "gain"')[0], a=crashing, b=OPEN["arm"]),
    )
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    certify(store)
    claim = document(made, store)[1].claim
    outcomes = [row.outcome for batch in RunReader(store, made).batches(made.arms[0], None)
                for row in RunReader(store, made).trajectories(batch)]  # fmt: skip
    crashed = outcomes.count("crashed")
    assert 0 < crashed < 40
    assert claim.unweighted == crashed
    assert claim.trials == 40


def test_features_of_the_users_own_need_trust_and_are_bound_to_their_code(tmp_path, monkeypatch):
    (tmp_path / "own_features.py").write_text(OWN)
    one = OPEN["arm"]
    monkeypatch.syspath_prepend(str(tmp_path))
    table = (
        '[[families]]\nname = "mine"\nfeatures = "own_features:make"\nbox = [0.5]\nmost = [[0.3]]\ncells = [3]\n'
        '[[families]]\nname = "gain"\nfeatures = "center"\nbox = [0.5]\nmost = [0.3]\ncells = [3]\n'
    )
    path = tmp_path / "protocol.toml"
    path.write_text(text(40, a=("[[attacks]]", f"{table}\n[[attacks]]"), b=one))
    made = load_protocol(path)
    preflight(made, where="p")
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    certify(store)
    mine, shipped = (document(made, store, family=i)[1] for i in (0, 1))
    assert mine.claim.scores == shipped.claim.scores
    assert mine.claim.lower == shipped.claim.lower
    assert "families.mine" in mine.provenance.parts
    assert "shift of the proposal centers by the features own_features:make with theta of at most 0.5" in mine.sentence
    stranger = Store(store.root)
    report = audit(stranger, replay=0)
    assert report.faults == ()
    assert "whether the weights of the disturbances mine follow from the traces." in report.unchecked
    assert any(part.startswith("families.mine: own_features:make()") for part in report.would_run)
    assert audit(Store(store.root, trust=Trust.CONFINED), replay=0).faults == ()
    (tmp_path / "own_features.py").write_text(OWN.replace("scale * past", "2.0 * scale * past"))
    assert any("are not those that the run was made with" in fault for fault in audit(store, replay=0).faults)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return lambda past: past.center", "must have finite features of shape"),
        ("return lambda past: np.full((1, 1), np.nan)", "must have finite features of shape"),
        ("return lambda past: np.random.random((1, 1))", "gave two answers about one step"),
        ("return 3", "must give a function from a `Past` to a matrix"),
    ],
)
def test_features_of_the_users_own_that_do_not_fit_are_refused(tmp_path, monkeypatch, body, message, finished):
    made, store = finished
    name = f"own_{abs(hash(body)) % 10**8}"
    (tmp_path / f"{name}.py").write_text(f"import numpy as np\n\n\ndef make():\n    {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = made.families[1].model_copy(update={"features": f"{name}:make", "most": ((0.3,),)})
    reader, arm = RunReader(store, made), made.arms[0]
    trace = reader.traces(reader.batches(arm, None)[0])[0]
    with pytest.raises(ProtocolError, match=message):
        disturbance(made, arm, spec, Widths(1, 1)).weight(trace, made.streams(arm, 0))
    assert Past._fields[0] == "t"
