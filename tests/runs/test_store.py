from __future__ import annotations

import errno
import os

import pytest
from toy_protocol import contents, protocol

from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import RunError, Store


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """An uninterrupted serial run, the oracle of every other way to run."""
    folder = tmp_path_factory.mktemp("reference")
    made = protocol(folder)
    run(made, folder / "run", serial_engine(), where="protocol.toml")
    return made, contents(folder / "run")


@pytest.mark.parametrize("name", ["thesis.tex", ".partial-thesis.tex"])
def test_run_refuses_a_folder_with_other_files(reference, tmp_path, name):
    made, _ = reference
    (tmp_path / name).write_text("precious")
    with pytest.raises(RunError, match="must be empty or a run directory"):
        run(made, tmp_path, serial_engine(), where="p")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with Store(tmp_path).locked():  # a folder that is no run keeps what a run would clear away
        assert (tmp_path / name).read_text() == "precious"


def test_run_second_process_is_refused(reference, tmp_path):
    made, files = reference
    store = Store(tmp_path / "run")
    with store.locked(), pytest.raises(RunError, match="another process is writing"):
        run(made, tmp_path / "run", serial_engine(), where="p")
    run(made, tmp_path / "run", serial_engine(), where="p")
    assert contents(tmp_path / "run") == files


def test_run_full_disk_leaves_it_resumable(reference, tmp_path, monkeypatch):
    made, files = reference
    original, calls = os.fsync, []

    def fsync(descriptor):
        calls.append(descriptor)
        if len(calls) == 15:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(RunError, match=r"cannot be written: No space left on device\. Finished batches are kept"):
        run(made, tmp_path / "run", serial_engine(), where="p")
    assert not any(".partial-" in name for name in contents(tmp_path / "run"))
    monkeypatch.undo()
    run(made, tmp_path / "run", serial_engine(), where="p")
    assert contents(tmp_path / "run") == files


def test_run_unwritable_folder_is_one_clear_error(reference, tmp_path):
    made, _ = reference
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used as a run directory"):
        run(made, tmp_path / "file" / "run", serial_engine(), where="p")
