"""The child process of `ccfs.runs.host`: confine yourself first, then answer questions until there are no more."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn, cast

from ccfs.files.confine import Confinement, confine, end_with_parent, excess, has_others

if TYPE_CHECKING:
    from ccfs.runs.batches import Batch
    from ccfs.runs.host import HereHost
    from ccfs.runs.store import Store

__all__ = ["main"]

_WATCH = 0.25
"""Seconds between two looks at what the confined processes have."""


def main(scratch: str, memory: int) -> None:
    """Confine a process, and serve. Nothing but the standard library is imported before it is confined.

    This process stays free and watches. The one that it starts is confined and serves. Both are in one group, which no
    confined process can leave, so that all end together.
    """
    settings = Confinement(memory=memory, resident=memory // 4, written=memory // 16)
    child = os.fork() if hasattr(os, "fork") else 0
    if child:
        _watch(child, Path(scratch), settings)
    free = confine(Path(scratch), settings)
    # Code that prints must not write into the answers.
    answers, questions = os.fdopen(os.dup(1), "wb"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout = sys.stderr
    _serve(questions, answers, free)


def _watch(child: int, scratch: Path, settings: Confinement) -> NoReturn:
    """End as the child ends. If its processes have too much, say so on stderr and end all of them.

    All of them also end with the process that asks, and with the child: nobody would watch the others any more.
    """
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    end_with_parent(signal.SIGTERM)
    for descriptor in (0, 1):
        os.close(descriptor)  # else nobody would see that the child has closed them
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            if has_others(os.getpgrp()):
                os.write(2, f"\nit ended with the code {code} and left processes, which were stopped.\n".encode())
                os.killpg(0, signal.SIGKILL)
            os._exit(code if code >= 0 else 128 - code)
        found = excess(os.getpgrp(), scratch, settings)
        if found is not None:
            told = f"it took {found} and was stopped. If that is right, use `ccfs --limits 2 ...`.\n"
            os.write(2, f"\n{told}".encode())
            os.killpg(0, signal.SIGKILL)
        time.sleep(_WATCH)


def _serve(questions: BinaryIO, answers: BinaryIO, free: tuple[str, ...]) -> None:
    import json

    from ccfs.files.reading import limits
    from ccfs.protocol.model import parse_protocol
    from ccfs.runs.host import HereHost, receive, send
    from ccfs.runs.store import Store, Trust

    host: HereHost | None = None
    while True:
        try:
            question, _ = receive(questions, limits().file)
        except EOFError:
            return
        try:
            if question["do"] == "begin":
                os.chdir(str(question["cwd"]))
                store = Store(Path(str(question["root"])), head=str(question["head"]), trust=Trust.HERE)
                if question["canonical"] is not None:
                    canonical = json.loads(str(question["canonical"]))
                    host = HereHost(store, parse_protocol(canonical, where="protocol.json"))
                send(answers, {"free": list(free)})
            elif question["do"] == "call":  # a function of ours that runs in its own way what the run names
                send(answers, {"returned": _called(question, store)})
            else:
                head, blobs = _answer(cast("HereHost", host), question)
                send(answers, head, *blobs)
        except (Exception, SystemExit) as error:
            send(answers, {"error": f"{type(error).__name__}: {error}"[:2000]})


def _answer(host: HereHost, question: dict[str, object]) -> tuple[dict[str, object], tuple[bytes, ...]]:
    do = question["do"]
    if do == "controllers":
        return {"controllers": dict(host.controllers(cast("list[str]", question["names"])))}, ()
    if do == "replay":
        return {}, host.replay(_batch(question["batch"]), int(cast(int, question["trial"])))
    if do == "schedule":
        arm = next(arm for arm in host.protocol.arms if arm.name == question["arm"])
        made = host.schedule(arm)
        return {"sigmas": {stage.value: [block.sigma for block in made.blocks(stage)] for stage in made.stages}}, ()
    if do == "judge":
        from ccfs.runs.counting import judged_here

        names = cast("list[str]", question["events"])
        return {"judgements": judged_here(host.store, host.protocol, _batch(question["batch"]), names)}, ()
    raise ValueError(f"nobody answers {do!r} here.")


def _called(question: dict[str, object], store: Store) -> object:
    module, _, name = str(question["target"]).partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(store, **cast("dict[str, object]", question["arguments"]))


def _batch(told: object) -> Batch:
    from ccfs.runs.batches import Batch

    entries = cast("dict[str, object]", told)
    return Batch(
        arm=str(entries["arm"]),
        attack=str(entries["attack"]),
        number=cast(int, entries["number"]),
        trials=tuple(cast("list[int]", entries["trials"])),
        is_judged=bool(entries["is_judged"]),
        keeps_traces=bool(entries["keeps_traces"]),
    )
