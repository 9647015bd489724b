"""Run what a protocol names: here, if the run is the user's own, or in a child process that is confined."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol
from weakref import WeakKeyDictionary, finalize

from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.files.atomic import remove_tree
from ccfs.files.confine import Confinement
from ccfs.files.imports import from_source
from ccfs.files.reading import Limits, limits
from ccfs.protocol import model
from ccfs.protocol.model import Arm
from ccfs.runs.batches import Batch, run_batch
from ccfs.runs.build import build_arm, build_controller
from ccfs.runs.executors import THREADS
from ccfs.runs.judging import run_hashed
from ccfs.runs.store import RunError, Store, Trust

__all__ = ["Child", "ChildHost", "HereHost", "Host", "HostError", "Judgement", "child_of", "host_of", "receive", "send"]

Judgement = tuple[bool, bool]
"""Whether a trial is in an event, and whether it failed the event because of how it ended."""

_SECONDS = 600
"""How long one call may take: a trial, or the events of one batch."""
# Most of it is address space only: MuJoCo reserves about a gigabyte for each environment and touches little of it.
_MEMORY = 16 << 30
_HEAD = struct.Struct(">I")
_LONGEST_ERROR = 500
_CHILD = "import sys; sys.path[:] = {path!r}; from ccfs.runs.confined import main; main({scratch!r}, {settings!r})"


class HostError(RunError):
    """The code that a run names did not answer: it raised, took too long, or ended its process."""


class Host(Protocol):
    """A place where code that a protocol names runs."""

    def controllers(self, names: Sequence[str]) -> dict[str, str]:
        """Make controllers, and return the digest of each."""
        ...

    def replay(self, batch: Batch, trial: int) -> tuple[bytes, ...]:
        """Run one trial of a batch alone, and return its files as the run made them."""
        ...

    def schedule(self, arm: Arm) -> Schedule:
        """Make an arm, and return its schedule with numbers in the place of names."""
        ...


def host_of(store: Store, protocol: model.Protocol) -> Host:
    """Return the host of a run: this process for the user's own run, else a child process."""
    return HereHost(store, protocol) if store.trust is Trust.HERE else child_of(store, protocol)


def child_of(store: Store, protocol: model.Protocol) -> ChildHost:
    """Return the child process of a run, which is started once."""
    if store not in _children:
        _children[store] = ChildHost(store, protocol)
    return _children[store]


class HereHost:
    """Runs everything in this process."""

    def __init__(self, store: Store, protocol: model.Protocol) -> None:
        self.store, self.protocol = store, protocol

    def controllers(self, names: Sequence[str]) -> dict[str, str]:
        """Make controllers, and return the digest of each."""
        arms = {arm.controller.name: arm for arm in self.protocol.arms}
        with from_source():
            return {name: build_controller(self.protocol, arms[name]).digest for name in names}

    def replay(self, batch: Batch, trial: int) -> tuple[bytes, ...]:
        """Run one trial of a batch alone, in a fresh environment."""
        work = run_batch if batch.keeps_traces else run_hashed
        return work(self.protocol.canonical, replace(batch, trials=(trial,)))

    def schedule(self, arm: Arm) -> Schedule:
        """Make an arm, and return its schedule with numbers in the place of names."""
        with from_source():
            wrapped, _ = build_arm(self.protocol, arm, None)
        wrapped.close()
        return wrapped.resolved


class Child:
    """A child process with limits of memory, time and files, as `ccfs.files.confine` sets them.

    The child is not believed: an answer of another form is an error. `free` says in words what is not confined here.

    Args:
        store: the run that it may read.
        canonical: the protocol of the run, if it has one.
    """

    def __init__(self, store: Store, canonical: str | None = None) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="ccfs-"))
        factor = limits().file / Limits().file
        self._seconds = _SECONDS * factor
        settings = Confinement(memory=int(_MEMORY * factor))
        path = [os.path.abspath(entry) for entry in sys.path]
        program = _CHILD.format(path=path, scratch=str(self.scratch), settings=settings.memory)
        inherited = {**os.environ, **dict.fromkeys(THREADS, "1")}
        # Caches of libraries would otherwise go to folders where the child cannot write.
        own = dict.fromkeys(("TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR"), str(self.scratch))
        self._errors = (self.scratch / "stderr").open("w+b")
        self._child = subprocess.Popen(
            [sys.executable, "-B", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self.scratch,
            env=inherited | own | {"MINARI_DATASETS_PATH": str(self.scratch / "minari")},
            start_new_session=True,  # a Ctrl-C is for this process, and so is the end of the child
        )
        self._is_late = False
        self.close = finalize(self, _end, self._child, self._errors, self.scratch)
        try:
            place = {"root": str(store.root.resolve()), "head": store.head, "cwd": os.getcwd()}
            answer, _ = self.ask({"do": "begin", "canonical": canonical, **place})
        except BaseException:
            self.close()
            raise
        free = answer.get("free")
        self.free = tuple(map(str, free)) if isinstance(free, list) else ()

    def call(self, target: str, **arguments: object) -> object:
        """Call a function of ours, "module:function", in the child with the run and these arguments."""
        answer, _ = self.ask({"do": "call", "target": target, "arguments": arguments})
        return answer.get("returned")

    def ask(self, question: dict[str, object]) -> tuple[dict[str, object], tuple[bytes, ...]]:
        """Ask the child, and return its answer. Raise HostError if there is none."""
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise HostError("the child process has no pipes.")
        clock = threading.Timer(self._seconds, self._stop)
        clock.daemon = True
        clock.start()
        try:
            send(stdin, question)
            answer, blobs = receive(stdout, limits().file)
        except (OSError, EOFError, ValueError) as error:
            raise HostError(self._why(error)) from None
        finally:
            clock.cancel()
        if "error" in answer:
            raise HostError(str(answer["error"])[:_LONGEST_ERROR])
        return answer, blobs

    def _stop(self) -> None:
        self._is_late = True
        _kill(self._child)

    def _why(self, error: Exception) -> str:
        _kill(self._child)
        code = self._child.wait()
        if self._is_late:
            return f"code that the run names took more than {self._seconds:g} seconds for one trial. It was stopped."
        self._errors.seek(0)
        last = self._errors.read(1 << 20).decode(errors="replace").strip().splitlines()[-1:]
        told = f": {last[0][:_LONGEST_ERROR]}" if last else ""
        return f"code that the run names ended its process (code {code}, {error}){told}"


class ChildHost(Child):
    """Runs everything that a protocol names in a child process."""

    def __init__(self, store: Store, protocol: model.Protocol) -> None:
        super().__init__(store, protocol.canonical)
        self._last: tuple[object, dict[str, list[Judgement]]] | None = None

    def controllers(self, names: Sequence[str]) -> dict[str, str]:
        """Make controllers, and return the digest of each."""
        answer, _ = self.ask({"do": "controllers", "names": list(names)})
        found = answer.get("controllers")
        if not (isinstance(found, dict) and all(isinstance(digest, str) for digest in found.values())):
            raise HostError("the digests of the controllers must be texts.")
        return found

    def replay(self, batch: Batch, trial: int) -> tuple[bytes, ...]:
        """Run one trial of a batch alone, in a fresh environment."""
        _, tables = self.ask({"do": "replay", "batch": _told(batch), "trial": trial})
        if len(tables) != len(batch.files):
            raise HostError(f"trial {trial} must give {len(batch.files)} tables, got {len(tables)}.")
        return tables

    def schedule(self, arm: Arm) -> Schedule:
        """Make an arm, and return its schedule with numbers in the place of names."""
        plan = arm.schedule.plan
        answer, _ = self.ask({"do": "schedule", "arm": arm.name})
        told = answer.get("sigmas")
        sigmas = told if isinstance(told, dict) else {}
        made: dict[str, ProposalSchedule | tuple[ProposalSchedule, ...]] = {}
        for stage in plan.stages:
            blocks, given = plan.blocks(stage), sigmas.get(stage.value)
            if not (isinstance(given, list) and len(given) == len(blocks)):
                raise HostError(f"the stage {stage.value!r} must have {len(blocks)} blocks of numbers.")
            new = [
                ProposalSchedule(count=block.count, sigma=sigma, rho=block.rho)
                for block, sigma in zip(blocks, given, strict=True)
            ]
            made[stage.value] = tuple(new) if isinstance(plan.of(stage), tuple) else new[0]
        return replace(plan, sensor=made.get("sensor"), action=made.get("action"), score=made.get("score"))

    def judge(self, batch: Batch, events: Sequence[str]) -> dict[str, list[Judgement]]:
        """Return for each event of the user's own the judgement on each stored trial of a batch."""
        asked = (batch, tuple(events))
        if self._last is not None and self._last[0] == asked:
            return self._last[1]
        answer, _ = self.ask({"do": "judge", "batch": _told(batch), "events": list(events)})
        found = answer.get("judgements")
        if not isinstance(found, dict) or set(found) != set(events):
            raise HostError(f"each of the events {', '.join(events)} must be judged.")
        made: dict[str, list[Judgement]] = {}
        for name, judgements in found.items():
            is_list = isinstance(judgements, list) and len(judgements) == len(batch.trials)
            if not (is_list and all(map(_is_judgement, judgements))):
                raise HostError(f"the event {name!r} must give True or False for each of {len(batch.trials)} trials.")
            made[name] = [(is_inside, is_lost) for is_inside, is_lost in judgements]
        self._last = asked, made
        return made


_children: WeakKeyDictionary[Store, ChildHost] = WeakKeyDictionary()


def send(stream: IO[bytes], head: dict[str, object], *blobs: bytes) -> None:
    """Write a message: a JSON object, and bytes after it."""
    text = json.dumps({**head, "blobs": [len(blob) for blob in blobs]}).encode()
    stream.write(b"".join((_HEAD.pack(len(text)), text, *blobs)))
    stream.flush()


def receive(stream: IO[bytes], most: int) -> tuple[dict[str, object], tuple[bytes, ...]]:
    """Read a message of at most `most` bytes. Raise EOFError or ValueError for anything else."""
    (length,) = _HEAD.unpack(_exactly(stream, _HEAD.size, most))
    # As objects, a JSON text takes many times its length.
    text = _exactly(stream, length, min(most, limits().document))
    try:
        head = json.loads(text)
    except RecursionError:
        head = None
    sizes = head.get("blobs") if isinstance(head, dict) else None
    if not (isinstance(sizes, list) and len(sizes) < 10 and all(type(size) is int and size >= 0 for size in sizes)):
        raise ValueError("it sent no message")
    return head, tuple(_exactly(stream, size, most) for size in sizes)


def _exactly(stream: IO[bytes], count: int, most: int) -> bytes:
    if count > most:
        raise ValueError(f"it sent {count:,} bytes")
    found = stream.read(count)
    if len(found) != count:
        raise EOFError("it sent nothing more")
    return found


def _is_judgement(told: object) -> bool:
    return isinstance(told, list) and len(told) == 2 and all(isinstance(answer, bool) for answer in told)


def _told(batch: Batch) -> dict[str, object]:
    told = {"arm": batch.arm, "attack": batch.attack, "number": batch.number, "trials": list(batch.trials)}
    return {**told, "is_judged": batch.is_judged, "keeps_traces": batch.keeps_traces}


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, 9)  # with the processes that it started
    with suppress(OSError):
        child.kill()


def _end(child: subprocess.Popen[bytes], errors: IO[bytes], scratch: Path) -> None:
    _kill(child)
    child.wait()
    for stream in (child.stdin, child.stdout, errors):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    remove_tree(scratch)
