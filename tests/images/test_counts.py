"""Counts are read back as they were written, and a stored premise must follow from its filter."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
from image_runs import network, run

from ccfs.certificates.images import CovarianceProof, LabelCounts
from ccfs.images import (
    Band,
    ConfidenceFilter,
    CountTable,
    NoFilter,
    ProjectedBand,
    RecordError,
    read_counts,
    write_counts,
)
from ccfs.images.counts import ProofRecord, model_digest

torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

PROOF = CovarianceProof(covariance_ratio=1.0, statement="for the test")


def test_band_record_keeps_its_proof(tmp_path):
    rule = ProjectedBand(Band(direction=np.eye(32)[3], offset=-0.5, inner=0.05, outer=0.3))
    table = run(tmp_path, rule=rule, indices=[0, 1])
    assert read_counts(tmp_path / "counts.parquet").proof == table.proof == rule.proof(0.3)
    assert table.key.proof.covariance_ratio == 1.0


def forged(folder, **changes):
    """Write counts whose stored key has other values, in the one form that the reader accepts."""
    stored = pyarrow.parquet.read_table(folder / "counts.parquet")
    head = {**stored.schema.metadata}
    document = json.loads(head[b"run"]) | changes
    head[b"run"] = json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    pyarrow.parquet.write_table(stored.replace_schema_metadata(head), folder / "forged.parquet")
    return folder / "forged.parquet"


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        (ProjectedBand(Band(direction=np.eye(32)[3], offset=-0.5, inner=0.05, outer=0.6)), {"covariance_ratio": 3.99}),
        (ProjectedBand(Band(direction=np.eye(32)[3], offset=-0.5, inner=0.05, outer=0.6)), {"ball": 9.0}),
        (NoFilter(), {"covariance_ratio": 0.999}),
        (ConfidenceFilter(0.5), {}),
    ],
)
def test_read_refuses_a_premise_that_the_filter_does_not_prove(tmp_path, rule, change):
    table = run(tmp_path, rule=rule, indices=[0])
    assert read_counts(tmp_path / "counts.parquet") == table
    claimed = ProofRecord.of(rule.proof(0.3) or PROOF).model_dump() | change
    with pytest.raises(RecordError, match="must carry"):
        read_counts(forged(tmp_path, proof=claimed))


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), "1.0"])
def test_read_refuses_a_premise_that_is_no_number(tmp_path, ratio):
    table = run(tmp_path, rule=NoFilter(), indices=[0])
    claimed = table.key.proof.model_dump() | {"covariance_ratio": ratio}
    with pytest.raises(RecordError, match=r"`proof\.covariance_ratio`|is no number of JSON"):
        read_counts(forged(tmp_path, proof=claimed))


def test_read_refuses_a_premise_of_a_filter_without_a_kind(tmp_path):
    run(tmp_path, rule=NoFilter(), indices=[0])
    with pytest.raises(RecordError, match="kind of their filter"):
        read_counts(forged(tmp_path, filter={"name": "mine"}))


@pytest.mark.parametrize("bands", [[], [{}], [1], None, [{"outer": "1e999"}], [{"outer": "wide"}]])
def test_read_refuses_a_band_without_its_limits(tmp_path, bands):
    rule = ProjectedBand(Band(direction=np.eye(32)[3], offset=-0.5, inner=0.05, outer=0.6))
    run(tmp_path, rule=rule, indices=[0])
    with pytest.raises(RecordError, match="must carry its bands"):
        read_counts(forged(tmp_path, filter={"kind": "projected-band", "bands": bands}))


def test_read_refuses_an_infinite_limit(tmp_path):
    rule = ProjectedBand(Band(direction=np.eye(32)[3], offset=-0.5, inner=0.05, outer=0.6))
    run(tmp_path, rule=rule, indices=[0])
    with pytest.raises(RecordError, match="can be read"):
        read_counts(forged(tmp_path, filter={"kind": "projected-band", "bands": [{"outer": float("inf")}]}))


def test_table_refuses_counts_that_do_not_add_up(tmp_path):
    table = run(tmp_path, indices=[0])
    row = table.rows[0]
    wrong = dataclasses.replace(row, estimation=LabelCounts(retained=(1, 2, 3), rejected=0))
    with pytest.raises(RecordError, match="100 proposals"):
        CountTable(key=table.key, rows=(wrong,))
    with pytest.raises(RecordError, match="twice"):
        CountTable(key=table.key, rows=(row, row))


def test_read_refuses_other_files(tmp_path):
    with pytest.raises(RecordError, match="missing"):
        read_counts(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(RecordError, match="not readable"):
        read_counts(tmp_path / "text.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"index": [1]}), tmp_path / "other.parquet")
    with pytest.raises(RecordError, match="no image counts"):
        read_counts(tmp_path / "other.parquet")


def test_read_refuses_another_format(tmp_path):
    table = run(tmp_path, indices=[0])
    path = tmp_path / "counts.parquet"
    stored = pyarrow.parquet.read_table(path)
    head = stored.schema.metadata
    assert head[b"format"] == json.loads(head[b"run"])["format"].encode() == b"ccfs/image-counts/2"
    first_edition = {b"ccfs.images": b'{"format": 1, "arms": ["none"]}'}
    for metadata, said in (
        (head | {b"format": b"ccfs/image-counts/9"}, "'ccfs/image-counts/9'; this release reads 'ccfs/image-counts/2'"),
        (head | {b"run": head[b"run"].replace(b"counts/2", b"counts/9")}, "has the format 'ccfs/image-counts/9'"),
        (head | {b"run": head[b"run"] + b" "}, "was changed after it was written"),
        ({b"format": head[b"format"]}, "must be a JSON document"),
        (first_edition, "has no `format`; this release reads 'ccfs/image-counts/2', and no file of the first edition"),
    ):
        pyarrow.parquet.write_table(stored.replace_schema_metadata(metadata), path)
        with pytest.raises(RecordError, match=said):
            read_counts(path)
    write_counts(path, table)
    assert read_counts(path) == table


def test_model_digest_sees_every_weight():
    model = network()
    before = model_digest(model)
    assert model_digest(network()) == before
    with torch.no_grad():
        model[1].bias[2] += 1e-6
    assert model_digest(model) != before
