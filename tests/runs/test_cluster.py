from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time

import pytest
from clusters import make_tls, other_source, scheduler, tls_words, worker
from toy_protocol import contents, protocol

from ccfs.runs import cluster as module
from ccfs.runs.cluster import Tls, cluster_engine
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.generators import generators_now
from ccfs.runs.run import run
from ccfs.runs.store import RunError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # sockets of what is killed on purpose
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def run_there(made, folder, address, *, advance=lambda trials: None, **options):
    engine = cluster_engine(address, **options)
    try:
        return run(made, folder, engine, where="p", advance=advance)
    finally:
        engine.close()


def test_run_on_a_cluster_survives_a_killed_worker_with_the_same_bytes(tmp_path):
    from distributed import Client, LocalCluster

    made = protocol(tmp_path, trials=24)
    run(made, tmp_path / "serial", serial_engine(), where="p")
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        finished = []

        def advance(trials):
            finished.append(trials)
            if len(finished) == 2:
                with Client(cluster.scheduler_address) as client:
                    pids = sorted(client.run(os.getpid).values())
                os.kill(pids[0], signal.SIGKILL)

        run_there(made, tmp_path / "cluster", cluster.scheduler_address, advance=advance)
    assert sum(finished) == 24 * 4
    assert contents(tmp_path / "cluster") == contents(tmp_path / "serial")


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


def test_cluster_with_tls_waits_for_a_worker_and_then_gives_the_same_bytes(tmp_path):
    made = protocol(tmp_path, trials=8)
    ours, strangers = make_tls(tmp_path), make_tls(tmp_path, "stranger")
    said = []
    with scheduler(tmp_path, "--protocol", "tls", *tls_words(ours)) as (_, address):
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(RuntimeError, match=r"must be the address of a running scheduler, got 'tls://.*\."):
            run_there(made, tmp_path / "run", address, tls=strangers)
        with pytest.raises(RunError, match=r"has had no worker for 1 s\. Finished batches are kept\. Start workers"):
            run_there(made, tmp_path / "run", address, tls=ours, patience=1.0, say=said.append)
        assert said == [f"note: the scheduler at {address} has no worker yet. Waiting for one, at most 1 s."]
        with worker(address, "--protocol", "tls", *tls_words(ours)):
            run_there(made, tmp_path / "run", address, tls=ours)
    run(made, tmp_path / "serial", serial_engine(), where="p")
    assert contents(tmp_path / "run") == contents(tmp_path / "serial")


def test_cluster_of_other_source_is_refused_and_a_killed_scheduler_ends_the_run_with_a_sentence(tmp_path):
    made = protocol(tmp_path, trials=24)
    with scheduler(tmp_path) as (process, address):
        said = r"a worker has other `code` than the run: ccfs is .*\. Finished batches are kept\."
        with worker(address, path=[other_source(tmp_path)]), pytest.raises(RunError, match=said):
            run_there(made, tmp_path / "run", address)
        assert not list((tmp_path / "run").rglob("batches/**/*.json"))

        def kill(trials):
            process.kill()

        said = rf"The connection to the scheduler at {address} is lost\. Finished batches are kept\. Start the cluster"
        with worker(address), pytest.raises(RunError, match=said):
            run_there(made, tmp_path / "run", address, advance=kill)
    assert 1 <= len(list((tmp_path / "run").rglob("batches/**/*.json"))) < 24
    run(made, tmp_path / "run", serial_engine(), where="p")
    run(made, tmp_path / "serial", serial_engine(), where="p")
    assert contents(tmp_path / "run") == contents(tmp_path / "serial")


def test_batch_on_a_worker_has_the_shared_generators_to_itself():
    """Dask draws its waiting times from `random`, in another thread, while it tries to connect again."""
    from distributed.comm import core

    core.random = random
    drawn, begun, ended = [], threading.Event(), threading.Event()

    def connecting():
        begun.wait()
        while not ended.is_set():
            drawn.append(core.random.uniform(0.0, 1.0))

    thread = threading.Thread(target=connecting)
    thread.start()

    def batch():
        before = generators_now()
        begun.set()
        while len(drawn) < 100:
            time.sleep(0.001)
        return generators_now() == before

    try:
        assert module._alone(batch)
    finally:
        begun.set()
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("address", "is_warned"),
    [
        ("tcp://127.0.0.1:8786", False),
        ("tcp://127.8.9.1:8786", False),
        ("tcp://[::1]:8786", False),
        ("tcp://localhost:8786", False),
        ("inproc://192.168.1.2/7/1", False),
        ("tcp://192.168.1.2:8786", True),
        ("tcp://[fe80::1]:8786", True),
        ("tcp://localhost.example:8786", True),
        ("scheduler:8786", True),
    ],
)
def test_connection_that_others_could_read_is_warned_of(monkeypatch, address, is_warned):
    def refuse(*arguments):
        raise RuntimeError("nobody is asked")

    monkeypatch.setattr(module, "_connected", refuse)
    said = []
    with pytest.raises(RuntimeError, match="nobody is asked"):
        cluster_engine(address, say=said.append)
    assert [line.startswith(f"note: the connection to {address} is not encrypted.") for line in said] == [
        True
    ] * is_warned


def test_cluster_engine_refuses_half_of_what_tls_needs(tmp_path):
    with pytest.raises(ValueError, match=r"must begin with tls:// if --tls-ca, .* got 'tls://127.0.0.1:1'"):
        cluster_engine("tls://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"`--tls-ca` must be a file \(PEM\), got"):
        Tls(ca=tmp_path / "none", cert=tmp_path / "none", key=tmp_path / "none")
    with pytest.raises(ValueError, match=r"must be positive|must be"):
        cluster_engine("tcp://127.0.0.1:1", patience=float("nan"))
