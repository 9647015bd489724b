"""A run survives interruption and a second writer, refuses to mix runs, and is the same for any division of work."""

from __future__ import annotations

import pytest
import torch
from image_runs import images, network, run

from ccfs.images import ConfidenceFilter, NoFilter, RecordError, read_counts
from ccfs.images import run as run_module
from ccfs.images.counts import Span
from ccfs.images.folder import image_store, read_run
from ccfs.images.run import plan
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.store import RunError

torch.set_num_threads(1)  # two threads beside a busy core are far slower than one


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_run_counts_are_stored_and_read_back(tmp_path):
    table = run(tmp_path)
    assert read_counts(tmp_path / "counts.parquet") == table
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"counts.parquet", "run.json", "provenance.json", "manifest.json", "lock"}
    assert manifest_faults(image_store(tmp_path)) == []
    assert [row.index for row in table.variant("none")] == list(range(23))
    assert [row.label for row in table.variant("none")] == images().labels.tolist()
    assert all(row.estimation.rejected == 0 for row in table.variant("none"))
    assert read_run(tmp_path).indices == tuple(range(23))


def test_run_resumes_after_an_interruption_with_the_same_bytes(tmp_path):
    told = []

    def stop(done):
        told.append(done)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", progress=stop)
    assert len(list((tmp_path / "a").glob("parts/*.parquet"))) == 2
    assert not (tmp_path / "a" / "manifest.json").exists()
    resumed = []
    again = run(tmp_path / "a", progress=resumed.append, batch_size=7)
    assert resumed == [20, 3]
    assert again == run(tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")
    before = content(tmp_path / "a")
    run(tmp_path / "a")
    assert content(tmp_path / "a") == before


@pytest.mark.parametrize(("span", "shard", "most"), [(7, 7, 1), (33, 60, 3), (1000, 100_000, 50)])
def test_run_is_the_same_for_any_division_into_shards(tmp_path, monkeypatch, span, shard, most):
    expected = run(tmp_path / "a", indices=range(6))
    monkeypatch.setattr(run_module, "_SPAN", span)
    monkeypatch.setattr(run_module, "_SHARD", shard)
    monkeypatch.setattr(run_module, "_IMAGES", most)
    assert run(tmp_path / "b", indices=range(6)) == expected
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_run_resumes_under_another_division_of_work(tmp_path, monkeypatch):
    def stop(done):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "_SHARD", 60)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", indices=range(4), progress=stop)
    monkeypatch.undo()
    run(tmp_path / "a", indices=range(4))
    run(tmp_path / "b", indices=range(4))
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_plan_bounds_proposals_and_images():
    spans = [Span(index=i, purpose="estimation", start=0, stop=n) for i, n in enumerate([10_000] * 5 + [10] * 25)]
    shards = list(plan(spans))
    assert [span for shard in shards for span in shard.spans] == spans
    assert all(sum(span.trials for span in shard.spans) <= 20_000 and len(shard.trials) <= 10 for shard in shards)
    assert len({shard.name for shard in shards}) == len(shards) == 5


def test_part_without_a_journal_does_not_count(tmp_path):
    """A crash between the two files of a shard leaves such a part. Its bytes may be anything."""

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "a", progress=stop)
    (journal,) = (tmp_path / "a" / "batches").iterdir()
    (part,) = (tmp_path / "a" / "parts").iterdir()
    journal.unlink()
    part.write_bytes(b"anything")
    run(tmp_path / "a")
    run(tmp_path / "b")
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_changed_part_is_refused(tmp_path):
    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, progress=stop)
    (part,) = (tmp_path / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises((RunError, RecordError), match="image-000000"):
        run(tmp_path)


def test_run_grows_by_indices_and_counts_each_image_alone(tmp_path):
    some = run(tmp_path, indices=[7, 2])
    assert [row.index for row in some.variant("none")] == [2, 7]
    assert set(some.rows) <= set(run(tmp_path).rows)
    assert read_run(tmp_path).indices == tuple(range(23))
    assert manifest_faults(image_store(tmp_path)) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": 2}, "seed"),
        ({"sigma": 0.31}, "sigma"),
        ({"n": 101}, "estimation_trials"),
        ({"model": network(1)}, "model_sha256"),
        ({"rule": ConfidenceFilter(0.0, 0.6)}, "filter"),
        ({"images": images(22)}, "dataset_sha256"),
        ({"stream": "other"}, "stream"),
    ],
)
def test_run_refuses_a_folder_of_another_run(tmp_path, changes, named):
    run(tmp_path, indices=[0])
    before = content(tmp_path)
    with pytest.raises(RunError, match=named):
        run(tmp_path, indices=[0], **changes)
    assert content(tmp_path) == before


def test_run_refuses_other_code(tmp_path, monkeypatch):
    run(tmp_path, indices=[0])
    before = content(tmp_path)
    monkeypatch.setattr(run_module, "modules_digest", lambda root: "0" * 64)
    with pytest.raises(RunError, match="was begun with `code` ccfs"):
        run(tmp_path)
    assert content(tmp_path) == before


def test_run_refuses_a_folder_with_other_files(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RunError, match="holds other files"):
        run(tmp_path)
    assert content(tmp_path) == {"mine.txt": b"mine"}


def test_no_two_runs_share_noise(tmp_path):
    """Otherwise a pilot that chose a setting would share its noise with the run that is certified."""
    one = run(tmp_path / "a", rule=NoFilter(), indices=[0, 1])
    for place, change in enumerate(({"stream": "other"}, {"n": 101}, {"sigma": 0.30000001})):
        other = run(tmp_path / str(place), rule=NoFilter(), indices=[0, 1], **change)
        assert [row.selection for row in one.rows] != [row.selection for row in other.rows]


@pytest.mark.parametrize("indices", [[0, 0], [23], [-1]])
def test_run_refuses_indices(tmp_path, indices):
    with pytest.raises(ValueError, match=r"indices|index"):
        run(tmp_path, indices=indices)


def test_second_process_on_one_folder_is_refused_and_loses_nothing(tmp_path):
    store = image_store(tmp_path)
    with store.locked(), pytest.raises(RunError, match="another process is writing"):
        run(tmp_path)
    assert run(tmp_path).rows
