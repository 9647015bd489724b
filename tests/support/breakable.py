"""The commands that write, on small inputs, and what becomes of each of them when the disk fails at one moment."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from failing_disk import Disk, Fault, can_happen
from keys import ADA
from small_training import config_with, make
from toy_protocol import TEXT, contents, text
from typer.testing import CliRunner, Result

from ccfs.cli.main import app
from ccfs.controllers.training import runner as training
from ccfs.controllers.training import state
from ccfs.controllers.training.plan import Plan
from ccfs.protocol.model import load_protocol
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run as run_protocol

SUPPORT = Path(__file__).parent
_ONE_ARM = ('[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n', "")
_ANYTIME = {
    "law": ("cohort = { first = 100, count = 64 }", "initial_law = 64"),
    "bound": ('bound = "cohort"', 'bound = "anytime"\nstop_at_budget = 0.01'),
}
_HASHES = {
    "traces": ("batch = 4", 'batch = 4\ntraces = "hashes"'),
    "attacks": (TEXT[TEXT.index("[[attacks]]") :].format(), ""),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command that writes.

    Args:
        name: how a user calls it.
        act: calls it. Its first argument is the folder of the run, the second one holds the inputs.
        prepare: makes what must be there before.
        code: exit code of the undisturbed command.
    """

    name: str
    act: Callable[[Path, Path], Result]
    prepare: Callable[[Path, Path], object] = lambda run, inputs: None
    code: int = 0


def invoke(*words: object) -> Result:
    """Call `ccfs` in this process. A bug goes on as it is, a death too."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _run(run: Path, inputs: Path, protocol: str = "protocol.toml") -> Result:
    return invoke("run", inputs / protocol, "-o", run, "--workers", 1)


def _run_only(run: Path, inputs: Path) -> None:
    run_protocol(load_protocol(inputs / "protocol.toml"), run, serial_engine(), where="protocol.toml")


def _image(run: Path, inputs: Path, *more: object) -> Result:
    words = ["--dataset", inputs / "images.npz", "--model", "image_runs:network", "--sigma", 0.3, "--n0", 20]
    return invoke("image", "certify", *words, "--n", 100, "--threshold", 0.5, "-o", run, *more)


def _train(run: Path, inputs: Path) -> Result:
    configs = (config_with(total_steps=400),)
    plan = Plan(configs=configs, milestones=(200, 400), folder=run)
    with (
        mock.patch("ccfs.cli.train._plan", return_value=plan),
        mock.patch.object(training, "make_environments", make),
        # The learning curve holds times. They are the only part of a checkpoint that may differ.
        mock.patch.object(state.time, "perf_counter", iter(range(10**9)).__next__),
    ):
        return invoke("train")


COMMANDS = (
    Command("run", _run),
    Command("run, stopping early", lambda run, inputs: _run(run, inputs, "anytime.toml")),
    Command("run, hashes only", lambda run, inputs: _run(run, inputs, "hashes.toml")),
    Command("certify", lambda run, inputs: invoke("certify", run), _run_only),
    Command("report", lambda run, inputs: invoke("report", run), _run),
    Command("sign", lambda run, inputs: invoke("sign", run, "--key", inputs / "key"), _run),
    Command("image certify", _image),
    Command("image certify, more images", _image, lambda run, inputs: _image(run, inputs, "--images", 2)),
    Command("image report", lambda run, inputs: invoke("image", "report", run, "--trust"), _image),
    Command("train", _train),
)


def make_inputs(folder: Path) -> Path:
    """Write what the commands read: a protocol of two batches per arm and attack, and three images."""
    folder.mkdir(parents=True)
    (folder / "protocol.toml").write_text(text(trials=8, one=_ONE_ARM))
    (folder / "anytime.toml").write_text(text(trials=64, one=_ONE_ARM, **_ANYTIME))
    (folder / "hashes.toml").write_text(text(trials=8, one=_ONE_ARM, **_HASHES))
    (folder / "key").write_text(ADA)
    pictures = np.random.default_rng(0).integers(0, 256, (3, 4, 4, 2), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pictures, labels=np.array([0, 1, 2]))
    if str(SUPPORT) not in sys.path:
        sys.path.append(str(SUPPORT))
    return folder


class Bench:
    """One command with its inputs, its beginning and its undisturbed end."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.command, self.inputs = command, make_inputs(folder / "inputs")
        self.begin, self.top = folder / "begin", folder / "top"
        self.begin.mkdir()
        # The folders above the run are new too: a power cut may take them.
        self.run = self.top / "new" / "run"
        self.top.mkdir()
        command.prepare(self.run, self.inputs)
        shutil.copytree(self.top, self.begin, dirs_exist_ok=True)
        self.disk = self._watched(None, -1)[0]
        self.end = contents(self.run)

    def fresh(self) -> Result:
        """Call the command on its beginning."""
        shutil.rmtree(self.top)
        shutil.copytree(self.begin, self.top)
        return self.command.act(self.run, self.inputs)

    def moments(self, fault: Fault) -> int:
        """Return how many moments there are at which a fault can happen."""
        return sum(can_happen(fault, operation) for operation in self.disk.done)

    def broken(self, fault: Fault, moment: int) -> list[str]:
        """Let the disk fail once, call the command again, and return what is wrong then."""
        wrong = []
        disk, result = self._watched(fault, moment)
        if not disk.has_failed:
            return ["the fault did not happen"]
        if result is not None:
            wrong += _complaints(result)
        if fault.loses_data:
            disk.cut_power(fault, seed=moment)
        # What the first call did not sync is still in danger, until the second one does.
        again = Disk(self.top, before=None if fault.loses_data else disk)
        with again.watched():
            result = self.command.act(self.run, self.inputs)
        if result.exit_code != self.command.code:
            return [*wrong, f"the second call ended with {result.exit_code}: {result.output.strip()}"]
        wrong += _differences("after the second call", contents(self.run), self.end)
        again.cut_power(Fault.POWER)
        return wrong + _differences("after a power cut at the end", contents(self.run), self.end)

    def _watched(self, fault: Fault | None, moment: int) -> tuple[Disk, Result | None]:
        shutil.rmtree(self.top)
        shutil.copytree(self.begin, self.top)
        disk, result = Disk(self.top, fault, moment), None
        with disk.watched():
            result = self.command.act(self.run, self.inputs)
        return disk, result


def _complaints(result: Result) -> list[str]:
    """Say what is wrong with the answer to a failing disk. Right is one sentence, after the list of trusted code."""
    said = [line for line in result.stderr.splitlines() if not line.startswith("loads ")]
    if result.exit_code == 2 and len(said) == 1 and said[0].endswith("."):
        return []
    return [f"exit code {result.exit_code}, said {result.stderr!r}"]


def _differences(when: str, found: dict[str, bytes], wanted: dict[str, bytes]) -> list[str]:
    names = sorted(name for name in {**found, **wanted} if found.get(name) != wanted.get(name))
    return [f"{when} {name} differs" for name in names[:3]]
