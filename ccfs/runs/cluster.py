"""Run batches on a Dask cluster: connect with or without TLS, wait for workers, and notice when the cluster is gone."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccfs.certificates import checks
from ccfs.runs.executors import Engine
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
    if not watch.threads():
        say(f"note: the scheduler at {address} has no worker yet. Waiting for one, at most {patience:g} s.")
    return Engine(
        open=watch.executor,
        in_flight=max(2 * watch.threads(), _IN_FLIGHT),
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


class _Watch:
    """Knows whether a cluster is still there."""

    def __init__(self, client: Any, address: str, patience: float) -> None:
        self._client, self._address, self._patience = client, address, patience
        self._asked = self._had_workers = time.monotonic()

    def executor(self) -> Executor:
        """Open an executor."""
        # With pure=False, Dask does not merge equal calls. It reruns the batches of a lost worker by itself.
        made: Executor = self._client.get_executor(pure=False)
        return made

    def threads(self) -> int:
        """Return how many batches the workers run at once."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return sum(int(worker["nthreads"]) for worker in workers.values())

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
