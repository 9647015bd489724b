from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import Executor, Future

import pytest
from toy_protocol import contents, protocol
from toys import foreign_threads

from ccfs.runs.batches import Batch
from ccfs.runs.executors import Engine, Pool, cluster_engine, process_engine, serial_engine
from ccfs.runs.run import run

pytestmark = pytest.mark.slow


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets of a worker that is killed on purpose
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_run_on_a_cluster_survives_a_killed_worker_with_the_same_bytes(tmp_path):
    from distributed import Client, LocalCluster

    made = protocol(tmp_path, trials=24)
    run(made, tmp_path / "serial", serial_engine(), where="p")
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        engine = cluster_engine(cluster.scheduler_address)
        finished = []

        def advance(trials):
            finished.append(trials)
            if len(finished) == 2:
                with Client(cluster.scheduler_address) as client:
                    pids = sorted(client.run(os.getpid).values())
                os.kill(pids[0], signal.SIGKILL)

        try:
            run(made, tmp_path / "cluster", engine, where="p", advance=advance)
        finally:
            engine.close()
    assert sum(finished) == 24 * 4
    assert contents(tmp_path / "cluster") == contents(tmp_path / "serial")


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_of_any_engine_find_modules_in_the_named_folder(tmp_path, monkeypatch):
    """The workers of the cluster start before anybody names the folder, so they cannot have inherited it."""
    from distributed import LocalCluster

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "verifier_of_a_study.py").write_text("from ccfs.runtime.components import BoxVerifier as Box\n")
    made = protocol(tmp_path, trials=8, own=('make = "box"', 'make = "verifier_of_a_study:Box"'))
    with LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        engine = cluster_engine(cluster.scheduler_address)
        try:
            run(made, tmp_path / "cluster", engine, where="p", modules=tmp_path)
        finally:
            engine.close()
    run(made, tmp_path / "processes", process_engine(1), where="p", modules=tmp_path)
    assert contents(tmp_path / "cluster") == contents(tmp_path / "processes")
    sys.modules.pop("verifier_of_a_study")


def test_process_engine_gives_workers_one_thread_before_they_import_anything(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with process_engine(1).open() as executor:
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            assert executor.submit(os.getenv, name).result() == "1"
        assert executor.submit(foreign_threads).result() == 0
    assert (os.environ["OPENBLAS_NUM_THREADS"], os.environ.get("OMP_NUM_THREADS")) == ("7", None)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


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
