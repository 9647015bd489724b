"""Run batches on a Dask cluster: connect with or without TLS, wait for workers, and notice when the cluster is gone."""

from __future__ import annotations

import ipaddress
import logging
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccfs.certificates import checks
from ccfs.runs.executors import Engine, Given, Result
from ccfs.runs.store import RunError

__all__ = ["PATIENCE", "Tls", "cluster_engine"]

PATIENCE = 60.0
"""Seconds to wait for a worker, if the user gives no other number."""
# Seconds. A scheduler that is there answers within this time, and an address without one should not cost a minute.
_CONNECT = 10.0
# Seconds between two questions to the scheduler.
_GLANCE = 2.0
# Workers may join later, so there is work for more of them than are there at first.
_IN_FLIGHT = 32
_ONE_AT_A_TIME = threading.Lock()
_NOISY = ("asyncio", "distributed", "tornado")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files (PEM) with which client, scheduler and workers prove to each other who they are.

    Args:
        ca: certificate of the authority that signed all the others.
        cert: certificate of this client.
        key: private key of that certificate.
    """

    ca: Path
    cert: Path
    key: Path

    def __post_init__(self) -> None:
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if not path.is_file():
                raise ValueError(f"`--tls-{name}` must be a file (PEM), got {path}.")


def cluster_engine(
    address: str,
    *,
    tls: Tls | None = None,
    patience: float = PATIENCE,
    say: Callable[[str], object] = lambda line: None,
) -> Engine:
    """Return the engine of a running Dask cluster.

    A run ends with a sentence if the connection to the scheduler is lost, or if there was no worker for a while. Its
    finished batches are kept.

    Args:
        address: of the scheduler, such as `tcp://host:8786`, or `tls://host:8786` with TLS.
        tls: files for an encrypted connection.
        patience: seconds without any worker after which to give up.
        say: called with what a user should know, such as that the connection is not encrypted.
    """
    patience = checks.positive("cluster-timeout", patience)
    if (tls is not None) != address.startswith("tls://"):
        raise ValueError(
            "`--cluster` must begin with tls:// if --tls-ca, --tls-cert and --tls-key are given, and only then, "
            f"got {address!r}."
        )
    if tls is None and not _is_here(address):
        say(
            f"note: the connection to {address} is not encrypted. Whoever reaches that network can run code on the "
            "workers and change results. Use --tls-ca, --tls-cert and --tls-key."
        )
    watch = _Watch(_connected(address, tls), address, patience)
    threads = watch.threads()
    if not threads:
        say(f"note: the scheduler at {address} has no worker yet. Waiting for one, at most {patience:g} s.")
    if any(count > 1 for count in threads):
        say("note: a worker runs one batch at a time, whatever its threads. Start workers with --nthreads 1.")
    return Engine(
        open=watch.executor,
        in_flight=max(2 * len(threads), _IN_FLIGHT),
        name=f"Dask cluster {address}",
        close=watch.close,
        abandon=_abandon,
        check=watch.check,
    )


def _is_here(address: str) -> bool:
    """Return whether an address is on this machine, where nobody else listens on the way."""
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    if address.startswith("inproc://") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may lead anywhere
        return False


def _connected(address: str, tls: Tls | None) -> Any:
    try:
        from distributed import Client
        from distributed.security import Security
    except ImportError as error:
        raise RuntimeError("A cluster needs Dask. Install it: pip install 'ccfs-rl[cluster]'") from error
    # Dask logs whatever it tries again, with tracebacks. What ends a run is said in one sentence here.
    for name in [name for name in logging.root.manager.loggerDict if name.split(".")[0] in _NOISY]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    files = {} if tls is None else {"tls_ca_file": tls.ca, "tls_client_cert": tls.cert, "tls_client_key": tls.key}
    try:
        named = {name: str(path) for name, path in files.items()}
        security = Security(require_encryption=tls is not None, **named)  # type: ignore[no-untyped-call]
        return Client(address, timeout=_CONNECT, security=security)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        reason = str(error.__cause__ or error).splitlines() or [type(error).__name__]
        raise RuntimeError(
            f"`--cluster` must be the address of a running scheduler, got {address!r}: {reason[0].rstrip('.')}."
        ) from error


def _abandon(executor: Executor) -> None:
    with suppress(Exception):  # the cluster may be gone already, and with it what is cancelled here
        executor.shutdown(wait=False)


class _Alone(Executor):
    """Runs one call at a time in each worker, undisturbed by Dask's own threads."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, fn: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """Submit a call."""
        return self._executor.submit(_alone, fn, *args, **kwargs)  # type: ignore[arg-type]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the calls, or cancel them."""
        self._executor.shutdown(wait=wait)


def _alone(fn: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Call a function with the generators that a process shares to itself. Executed on a worker.

    Two batches at once would draw from the same `random` and `np.random`. And Dask draws from `random` how long it
    waits before it tries to connect again, which would look as if the trial of that moment had drawn.
    """
    with _ONE_AT_A_TIME:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in ("dask", "distributed", "tornado") and vars(module).get("random") is random:
                vars(module)["random"] = random.Random()
        return fn(*args, **kwargs)


class _Watch:
    """Knows whether a cluster is still there."""

    def __init__(self, client: Any, address: str, patience: float) -> None:
        self._client, self._address, self._patience = client, address, patience
        self._asked = self._had_workers = time.monotonic()

    def executor(self) -> Executor:
        """Open an executor."""
        # With pure=False, Dask does not merge equal calls. It reruns the batches of a lost worker by itself.
        return _Alone(self._client.get_executor(pure=False))

    def threads(self) -> list[int]:
        """Return the number of threads of each worker."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return [int(worker["nthreads"]) for worker in workers.values()]

    def check(self) -> None:
        """Raise if the scheduler is gone, or if there was no worker for too long."""
        now = time.monotonic()
        if now - self._asked >= _GLANCE and self._client.status == "running":
            self._asked = now
            if self.threads():
                self._had_workers = now
        if self._client.status != "running":
            raise RunError(
                f"The connection to the scheduler at {self._address} is lost. Finished batches are kept. Start the "
                "cluster again, then run the same command again."
            )
        if now - self._had_workers > self._patience:
            raise RunError(
                f"The scheduler at {self._address} has had no worker for {self._patience:g} s. Finished batches are "
                f"kept. Start workers (dask worker {self._address}) and run the same command again, or wait longer "
                "with --cluster-timeout."
            )

    def close(self) -> None:
        """Leave the cluster."""
        with suppress(Exception):
            self._client.close(timeout=2.0)
