"""Keep an executor busy with batches: a bounded number in flight, lost workers replaced, results as they come."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from itertools import islice
from types import TracebackType

from ccfs.runs.batches import Batch, run_batch
from ccfs.runs.executors import Engine
from ccfs.runs.store import RunError

__all__ = ["Files", "Pool"]

Files = tuple[bytes, ...]
_ATTEMPTS = 3
_GLANCE = 0.5
"""Seconds between two looks around: a Ctrl-C that another thread received does not wake a waiting main thread."""


class Pool:
    """Runs batches of one protocol on one engine."""

    def __init__(self, engine: Engine, canonical: str, expected: str) -> None:
        self._engine, self._canonical, self._expected = engine, canonical, expected
        self._executor = engine.open()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._executor.shutdown(wait=True)
        else:  # nobody waits for the batches in flight: they will be run again
            self._engine.abandon(self._executor)

    def completed(self, batches: Iterable[Batch]) -> Generator[tuple[Batch, Files], None, None]:
        """Yield each batch with its files as soon as it is done.

        A worker that dies takes nothing with it: its batches are run again, with the same keys and so the same bytes.
        """
        todo = iter(batches)
        pending: dict[Future[Files], Batch] = {}
        deaths = 0
        try:
            while True:
                self._submit(pending, islice(todo, self._engine.in_flight - len(pending)))
                if not pending:
                    return
                done, _ = wait(pending, timeout=_GLANCE, return_when=FIRST_COMPLETED)
                for future in done:
                    try:
                        files = future.result()
                    except BrokenExecutor as error:
                        deaths += 1
                        self._replace(pending, pending[future], deaths, error)
                        break
                    except Exception as error:
                        text = f"{pending[future].name}: {error}".rstrip(".")
                        raise RunError(f"{text}. Finished batches are kept.") from error
                    deaths = 0
                    yield pending.pop(future), files
        finally:
            for future in pending:
                future.cancel()

    def _submit(self, pending: dict[Future[Files], Batch], batches: Iterable[Batch]) -> None:
        for batch in batches:
            pending[self._executor.submit(run_batch, self._canonical, batch, self._expected)] = batch

    def _replace(self, pending: dict[Future[Files], Batch], batch: Batch, deaths: int, error: BrokenExecutor) -> None:
        """Open a new executor for everything that was in flight."""
        if deaths == _ATTEMPTS:
            raise RunError(
                f"{batch.name}: workers died {deaths} times without finishing a batch: {error}. "
                "Finished batches are kept; check the memory, then run the same command again."
            ) from error
        with suppress(Exception):
            self._executor.shutdown(wait=False)
        self._executor = self._engine.open()
        lost = list(pending.values())
        pending.clear()
        self._submit(pending, lost)
