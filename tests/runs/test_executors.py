from __future__ import annotations

import os
import signal

import pytest
from toy_protocol import contents, protocol

from ccfs.runs.executors import cluster_engine, serial_engine
from ccfs.runs.run import run

pytestmark = pytest.mark.slow


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
