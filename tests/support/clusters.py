"""Schedulers and workers of Dask as processes of their own, with or without TLS, for tests and studies of faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ccfs.runs.cluster import Tls

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]


@contextmanager
def scheduler(
    folder: Path, *words: str, before: Sequence[str] = (), host: str = "127.0.0.1"
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a scheduler and give its process and its address."""
    file = folder / f"scheduler-{time.monotonic_ns()}.json"
    with _process([*before, *_dask("scheduler"), "--host", host, "--scheduler-file", str(file), *words], {}) as started:
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield started, json.loads(file.read_text())["address"]


@contextmanager
def worker(
    address: str, *words: str, before: Sequence[str] = (), path: Sequence[Path] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker that looks for modules in the folders of `path` first."""
    places = os.pathsep.join(map(str, (*path, SUPPORT)))
    one = ("--nworkers", "1", "--nthreads", "1", "--no-nanny")
    with _process([*before, *_dask("worker"), address, *one, *words], {"PYTHONPATH": places}) as started:
        yield started


def _dask(kind: str) -> list[str]:
    return [sys.executable, "-m", "dask", kind, "--no-dashboard"]


@contextmanager
def _process(command: Sequence[str], more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    # Not here, because `-m` looks for modules in the current folder first, and ours is in the way.
    with subprocess.Popen(command, env={**os.environ, **more}, cwd=SUPPORT, stdout=quiet, stderr=quiet) as started:
        try:
            yield started
        finally:
            started.kill()


def make_tls(folder: Path, name: str = "cluster") -> Tls:
    """Make an authority and one certificate that it signed, for 127.0.0.1."""
    ca, key, request, cert = (folder / f"{name}-{end}" for end in ("ca.pem", "key.pem", "request.pem", "cert.pem"))
    ca_key, names = folder / f"{name}-ca-key.pem", folder / f"{name}-names"
    names.write_text("subjectAltName = IP:127.0.0.1, DNS:localhost\n")
    new = ("-newkey", "rsa:2048", "-nodes", "-batch")
    _openssl("req", "-x509", *new, "-subj", f"/CN={name} authority", "-days", "2", "-keyout", ca_key, "-out", ca)
    _openssl("req", *new, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
    signed = ("-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-days", "2", "-extfile", names)
    _openssl("x509", "-req", "-in", request, *signed, "-out", cert)
    return Tls(ca=ca, cert=cert, key=key)


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def tls_words(tls: Tls) -> tuple[str, ...]:
    """Return the options of a scheduler or worker of Dask."""
    return ("--tls-ca-file", str(tls.ca), "--tls-cert", str(tls.cert), "--tls-key", str(tls.key))


def other_source(folder: Path) -> Path:
    """Return a folder with the package as it is here, but for one added line in the code of trials."""
    package = folder / "other" / "ccfs"
    package.mkdir(parents=True)
    for path in (ROOT / "ccfs").iterdir():
        if path.name not in ("runs", "__pycache__"):
            (package / path.name).symlink_to(path)
    for name in ("certificates", "controllers", "envs"):
        (package / name).symlink_to(ROOT / name)
    (package / "runs").mkdir()
    for path in (ROOT / "ccfs" / "runs").glob("*.py"):
        more = "\n_ANOTHER_RELEASE = True\n" if path.name == "trial.py" else ""
        (package / "runs" / path.name).write_text(path.read_text(encoding="utf-8") + more, encoding="utf-8")
    return package.parent
