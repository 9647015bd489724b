"""Certificates follow from counts, verify without the run, and every change of a run is a fault of its audit."""

from __future__ import annotations

import json
from dataclasses import replace

import keys
import pytest
import torch
from image_runs import images, network, run
from image_toys import Halfspace, counted, made_up
from typer.testing import CliRunner

from ccfs.certificates.images import Rule, verdict
from ccfs.cli.main import app
from ccfs.files.digests import canonical_json, text_digest
from ccfs.files.documents import DocumentError
from ccfs.images import audit as audit_module
from ccfs.images.attack import SearchPlan
from ccfs.images.audit import audit_images
from ccfs.images.certificate import ImageCertificate, certify_run, derived, is_image_certificate, verify_image
from ccfs.images.counts import CountTable, RecordError, counts_bytes
from ccfs.images.endpoints import AttackPlan, attack_cohort
from ccfs.images.filters import ConfidenceFilter
from ccfs.images.folder import Asked, ImageRun, image_store, read_table
from ccfs.images.run import Live, merge_runs
from ccfs.report.images import write_report
from ccfs.runs.manifest import write_manifest
from ccfs.runs.store import RunError

torch.set_num_threads(1)


@pytest.fixture
def certified(tmp_path):
    counted(tmp_path)
    certify_run(tmp_path, delta=0.001)
    return tmp_path


def resealed(path, change):
    """Change a certificate and give it the digest that fits."""
    content = json.loads(path.read_text())
    change(content)
    del content["digest"]
    content["digest"] = text_digest(canonical_json(content))
    path.write_text(canonical_json(content) + "\n")


def test_certificate_has_the_radii_of_the_rule(certified):
    found = verify_image(certified / "certificates" / "simultaneous.json", certified)
    _, table = read_table(certified)
    for claim, row in zip(found.claims, table.variant("confidence>0.9"), strict=True):
        expected = verdict(Rule.SIMULTANEOUS, row.selection, row.estimation, sigma=table.key.sigma, delta=0.001)
        assert (claim.radius, claim.selected) == (expected.radius, expected.selected)
    assert "12 images of made-up" in found.sentence
    assert is_image_certificate(certified / "certificates" / "simultaneous.json")
    assert not is_image_certificate(certified / "run.json")
    names = sorted(path.stem for path in (certified / "certificates").iterdir())
    assert names == ["complement", "explicit", "simultaneous", "single-batch", "split", "unfiltered"]


def test_diagnostic_is_never_a_certificate(certified):
    from ccfs.images.folder import read_table

    with pytest.raises(ValueError, match="is no certificate"):
        derived(read_table(certified)[1], "confidence>0.9", Rule.SUBSTITUTED, delta=0.001)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["claims"][3].update(radius=c["claims"][3]["radius"] * 1.0001), "does not follow"),
        (lambda c: c["claims"][3].update(selected=1), "does not follow"),
        (lambda c: c.update(delta=0.01), "does not follow"),
        (lambda c: c.update(rule="conditional substitution (UNSOUND diagnostic)"), "unknown"),
        (lambda c: c.update(variant="other"), "unknown"),
        (lambda c: c["claims"][0]["estimation"].update({"9": 1}), "labels are 0 to 2"),
        (lambda c: c["claims"][0]["estimation"].update({"0": 1}), "proposals"),
        (lambda c: c["claims"].append(c["claims"][0]), "twice"),
    ],
)
def test_changed_certificate_does_not_verify_even_with_a_fitting_digest(certified, change, message):
    path = certified / "certificates" / "simultaneous.json"
    resealed(path, change)
    with pytest.raises((RecordError, DocumentError), match=message):
        verify_image(path, None)


def test_certificate_of_other_counts_does_not_verify_with_the_run(certified, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    run(other)
    certify_run(other, delta=0.001)
    path = other / "certificates" / "unfiltered.json"
    assert verify_image(path, other).claims
    with pytest.raises(RecordError, match="counts are not those"):
        verify_image(path, certified)


def test_certificate_without_its_digest_is_refused(certified):
    path = certified / "certificates" / "simultaneous.json"
    path.write_bytes(path.read_bytes().replace(b'"digest":"', b'"digest":"0', 1))
    with pytest.raises(DocumentError):
        verify_image(path, None)


def test_certifying_twice_changes_nothing(certified):
    before = {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()}
    certify_run(certified, delta=0.001)
    assert {path: path.read_bytes() for path in certified.rglob("*") if path.is_file()} == before


def test_audit_of_a_run_with_report_and_attack_is_clean(certified):
    write_report(certified, delta=0.001, rows=5, images=made_up())
    search = SearchPlan(restarts=1, steps=2, proposals=16, screen=50, threshold=0.9)
    plan = AttackPlan(search=search, variant="confidence>0.9", members=2, confirmation=100, delta=0.001, seed=0)
    from ccfs.images.folder import read_table

    table = read_table(certified)[1]

    def stop(_done):
        raise KeyboardInterrupt

    common = (Halfspace(), made_up(), table, [3, 4], plan)
    with pytest.raises(KeyboardInterrupt):
        attack_cohort(*common, batch_size=100, folder=certified / "attack", progress=stop)
    assert audit_images(certified).faults == ()
    attack_cohort(*common, batch_size=100, folder=certified / "attack")
    report = audit_images(certified)
    assert report.faults == ()
    assert any("a Python program made the run" in what for what in report.unchecked)
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 3)).eval()
    with pytest.raises(RecordError, match="`model` is not the network of the counts"):
        attack_cohort(other, made_up(), table, [3], plan, batch_size=100, folder=certified / "attack")
    with pytest.raises(RecordError, match="`images` are not those"):
        attack_cohort(Halfspace(), images(), table, [3], plan, batch_size=100, folder=certified / "attack")


def test_run_of_a_python_program_is_counted_again_with_its_objects(certified):
    live = Live(model=Halfspace(), images=made_up(), rule=ConfidenceFilter(0.0, 0.9))
    report = audit_images(certified, replay=3, live=live)
    assert (report.faults, report.unchecked, report.replayed) == ((), (), 3)
    other = audit_images(certified, live=replace(live, rule=ConfidenceFilter(0.0, 0.8)))
    assert any("has another `filter` than the run" in fault for fault in other.faults)
    # Counts that noise did not give, with a manifest and certificates that fit them.
    run, table = read_table(certified)
    first = table.rows[0]
    kept = first.estimation.retained
    forged = replace(first.estimation, retained=(kept[0] - 1, kept[1] + 1, *kept[2:]))
    rows = (replace(first, estimation=forged), *table.rows[1:])
    (certified / "counts.parquet").write_bytes(counts_bytes(CountTable(key=table.key, rows=rows)))
    for path in (certified / "certificates").iterdir():
        path.unlink()
    write_manifest(image_store(certified), run)
    assert audit_images(certified, replay=0).is_clean
    assert any("image 0: other counts" in fault for fault in audit_images(certified, replay=None, live=live).faults)


@pytest.mark.parametrize("name", ["run.json", "counts.parquet", "provenance.json", "certificates/split.json"])
def test_audit_names_every_changed_missing_and_added_file(certified, name):
    path = certified / name
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b" \n")
    assert any(name in fault for fault in audit_images(certified).faults)
    path.unlink()
    assert any(f"{name}: is missing" in fault for fault in audit_images(certified).faults)
    path.write_bytes(content)
    assert audit_images(certified).is_clean
    (certified / "more.txt").write_text("more")
    assert any("more.txt" in fault for fault in audit_images(certified).faults)


def test_audit_finds_a_forged_certificate_with_a_fitting_manifest(certified):
    from ccfs.images.folder import image_store, read_run
    from ccfs.runs.manifest import write_manifest

    path = certified / "certificates" / "explicit.json"
    resealed(path, lambda c: c["claims"][3].update(radius=5.0))
    write_manifest(image_store(certified), read_run(certified))
    (fault,) = audit_images(certified).faults
    assert "explicit.json: is not what the counts give" in fault


class HereChild:
    """Counts in this process, where a test can change what is loaded."""

    def __init__(self, store):
        self.store = store

    def call(self, target, *, indices, installed):
        from ccfs.images.audit import recount

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CCFS_DATA", "restored when the block ends")
            return json.loads(json.dumps(recount(self.store, indices, installed)))

    def close(self):
        pass


def test_audit_finds_counts_that_the_noise_does_not_give(tmp_path, monkeypatch):
    """The network is loaded from the description. Here the description is forged to count with another network."""
    asked = Asked(dataset="x", model="m:f", sigma=0.3)
    run(tmp_path, asked=asked)
    chosen = {"network": network()}
    monkeypatch.setattr(Asked, "model_of", lambda self: chosen["network"])
    monkeypatch.setattr(Asked, "image_set", lambda self: images())
    monkeypatch.setattr(Asked, "rule", lambda self: __import__("ccfs.images").images.ConfidenceFilter(0.0, 0.5))
    monkeypatch.setattr(Asked, "code", lambda self: {})
    monkeypatch.setattr(Asked, "files", lambda self: {})
    monkeypatch.setattr("ccfs.images.audit.Child", HereChild)
    refused = audit_images(tmp_path)
    assert refused.replayed == 0
    assert refused.would_run == ("model: m:f", "dataset: x")
    report = audit_images(tmp_path, trust=True, replay=3)
    assert (report.faults, report.replayed) == ((), 3)
    from ccfs.images import run as run_module

    run_module._loaded.cache_clear()
    chosen["network"] = network(1)
    (fault,) = audit_images(tmp_path, trust=True).faults
    assert "another `model_sha256` than the run" in fault
    run_module._loaded.cache_clear()
    chosen["network"] = network()
    monkeypatch.setattr(run_module, "model_digest", lambda model, declared=None: read_key(tmp_path).model_sha256)
    chosen["network"] = network(1)
    faults = audit_images(tmp_path, trust=True, replay=None).faults
    assert faults
    assert all("other counts than those that its noise gives" in fault for fault in faults)
    run_module._loaded.cache_clear()


def read_key(folder):
    return ImageRun.from_bytes((folder / "run.json").read_bytes(), where="run.json").key


def test_image_run_is_signed_and_verified_like_any_other(certified, tmp_path_factory):
    folder = keys.write_keys(tmp_path_factory.mktemp("keys"))
    certificate = certified / "certificates" / "split.json"

    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    signed = call("sign", certified, "--key", folder / "ada")
    assert signed.exit_code == 0, signed.output
    words = ("verify", certificate, "--run", certified, "--signer", folder / "ada.pub")
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert f"the signature of ada@example.org (key {keys.FINGERPRINT})" in done.output
    assert "this certificate is certificates/split.json among them" in done.output
    assert any(keys.FINGERPRINT in note for note in audit_images(certified, replay=0).notes)
    assert call(*words[:-1], folder / "bob.pub").exit_code == 1
    write_report(certified, delta=0.001, rows=5, images=made_up())  # a later page changes the manifest
    assert "was changed after it was signed" in call(*words).stderr
    assert not audit_images(certified, replay=0).is_clean


def test_audit_checks_the_expected_hash(certified):
    assert audit_images(certified, expected=read_key(certified).hash).is_clean
    assert not audit_images(certified, expected="0" * 64).is_clean


def test_audit_module_knows_every_folder_that_a_run_may_have():
    assert audit_module._FOLDERS == ("certificates/", "attack/", "printed-", "exports/")


def test_runs_of_two_machines_merge_to_the_run_of_one(tmp_path):
    run(tmp_path / "a", indices=range(5))
    run(tmp_path / "b", indices=range(5, 23))
    run(tmp_path / "whole")
    merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    for name in ("counts.parquet", "run.json", "provenance.json", "manifest.json"):
        assert (tmp_path / "merged" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    run(tmp_path / "c", indices=range(5), seed=9)
    with pytest.raises(RunError, match="seed differ"):
        merge_runs([tmp_path / "a", tmp_path / "c"], tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()


def test_certificate_is_read_back(certified):
    path = certified / "certificates" / "split.json"
    assert ImageCertificate.from_bytes(path.read_bytes(), where="x").to_bytes() == path.read_bytes()
