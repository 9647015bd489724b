"""Code that a hostile run names: it leaves a mark where it ran, and tries what it must not."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
from toys import Priced

MARK = "HOSTILE_MARK"


def mark(text="ran"):
    """Write to a file that the test names. Inside of a confined process this fails."""
    place = os.environ.get(MARK)
    if place:
        with suppress(PermissionError), Path(place).open("a") as stream:
            stream.write(f"{text}\n")


mark("imported")


class Running(Priced):
    """An environment that only tells that it runs."""

    def __init__(self):
        mark()
        super().__init__()


class Counting:
    """An event that only tells that it counts."""

    def __init__(self):
        mark()

    def holds(self, trace):
        mark()
        print("\x1b[2Jcertified")  # noqa: T201
        return True


class Doing(Priced):
    """An environment that does one thing in its first step, after the run was made."""

    def __init__(self, *, what, place=""):
        super().__init__()
        self.what, self.place = what, place

    def step(self, action):
        if os.environ.get("HOSTILE_NOW"):
            getattr(self, self.what)()
        return super().step(action)

    def write(self):
        Path(self.place).write_text("owned")

    def start(self):
        """Let another program write."""
        if subprocess.run(["/bin/sh", "-c", f"echo owned > {self.place}"], capture_output=True, check=False).returncode:
            raise ValueError("the shell could not write")

    def connect(self):
        socket.socket().connect(("127.0.0.1", 9))

    def sleep(self):
        time.sleep(600)

    def allocate(self):
        self.kept = np.ones(1 << 33)

    def hoard(self):
        """Take memory in pieces, each of which is allowed."""
        kept = []
        while True:
            kept.append(np.ones(1 << 22))
            time.sleep(0.01)

    def multiply(self):
        """Start processes that would stay when this one has ended."""
        for _ in range(200):
            if os.fork() == 0:
                with suppress(OSError):
                    os.setsid()
                time.sleep(30)
                os._exit(0)
        time.sleep(30)

    def multiply_a_little(self):
        """Start processes that would stay when this one has ended."""
        for _ in range(5):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        Path(os.environ["TMPDIR"], "many").touch()
        time.sleep(60)

    def fill(self):
        """Write one file after the other where writing is allowed."""
        for number in range(10_000):
            (Path(os.environ["TMPDIR"]) / f"{number}").write_bytes(bytes(1 << 20))

    def fill_hidden(self):
        """Write files that have no name any more."""
        kept = []
        for _ in range(400):
            place = Path(os.environ["TMPDIR"]) / "hidden"
            kept.append(place.open("wb"))
            place.unlink()
            kept[-1].write(bytes(1 << 20))
        time.sleep(30)

    def fill_mapped(self):
        """Write files that have neither a name nor a descriptor any more."""
        kept = []
        for _ in range(400):
            place = Path(os.environ["TMPDIR"]) / "hidden"
            with place.open("w+b") as stream:
                stream.write(bytes(1 << 20))
                stream.flush()
                kept.append(mmap.mmap(stream.fileno(), 1))
            place.unlink()
        time.sleep(30)

    def nest(self):
        """Make folders in folders, deeper than a path can name."""
        os.chdir(os.environ["TMPDIR"])
        for _ in range(3000):
            os.mkdir("deep")
            os.chdir("deep")
        Path("file").write_bytes(b"x")
        time.sleep(30)

    def close_off(self):
        """Make a folder into which nobody may look."""
        (Path(os.environ["TMPDIR"]) / "closed" / "inside").mkdir(parents=True)
        os.umask(0o777)
        (Path(os.environ["TMPDIR"]) / "closed" / "inside" / "shut").mkdir()
        time.sleep(5)
        raise ValueError("done")

    def share(self):
        """Take memory that is charged to no process."""
        kept = []
        while len(kept) < 200:
            kept.append(mmap.mmap(-1, 1 << 25))
            kept[-1].write(bytes(1 << 25))
            kept[-1].madvise(mmap.MADV_DONTNEED)
            time.sleep(0.01)
        time.sleep(30)

    def orphan(self):
        """End the first process, and go on in another one."""
        if os.fork():
            os._exit(0)
        Path(os.environ["TMPDIR"], "orphan").write_text(str(os.getpid()))
        time.sleep(60)
        os._exit(0)

    def leave(self):
        os._exit(0)

    def kill(self):
        os.kill(os.getppid(), signal.SIGTERM)

    def answer(self):
        """Write into the channel of answers, wherever it is."""
        for descriptor in range(3, 20):
            try:
                os.write(descriptor, b"\0\0\0\x02{}" * 10)
            except OSError:
                continue

    def talk(self):
        sys.stdout.write("\x1b[8mhidden\n" * 1000)
