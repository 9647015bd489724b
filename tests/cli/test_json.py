"""Every command that reads results can print them as one document for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from small_training import noise_checkpoint
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.schema import model_of

# These write a file, run something or print a text that has a form of its own. A new command is listed here, or has
# the option.
WRITES = {
    "schema": "prints a JSON Schema",
    "run": "runs trials",
    "demo": "runs trials",
    "sign": "writes a signature",
    "register": "writes a record",
    "report": "writes a page",
    "export": "writes a dataset",
    "retrace": "writes traces",
    "cite": "prints BibTeX",
    "study run": "runs trials",
    "image install": "fetches data",
    "image certify": "counts images",
    "image merge": "writes counts",
    "image fit-band": "writes a band",
    "image attack": "searches, and writes its endpoints",
    "image report": "writes a page",
    "image export": "writes a table",
    "train export": "writes an agent",
}


def commands(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    if hasattr(group, "commands"):  # typer may bring a copy of click
        for name, inner in group.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield " ".join(path), group


def test_every_command_that_reads_has_the_option():
    found = dict(commands(typer.main.get_command(app)))
    assert WRITES.keys() <= found.keys(), "a command of this list is gone"
    having = {name for name, one in found.items() if any("--json" in part.opts for part in one.params)}
    assert sorted(found.keys() - WRITES.keys() - having) == []
    assert {"table", "verify", "audit", "image audit", "train status", "study list"} <= having


def document(kind: str, *arguments: object, code: int = 0) -> dict[str, object]:
    done = CliRunner().invoke(app, [str(part) for part in (*arguments, "--json")])
    assert done.exit_code == code, done.output
    found = json.loads(done.stdout)
    assert str(found["format"]).startswith(f"ccfs/{kind}/")
    assert model_of(kind).from_bytes(done.stdout.encode(), where="stdout").to_bytes() == done.stdout.encode()
    return found


def test_study_list_has_every_study():
    names = [one["name"] for one in document("study-list", "study", "list")["studies"]]
    assert names[0] == "goal2"
    assert {"goal2-ladder", "goal2-navigator"} <= set(names)


@pytest.mark.slow
def test_train_status_names_what_cannot_be_read(tmp_path: Path):
    checkpoint = noise_checkpoint(tmp_path)
    broken = checkpoint.parents[1] / "broken"
    broken.mkdir()
    (broken / "checkpoint.npz").write_bytes(b"garbage")
    found = document("training-status", "train", "status", checkpoint.parents[1])
    assert [one["steps"] for one in found["runs"]] == [200]
    assert len(found["unread"]) == 1


@pytest.mark.parametrize(("radius", "code"), [("0.1", 0), ("0.9", 1)])
def test_image_audit_of_a_log_is_a_document(tmp_path: Path, radius: str, code: int):
    log = tmp_path / "log.tsv"
    log.write_text(f"idx\tlabel\tpredict\tradius\ttop\tretained\tdrawn\n4\t1\t1\t{radius}\t990\t1000\t1000\n")
    found = document("image-assessment", "image", "audit", log, "--sigma", "0.25", code=code)
    (image,) = found["images"]
    assert (image["image"], image["printed"], image["is_overstated"]) == (4, float(radius), bool(code))
    assert 0.1 < image["worth"] < 0.9
