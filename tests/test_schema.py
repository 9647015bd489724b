"""Every document: one JSON object of a named kind and version, its schema complete, shipped and true of real files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import keys
import pytest
from small_training import noise_checkpoint
from toy_protocol import protocol
from typer.testing import CliRunner

from ccfs.certificates.documents import DocumentError, read_document, refuse_other_format
from ccfs.certificates.images import Rule
from ccfs.certificates.means import certify_totals
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.stratified import certify_strata
from ccfs.cli.main import app
from ccfs.files.documents import ChangedDocumentError, Document
from ccfs.images.certificate import derived
from ccfs.images.counts import CountTable, read_counts
from ccfs.images.endpoints import read_attack
from ccfs.images.folder import Asked, ImageRun
from ccfs.protocol.model import ProtocolError, parse_protocol
from ccfs.results.certificate import NotACertificateError, RunCertificate
from ccfs.results.certify import certify
from ccfs.runs.batches import Verdicts
from ccfs.runs.executors import serial_engine
from ccfs.runs.manifest import Manifest
from ccfs.runs.registration import Begun, register, registered
from ccfs.runs.run import run
from ccfs.runs.signature import SignedRun
from ccfs.runs.store import RunError, Store
from ccfs.schema import DOCUMENTS, SHIPPED, model_of, schema, schema_text

TIME = "2020-01-02T03:04:05Z"
STUDY = Path(__file__).resolve().parents[1] / "experiments" / "images" / "results" / "mnist-small-sigma1"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents")
    table = '[[families]]\nname = "bias"\nfeatures = "constant"\nbox = [0.01]\ncells = [1]\n\n[[attacks]]'
    made = protocol(folder, trials=8, families=("[[attacks]]", table))
    store = run(made, folder / "run", serial_engine(), where="p")
    certify(store)
    return store


def printed(*arguments):
    return json.loads(CliRunner().invoke(app, [str(part) for part in arguments]).stdout)


def _image_certificate():
    table = read_counts(STUDY / "band-unfiltered" / "counts.parquet")
    return derived(CountTable(key=table.key, rows=table.rows[:2]), "none", Rule.UNFILTERED, delta=0.001)


def _tuning(folder):
    sweep = '[tune]\ntrials = 2\nseeds = { first = 5000, count = 2 }\n[tune.sweep]\n"program.clip_center" = [true]\n'
    (folder / "tune.toml").write_text((folder / "protocol.toml").read_text() + sweep)
    return printed("tune", folder / "tune.toml", "-o", folder / "tuned", "--workers", "1", "--json")


def _strata():
    block = ProposalSchedule(count=1, sigma=0.2)
    counts = ([2] * 40, 2, [6] * 30 + [1] * 10, 6)
    return certify_strata(*counts, delta=0.05, family=1, target=0.5, schedule=block, sampling="law")


def _log(folder):
    (folder / "log.tsv").write_text(
        "idx\tlabel\tpredict\tradius\ttop\tretained\tdrawn\n4\t1\t1\t0.1\t990\t1000\t1000\n"
    )
    return folder / "log.tsv"


def _totals():
    totals = [[0.0, 1.0]] * 20
    return certify_totals(totals, kind="return", lowest=-1.0, highest=2.0, delta=0.1, family=1, sampling="cohort")


@pytest.fixture(scope="module")
def documents(finished, tmp_path_factory):
    """One real document of each kind."""
    root = finished.root
    (certificate,) = sorted(root.glob("certificates/steer/one/*.json"))
    record = register(finished.protocol(), keys.ada(tmp_path_factory.mktemp("keys"))[0], time=TIME)
    (journal, *_) = sorted(root.glob("batches/**/*.json"))
    folder = tmp_path_factory.mktemp("images")
    key = read_counts(STUDY / "band" / "counts.parquet").key
    asked = Asked(dataset="mnist", network="mnist-small-sigma1", sigma=1.0)
    (folder / "run.json").write_bytes(ImageRun(key=key, images=((0, 9),), asked=asked).to_bytes())
    found = {name: json.loads((root / f"{name}.json").read_bytes()) for name in ("protocol", "provenance", "manifest")}
    found |= {
        "certificate": json.loads(certificate.read_bytes()),
        "trajectory": json.loads(RunCertificate.from_bytes(certificate.read_bytes(), where="").trajectory.to_json()),
        "batch": json.loads(journal.read_bytes()),
        "verdicts": json.loads(Verdicts(trials=(0, 1), events={"safe": (True, False)}).to_bytes()),
        "family-certificate": json.loads((root / "families/steer/one/safe/bias.json").read_bytes()),
        "families": printed("families", root, "--json"),
        "scores": printed("score", root, "--json"),
        "signed-run": json.loads(SignedRun(protocol="0" * 64, files=3, key=keys.ADA_PUBLIC).to_bytes()),
        "registration": json.loads(registered(record, "r").record.to_bytes()),
        "begun": json.loads(Begun(protocol="0" * 64, registration="1" * 64, time=TIME).to_bytes()),
        "strata": json.loads(_strata().to_json()),
        "totals": json.loads(_totals().to_json()),
        "run-totals": printed("costs", root, "--json"),
        "table": printed("table", root, "--json"),
        "audit": printed("audit", root, "--replay", "1", "--json"),
        "verification": printed("verify", certificate, "--run", root, "--json"),
        "plan": printed("plan", root.parent / "protocol.toml", "--rate", "0.99", "--trials", "10,100", "--json"),
        "tuning": _tuning(root.parent),
        "comparison": printed("compare", root, "--delta", "0.1", "--json"),
        "run-summary": printed("show", root, "--json"),
        "run-list": printed("runs", root.parent, "--json"),
        "doctor": printed("doctor", "--quick", "--json"),
        "image-run": json.loads((folder / "run.json").read_text()),
        "image-counts": json.loads(read_counts(STUDY / "band" / "counts.parquet").key.to_bytes()),
        "image-certificate": json.loads(_image_certificate().to_bytes()),
        "image-endpoints": json.loads(read_attack(STUDY / "attack" / "attack" / "endpoints.jsonl")[0].to_bytes()),
        "image-assessment": printed("image", "audit", _log(folder), "--sigma", "0.25", "--json"),
        "study-list": printed("study", "list", "--json"),
        "training-status": printed("train", "status", noise_checkpoint(folder).parents[1], "--json"),
    }
    return found


# The version of each document that is not in its first one.
VERSIONS = {
    "certificate": 2, "image-counts": 2, "image-run": 2, "plan": 2, "provenance": 2, "table": 3, "trajectory": 2,
}  # fmt: skip


def format_of(kind):
    return f"ccfs/{kind}/{VERSIONS.get(kind, 1)}"


def faults(value, part, whole, at="$"):
    """Yield where a value breaks a schema: a second reading, by the keywords of JSON Schema and not by pydantic."""
    if "$ref" in part:
        yield from faults(value, whole["$defs"][part["$ref"].removeprefix("#/$defs/")], whole, at)
    for key in ("anyOf", "oneOf"):
        fits = [not list(faults(value, one, whole, at)) for one in part.get(key, ())]
        if fits and not (sum(fits) == 1 if key == "oneOf" else any(fits)):
            yield f"{at}: fits {sum(fits)} of {key}"
    kinds = {
        "object": isinstance(value, dict),
        "array": isinstance(value, list),
        "string": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, (int, float)) and not isinstance(value, bool),
        "null": value is None,
    }
    if "type" in part and not kinds[part["type"]]:
        yield f"{at}: is no {part['type']}"
        return
    if value != part.get("const", value) or value not in part.get("enum", [value]):
        yield f"{at}: is not the constant"
    if kinds["number"]:
        inside = (
            value >= part.get("minimum", value)
            and value <= part.get("maximum", value)
            and ("exclusiveMinimum" not in part or value > part["exclusiveMinimum"])
            and ("exclusiveMaximum" not in part or value < part["exclusiveMaximum"])
        )
        if not inside:
            yield f"{at}: is out of range"
    if kinds["string"] and not re.search(part.get("pattern", ""), value):
        yield f"{at}: does not match"
    if kinds["array"]:
        if len(value) < part.get("minItems", 0):
            yield f"{at}: is too short"
        for i, item in enumerate(value):
            yield from faults(item, part.get("items", {}), whole, f"{at}.{i}")
    if kinds["object"]:
        known, more = part.get("properties", {}), part.get("additionalProperties", True)
        yield from (f"{at}: lacks {key}" for key in part.get("required", ()) if key not in value)
        for key, item in value.items():
            if key in known or isinstance(more, dict):
                yield from faults(item, known.get(key, more), whole, f"{at}.{key}")
            elif more is False:
                yield f"{at}: has {key}"


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_schema_describes_every_key_of_every_table(kind):
    whole = schema(kind)
    missing, pending = [], [(kind, whole)]
    while pending:
        at, part = pending.pop()
        if isinstance(part, dict):
            if isinstance(part.get("properties"), dict):
                missing += [at] if not part.get("description") else []
                missing += [f"{at}.{key}" for key, entry in part["properties"].items() if not entry.get("description")]
            pending += [(f"{at}.{key}", inner) for key, inner in part.items()]
        elif isinstance(part, list):
            pending += [(f"{at}.{i}", inner) for i, inner in enumerate(part)]
    assert missing == []
    assert whole["properties"]["format"]["const"] == format_of(kind)
    left_out = {"divergences"} if kind in ("trajectory", "strata") else set()  # earlier releases did not write it
    assert kind == "protocol" or set(whole["required"]) == set(whole["properties"]) - left_out - model_of(kind).omitted


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_shipped_schema_is_what_the_model_gives(kind):
    assert (SHIPPED / f"{kind}.json").read_text(encoding="utf-8") == schema_text(kind), "run `make tables`"
    assert {path.stem for path in SHIPPED.glob("*.json")} == set(DOCUMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_real_document_fits_the_shipped_schema_and_a_changed_one_does_not(documents, kind):
    whole = json.loads((SHIPPED / f"{kind}.json").read_text(encoding="utf-8"))
    document = documents[kind]
    assert list(faults(document, whole, whole)) == []
    assert isinstance(document, dict)
    assert document["format"] == format_of(kind)
    model_of(kind).model_validate_json(json.dumps(document))
    for broken in ({**document, "more": 1}, {**document, "format": "ccfs/other/1"}, [document]):
        assert list(faults(broken, whole, whole)) != []
    for key in whole.get("required", ()):
        assert list(faults({name: value for name, value in document.items() if name != key}, whole, whole)) != []


def test_every_json_file_of_a_run_is_a_document(finished):
    names = [name for name in finished.files() if name.endswith(".json")]
    formats = {json.loads(finished.read(name))["format"] for name in names}
    kinds = ("protocol", "provenance", "manifest", "batch", "certificate", "family-certificate")
    assert formats - {format_of("scores")} == {format_of(kind) for kind in kinds}  # another test keeps scores


def test_certificate_is_nested_and_no_text_inside_holds_json(documents):
    assert isinstance(documents["certificate"]["claim"], dict)
    pending = [documents["certificate"]]
    while pending:
        value = pending.pop()
        assert not (isinstance(value, str) and value.lstrip().startswith(("{", "[")))
        pending += list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ("ccfs/manifest/1", "has the format 'ccfs/manifest/1'; this release reads 'ccfs/certificate/2'"),
        ("ccfs/certificate/1", "has the format 'ccfs/certificate/1'; this release reads 'ccfs/certificate/2'"),
        ("ccfs-run-certificate-1", "'ccfs-run-certificate-1' of the first edition; .* Run the protocol again"),
        (None, "has no `format`; this release reads 'ccfs/certificate/2', and no file of the first edition"),
        (1, "has the format 1; this release reads"),
    ],
)
def test_reader_refuses_another_kind_or_version_and_names_both(documents, found, words):
    with pytest.raises(DocumentError, match=words):
        refuse_other_format(found, "ccfs/certificate/2")
    content = json.dumps({**documents["certificate"], "format": found}).encode()
    with pytest.raises(NotACertificateError, match=words):
        RunCertificate.from_bytes(content, where="c.json")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["protocol", "provenance", "manifest", "batch"])
@pytest.mark.parametrize("found", ["ccfs/verification/7", "ccfs-run-1", None])
def test_run_with_a_file_of_another_kind_or_version_is_refused(finished, tmp_path, kind, found):
    copy = Store(tmp_path / "run")
    for name in finished.files():
        copy.write(name, finished.read(name))
    name = next(name for name in copy.files() if name == f"{kind}.json" or (kind == "batch" and "batches/" in name))
    content = copy.read_json(name)
    copy.write_json(name, {**content, "format": found})
    if kind == "protocol":
        with pytest.raises(RunError, match=r"this release reads 'ccfs/protocol/1'"):
            copy.protocol()
    result = CliRunner().invoke(app, ["audit", str(copy.root), "--replay", "0"])
    assert result.exit_code == 1
    with pytest.raises((RunError, ValueError)):
        certify(copy)


def test_protocol_of_the_first_edition_is_refused_in_one_sentence(documents):
    with pytest.raises(ProtocolError, match=r"^p: has the format 'ccfs-protocol-1' of the first edition; .* again\.$"):
        parse_protocol({**documents["protocol"], "format": "ccfs-protocol-1"}, where="p")


def test_reader_refuses_what_is_no_object_repeats_a_key_or_was_reordered(finished):
    content = finished.read("manifest.json")
    for broken, words in (
        (b"[]", "must be a JSON object"),
        (b"{", "must be a JSON document"),
        (b"\xff", "must be a JSON document"),
        (b'{"a":' * 5000, "must be a JSON document"),
        (content[:-2] + b',"digest":"' + b"0" * 64 + b'"}\n', "repeats a key"),
    ):
        with pytest.raises(DocumentError, match=words):
            Manifest.from_bytes(broken, where="m")
    with pytest.raises(ChangedDocumentError, match=r"^m: was changed after it was written\.$"):
        Manifest.from_bytes(json.dumps(json.loads(content)).encode(), where="m")
    with pytest.raises(DocumentError, match=r"^m: is no ccfs/manifest/1: `digest` must be written as a name or digest"):
        Manifest.from_bytes(re.sub(rb'"digest":"\w+"', b'"digest":"x"', content), where="m")


def test_documents_are_read_back_as_they_were_written(documents):
    for kind in DOCUMENTS:
        model = model_of(kind)
        if issubclass(model, Document) and kind != "protocol":
            made = model.model_validate_json(json.dumps(documents[kind]))
            assert model.from_bytes(made.to_bytes(), where=kind) == made
            assert read_document(made.to_bytes(), model.format_name())


@pytest.mark.slow
def test_schema_command_prints_lists_and_refuses():
    runner = CliRunner()
    assert runner.invoke(app, ["schema"]).stdout.split() == list(DOCUMENTS)
    for kind in DOCUMENTS:
        assert runner.invoke(app, ["schema", kind]).stdout == schema_text(kind)
        assert "| `format` |" in runner.invoke(app, ["schema", kind, "--markdown"]).stdout
    refused = runner.invoke(app, ["schema", "nonsense"])
    assert (refused.exit_code, "must be one of protocol, certificate" in refused.stderr) == (2, True)
