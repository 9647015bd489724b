from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import Executor, Future
from dataclasses import replace
from multiprocessing import active_children

import pytest
from toy_protocol import contents, protocol
from toys import foreign_threads

from ccfs.runs.batches import Batch
from ccfs.runs.executors import Engine, Pool, process_engine, serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import RunError

pytestmark = pytest.mark.slow


def test_process_engine_gives_workers_one_thread_before_they_import_anything(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with process_engine(1).open() as executor:
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            assert executor.submit(os.getenv, name).result() == "1"
        assert executor.submit(foreign_threads).result() == 0
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ.get("OMP_NUM_THREADS")) == ("7", None)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_run_replaces_a_local_worker_that_is_killed(tmp_path):
    made = protocol(tmp_path, trials=8)
    finished = []

    def advance(trials):
        finished.append(trials)
        if len(finished) == 2:
            os.kill(active_children()[0].pid, signal.SIGKILL)

    run(made, tmp_path / "killed", process_engine(2), where="p", advance=advance)
    run(made, tmp_path / "serial", serial_engine(), where="p")
    assert sum(finished) == 8 * 4
    assert contents(tmp_path / "killed") == contents(tmp_path / "serial")


def dies_at_one(batch):
    if batch.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return (b"x",)


def test_workers_that_always_die_end_the_run_with_a_sentence_after_what_was_finished():
    batches = [Batch(arm="a/b", attack="nominal", number=number, trials=(number,)) for number in (0, 1)]
    engine = replace(process_engine(1), in_flight=1)
    said = r"a/b/nominal/batch-00001: workers died 3 times .* Finished batches are kept\. Check the memory"
    with Pool(engine, dies_at_one) as pool:
        results = pool.completed(batches)
        assert next(results)[1] == (b"x",)
        with pytest.raises(RunError, match=said):
            next(results)


def test_process_engine_needs_no_signal_mask(monkeypatch):
    """Windows has none."""
    monkeypatch.delattr(signal, "pthread_sigmask")
    with process_engine(1).open() as executor:
        assert executor.submit(abs, -1).result() == 1


class Never(Executor):
    """An executor whose calls do not end by themselves."""

    def __init__(self):
        self.future = Future()

    def submit(self, fn, /, *args, **kwargs):
        return self.future


def test_waiting_for_workers_notices_a_ctrl_c_that_another_thread_received():
    """The kernel may hand SIGINT to any thread, and that does not wake a main thread that waits for a lock."""
    executor = Never()
    engine = Engine(open=lambda: executor, in_flight=1, name="never", abandon=lambda opened: None)
    batch = Batch(arm="a/b", attack="nominal", number=0, trials=(0,))

    def interrupt():
        time.sleep(0.2)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    late = threading.Timer(8.0, lambda: executor.future.set_exception(RuntimeError("nobody noticed")))
    late.start()
    try:
        threading.Thread(target=interrupt).start()
        begun = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            next(Pool(engine, lambda piece: ()).completed([batch]))
        assert time.monotonic() - begun < 5.0  # not only when the call ended
    finally:
        late.cancel()
        signal.signal(signal.SIGINT, before)


def test_abandoned_workers_leave_no_thread_whose_pipe_the_end_of_the_process_would_write_to():
    engine = process_engine(1)
    executor = engine.open()
    future = executor.submit(time.sleep, 60.0)
    while not future.running():
        time.sleep(0.01)
    manager = executor._executor_manager_thread
    assert manager.is_alive()
    engine.abandon(executor)
    assert not manager.is_alive()
    assert future.done()
