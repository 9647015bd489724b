"""Where batches run: in this process, in local processes, or on a Dask cluster; all behind one standard interface."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

from ccfs.certificates import checks

__all__ = ["Engine", "SerialExecutor", "cluster_engine", "process_engine", "serial_engine"]

# Workers are as many as the cores: a second thread in one only takes time from another.
_THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
Given = ParamSpec("Given")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How to open an executor, how many batches to keep in flight on it, and how to let go of what is behind it.

    `abandon` ends an executor at once, with the batches that are running on it.
    """

    open: Callable[[], Executor]
    in_flight: int
    name: str
    close: Callable[[], object] = lambda: None
    abandon: Callable[[Executor], object] = lambda executor: executor.shutdown(wait=False)


class SerialExecutor(Executor):
    """Runs each call at once, in this process."""

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Run the call and return its finished future."""
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class ProcessExecutor(ProcessPoolExecutor):
    """Spawned worker processes: deaf to Ctrl-C, with one thread each for linear algebra, and gone with this process."""

    def __init__(self, workers: int) -> None:
        context = get_context("spawn")
        super().__init__(workers, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(),))

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Submit a call; this is where workers are started."""
        with _for_new_workers():
            return super().submit(fn, *args, **kwargs)

    def abandon(self) -> None:
        """Cancel what waits and kill the workers: what they were doing is lost, and was to be lost."""
        workers = list((self._processes or {}).values())
        self.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()


def serial_engine() -> Engine:
    """Return the engine that uses this process alone."""
    return Engine(open=SerialExecutor, in_flight=1, name="serial")


def process_engine(workers: int) -> Engine:
    """Return the engine of `workers` local processes (spawned, so that they share nothing)."""
    count = checks.count("workers", workers, minimum=1)

    def abandon(executor: Executor) -> None:
        if isinstance(executor, ProcessExecutor):
            executor.abandon()

    return Engine(open=lambda: ProcessExecutor(count), in_flight=2 * count, name=f"{count} processes", abandon=abandon)


def cluster_engine(address: str) -> Engine:
    """Return the engine of a running Dask cluster, named by its scheduler's address."""
    try:
        from distributed import Client
    except ImportError as error:
        raise RuntimeError("a cluster needs Dask: pip install 'ccfs[cluster]'.") from error

    try:
        client = Client(address, timeout="10s")  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RuntimeError(
            f"`--cluster` must be the address of a running scheduler, got {address!r}: {reason}"
        ) from error

    def open_cluster() -> Executor:
        # pure=False: equal calls are not merged. Dask reruns the batches of a lost worker by itself.
        executor: Executor = client.get_executor(pure=False)  # type: ignore[no-untyped-call]
        return executor

    threads = sum(int(worker["nthreads"]) for worker in client.scheduler_info(n_workers=-1)["workers"].values())
    return Engine(open=open_cluster, in_flight=2 * max(threads, 1), name=f"Dask cluster {address}", close=client.close)


@contextmanager
def _for_new_workers() -> Iterator[None]:
    """Set what a worker inherits at its start, before it imports anything, and put it back."""
    before = {name: os.environ.get(name) for name in _THREADS}
    # Held back, not lost: a Ctrl-C in this moment comes to the main process right after.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        os.environ.update(dict.fromkeys(_THREADS, "1"))
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _begin_worker(parent: int) -> None:
    """Leave Ctrl-C to the main process, and end when it is gone (a killed one cannot tell)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
