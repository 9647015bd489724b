"""Run batches in this process, in local processes or elsewhere, all through one standard interface."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from types import TracebackType
from typing import Generic, ParamSpec, Protocol, TypeVar

from ccfs.certificates import checks
from ccfs.runs.store import RunError

__all__ = [
    "THREADS",
    "Engine",
    "Files",
    "Given",
    "Piece",
    "Pool",
    "Result",
    "SerialExecutor",
    "process_engine",
    "serial_engine",
]

# There is one worker per core, so extra threads would only compete.
THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
# A worker may die for a reason that passes, such as a full memory. After so many deaths in a row, it does not pass.
_ATTEMPTS = 3
# Seconds. A Ctrl-C that another thread received does not wake a main thread that waits, so it wakes by itself.
_GLANCE = 0.5
# Seconds. A thread whose processes are dead ends at once.
_END = 5.0
Files = tuple[bytes, ...]
Given = ParamSpec("Given")
Result = TypeVar("Result")


class Piece(Protocol):
    """A piece of a run's work, such as a batch of trials."""

    @property
    def name(self) -> str:
        """The name of the piece, for errors."""


Work = TypeVar("Work", bound=Piece)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How to open an executor, how many batches to keep in flight on it, and how to end it.

    `close` releases what stands behind all executors, such as a connection. `abandon` ends one executor at once,
    together with the batches that are running on it. `check` is called again and again while a run waits, and raises
    with a sentence if what it waits for cannot come any more.
    """

    open: Callable[[], Executor]
    in_flight: int
    name: str
    close: Callable[[], object] = lambda: None
    abandon: Callable[[Executor], object] = lambda executor: executor.shutdown(wait=False)
    check: Callable[[], object] = lambda: None


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
    """Spawned worker processes.

    They ignore Ctrl-C, use one thread each for linear algebra, and end when this process ends.
    """

    def __init__(self, workers: int) -> None:
        context = get_context("spawn")
        super().__init__(workers, mp_context=context, initializer=_begin_worker, initargs=(os.getpid(),))

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Submit a call. The base class starts its workers here."""
        with _for_new_workers():
            future = super().submit(fn, *args, **kwargs)
        fail = future.set_exception

        def fail_unless_cancelled(error: BaseException | None) -> None:
            # Up to Python 3.12, the pool's own thread ends with a traceback if workers die after a call was cancelled.
            with suppress(InvalidStateError):
                fail(error)

        future.set_exception = fail_unless_cancelled  # type: ignore[method-assign, assignment]
        return future

    def abandon(self) -> None:
        """Cancel the calls that wait, and kill the workers. The results of the running calls are lost."""
        workers, manager = list((self._processes or {}).values()), self._executor_manager_thread
        self.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        # Up to Python 3.12, the end of the process may otherwise write to a pipe that this thread is closing.
        if isinstance(manager, threading.Thread):
            manager.join(_END)


def serial_engine() -> Engine:
    """Return the engine that uses this process alone."""
    return Engine(open=SerialExecutor, in_flight=1, name="serial")


def process_engine(workers: int) -> Engine:
    """Return the engine of `workers` local processes, which are spawned so that they share nothing."""
    count = checks.count("workers", workers, minimum=1)

    def abandon(executor: Executor) -> None:
        if isinstance(executor, ProcessExecutor):
            executor.abandon()

    return Engine(open=lambda: ProcessExecutor(count), in_flight=2 * count, name=f"{count} processes", abandon=abandon)


@contextmanager
def _for_new_workers() -> Iterator[None]:
    """Set the environment that new workers inherit before they import anything, and restore it afterwards."""
    before = {name: os.environ.get(name) for name in THREADS}
    with _later():
        try:
            os.environ.update(dict.fromkeys(THREADS, "1"))
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextmanager
def _later() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the block, so that no worker is left half made."""
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    # The mask is for the new process, which inherits it. SIGTERM is not in it, because the pool ends workers by that.
    # Windows has no mask: there a new worker may see a Ctrl-C too, and ends.
    has_mask = hasattr(signal, "pthread_sigmask")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if has_mask else set()
    # Another thread can still receive the signal, and then Python would raise here. So it is only noted.
    numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
    handlers = {number: signal.signal(number, lambda sent, _: came.append(sent)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if has_mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        for sent in came:
            signal.raise_signal(sent)


def _begin_worker(parent: int) -> None:
    """Ignore Ctrl-C, which the main process handles, and end when the main process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # A main process that was killed cannot tell its workers to end, so each worker looks for itself.
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Pool(Generic[Work]):
    """Runs the pieces of one run on one engine, a bounded number at a time, and replaces lost workers.

    Args:
        engine: where pieces run.
        work: turns a piece into the bytes of its files. Workers of other processes must be able to import it.
    """

    def __init__(self, engine: Engine, work: Callable[[Work], Files]) -> None:
        self._engine, self._work = engine, work
        self._executor = engine.open()

    def __enter__(self) -> Pool[Work]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._executor.shutdown(wait=True)
        else:  # the next run repeats the batches in flight, so nobody waits for them
            self._engine.abandon(self._executor)

    def completed(self, batches: Iterable[Work]) -> Generator[tuple[Work, Files], None, None]:
        """Yield each batch with its files as soon as it is done.

        If a worker dies, its batches run again. They have the same stream keys, so they give the same bytes.
        """
        todo = iter(batches)
        pending: dict[Future[Files], Work] = {}
        deaths = 0
        try:
            while True:
                self._submit(pending, islice(todo, self._engine.in_flight - len(pending)))
                if not pending:
                    return
                done, _ = wait(pending, timeout=_GLANCE, return_when=FIRST_COMPLETED)
                if not done:
                    self._engine.check()
                for future in sorted(done, key=Future.cancelled):  # what is finished is kept first
                    try:
                        files = future.result()
                    except BrokenExecutor as error:
                        deaths += 1
                        self._replace(pending, pending[future], deaths, error)
                        break
                    except CancelledError as error:
                        self._engine.check()
                        raise RunError(
                            f"{pending[future].name}: was cancelled, because {self._engine.name} was lost or began "
                            "anew. Finished batches are kept. Run the same command again."
                        ) from error
                    except Exception as error:
                        text = f"{pending[future].name}: {error}".rstrip(".")
                        raise RunError(f"{text}. Finished batches are kept.") from error
                    deaths = 0
                    yield pending.pop(future), files
        finally:
            for future in pending:
                future.cancel()

    def _submit(self, pending: dict[Future[Files], Work], batches: Iterable[Work]) -> None:
        for batch in batches:
            try:
                future = self._executor.submit(self._work, batch)
            except BrokenExecutor as error:
                # A worker died since the last call. The batch counts as in flight, and is replaced with the others.
                future = Future()
                future.set_exception(error)
            except Exception:
                self._engine.check()  # says it better, if the cluster is gone
                raise
            pending[future] = batch

    def _replace(self, pending: dict[Future[Files], Work], batch: Work, deaths: int, error: BrokenExecutor) -> None:
        """Open a new executor, and submit to it everything that was in flight."""
        if deaths == _ATTEMPTS:
            raise RunError(
                f"{batch.name}: workers died {deaths} times without finishing a batch: {error}. "
                "Finished batches are kept. Check the memory, then run the same command again."
            ) from error
        with suppress(Exception):
            self._executor.shutdown(wait=False)
        self._executor = self._engine.open()
        lost = list(pending.values())
        pending.clear()
        self._submit(pending, lost)
