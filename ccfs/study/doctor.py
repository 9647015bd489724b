"""Say what is installed, what works on this machine, and what to type to mend the rest."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Literal

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pydantic import Field

from ccfs.files.documents import Document, Table

__all__ = ["Check", "Diagnosis", "diagnosis", "distribution", "missing_requirements"]

# The first is the name of the distribution on PyPI, where `ccfs` belongs to another project.
_NAMES = ("ccfs-rl", "ccfs")
State = Literal["works", "missing", "broken"]
# Safety-Gymnasium's own pins do not install beside the others, so these two go in without their dependencies.
WITHOUT_DEPENDENCIES = {
    "safety": ("safety-gymnasium==1.0.0", "gymnasium-robotics==1.2.2"),
    "omnisafe": ("omnisafe==0.5.0",),
}
_USES = {
    "safety": "Safety-Gymnasium tasks",
    "omnisafe": "OmniSafe agents",
    "sb3": "Stable-Baselines3 models",
    "onnx": "ONNX policies",
    "torch": "image certification and torch policies",
    "cluster": "`ccfs run --cluster`",
    "minari": "`ccfs export --minari`",
    "dev": "working on CCFS itself",
}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "firefox")
# Each runs in a process of its own, because a driver that is missing may end the process.
_FAST = """
import warnings
warnings.simplefilter("error")
from ccfs.envs.safety.selftest import passes
assert passes("SafetyPointGoal2-v0")
"""
_PICTURE = """
import ccfs.envs
env = ccfs.envs.make("SafetyPointGoal1-v0", fast=False, render_mode="rgb_array", width=64, height=64)
env.reset(seed=2147483647)
assert env.render().std() > 0
"""
_SECONDS = 180


class Check(Table):
    """One thing that was looked at."""

    name: str = Field(description="What was looked at.")
    state: State = Field(description='"missing" is not installed and may be unneeded. "broken" is there and fails.')
    detail: str = Field(description="What was found.")
    mend: tuple[str, ...] = Field(description="What to type, one command per entry. Empty if nothing is to do.")


class Diagnosis(Document):
    """What is installed, what works, and what to type."""

    format: Literal["ccfs/doctor/1"] = Field(default="ccfs/doctor/1", description="Kind and version of this document.")
    version: str = Field(description="Version of CCFS.")
    python: str = Field(description="Version of Python.")
    platform: str = Field(description="Operating system and processor.")
    checks: tuple[Check, ...] = Field(description="Everything that was looked at.")

    @property
    def is_sound(self) -> bool:
        """Whether the core works and nothing that is installed fails."""
        return not any(check.state == "broken" for check in self.checks)


def distribution() -> str:
    """Return the name under which this package is installed: its own, or that of an older checkout."""
    for name in _NAMES:
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name
    raise RuntimeError("CCFS must be installed to be looked at: pip install FOLDER_OF_CCFS")


def diagnosis(*, cluster: str | None = None, is_quick: bool = False) -> Diagnosis:
    """Look at everything.

    Args:
        cluster: address of a Dask scheduler to try.
        is_quick: whether to leave out what takes seconds, the fast environments and the renderer.
    """
    return Diagnosis(
        version=importlib.metadata.version(distribution()),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        checks=tuple(_checks(cluster, is_quick=is_quick)),
    )


def _checks(cluster: str | None, *, is_quick: bool) -> Iterator[Check]:
    yield _python()
    yield _core()
    yield _arithmetic()
    yield _zoo()
    for extra in sorted(_extras()):
        yield _extra(extra)
    has_safety = not missing_requirements("safety") and not _absent(WITHOUT_DEPENDENCIES["safety"])
    if has_safety and not is_quick:
        yield _tried(
            "fast Safety-Gymnasium", _FAST, "gives the bits of stock on this machine", "uses stock, which is slower"
        )
        yield _tried(
            "renderer", _PICTURE, "renders off-screen", "reports have no picture. On Debian: EGL or OSMesa", _GL
        )
    yield _browser()
    if cluster is not None:
        yield _scheduler(cluster)


def _python() -> Check:
    wanted = importlib.metadata.metadata(distribution())["Requires-Python"] or ""
    is_right = platform.python_version() in SpecifierSet(wanted, prereleases=True)
    detail = f"{platform.python_version()}, {wanted} is supported"
    return Check(name="Python", state="works" if is_right else "broken", detail=detail, mend=())


def _core() -> Check:
    missing = missing_requirements(None)
    if not missing:
        return Check(name="core packages", state="works", detail="all at versions that are supported", mend=())
    return Check(name="core packages", state="broken", detail=f"wanted: {', '.join(missing)}", mend=(_pip(missing),))


def _arithmetic() -> Check:
    """Recompute a number of the paper's table with Arb, so that a broken python-flint shows."""
    from ccfs.certificates.trajectory import budget

    try:
        found = budget(0.6938, 0.5, sigma=0.2, kappa=1.05)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        return Check(name="certified arithmetic", state="broken", detail=detail, mend=(_pip(["python-flint"]),))
    is_right = found is not None and f"{found:.4f}" == "0.0989"
    return Check(
        name="certified arithmetic",
        state="works" if is_right else "broken",
        detail=f"the budget of the paper's first row is {found}",
        mend=() if is_right else (_pip(["python-flint"]),),
    )


def _zoo() -> Check:
    from ccfs.controllers import zoo

    try:
        names = [zoo.load(name).card.name for name in zoo.names()]
    except ValueError as error:
        return Check(name="shipped agents", state="broken", detail=str(error), mend=(_again(),))
    return Check(name="shipped agents", state="works", detail=f"{len(names)} match their cards", mend=())


def _extra(name: str) -> Check:
    missing, apart = missing_requirements(name), _absent(WITHOUT_DEPENDENCIES.get(name, ()))
    use = _USES.get(name, "")
    if not (missing or apart):
        return Check(name=f"extra {name}", state="works", detail=f"installed, for {use}", mend=())
    commands = [_pip([*missing, *_kept()])] if missing else []
    commands += [_pip(apart, "--no-deps")] if apart else []
    detail = f"not complete, for {use}"
    if name in WITHOUT_DEPENDENCIES and sys.version_info >= (3, 12):
        detail, commands = f"needs Python 3.10 or 3.11, for {use}", []
    return Check(name=f"extra {name}", state="missing", detail=detail, mend=tuple(commands))


def _extras() -> set[str]:
    return set(importlib.metadata.metadata(distribution()).get_all("Provides-Extra") or ())


def _kept() -> list[str]:
    """Return the pins of the extras that work here. Without them, pip would break one extra to install another."""
    working = (extra for extra in sorted(_extras()) if not missing_requirements(extra))
    wanted = dict.fromkeys(each for extra in working for each in _requirements(extra))
    return [str(each) for each in wanted if any(one.operator in ("==", "<") for one in each.specifier)]


def missing_requirements(extra: str | None) -> list[str]:
    """Return the requirements of an extra, or of the core, that are not met here, as the metadata writes them."""
    return [str(wanted) for wanted in _requirements(extra) if not _is_met(wanted)]


def _requirements(extra: str | None) -> list[Requirement]:
    """Return the requirements of an extra, or of the core, on this Python, without markers."""
    own = distribution()
    found: list[Requirement] = []
    for text in importlib.metadata.requires(own) or ():
        wanted = Requirement(text)
        environment = {key: str(value) for key, value in default_environment().items()}
        environment["extra"] = extra or ""
        is_of_core = "extra" not in str(wanted.marker or "")
        if (extra is None) != is_of_core or not (wanted.marker is None or wanted.marker.evaluate(environment)):
            continue
        if wanted.name == own:
            found += [inner for part in sorted(wanted.extras) for inner in _requirements(part)]
        else:
            wanted.marker = None
            found.append(wanted)
    return list(dict.fromkeys(found))


def _absent(requirements: tuple[str, ...]) -> list[str]:
    return [text for text in requirements if not _is_met(Requirement(text))]


def _is_met(wanted: Requirement) -> bool:
    try:
        version = importlib.metadata.version(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    # A build such as 2.13.0+cpu is the release 2.13.0.
    return wanted.specifier.contains(version.partition("+")[0], prereleases=True)


def _tried(name: str, code: str, works: str, fails: str, mend: tuple[str, ...] = ()) -> Check:
    """Run some code in a process of its own."""
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Check(name=name, state="broken", detail=f"took more than {_SECONDS} seconds: {fails}", mend=mend)
    if done.returncode == 0:
        return Check(name=name, state="works", detail=works, mend=())
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return Check(name=name, state="broken", detail=f"{said}: {fails}", mend=mend)


_GL = ("apt-get install libegl1 libosmesa6",)


def _browser() -> Check:
    found = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    if found is not None:
        return Check(name="browser", state="works", detail="there is one, for reports and the tests of pages", mend=())
    detail = "none on this machine. Reports are single files, so any browser elsewhere opens them"
    return Check(name="browser", state="missing", detail=detail, mend=("apt-get install chromium",))


def _scheduler(address: str) -> Check:
    from ccfs.runs.cluster import cluster_engine

    notes: list[str] = []
    try:
        engine = cluster_engine(address, say=lambda note: notes.append(note.removeprefix("note: ")))
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        return Check(name="cluster", state="broken", detail=str(error), mend=("dask scheduler",))
    try:
        return Check(name="cluster", state="works", detail=" ".join([f"{engine.name}.", *notes]), mend=())
    finally:
        engine.close()


def _pip(requirements: list[str], option: str = "") -> str:
    words = [part for part in (option, *(shlex.quote(text) for text in requirements)) if part]
    return f"{shlex.quote(sys.executable)} -m pip install {' '.join(words)}"


def _again() -> str:
    return f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps FOLDER_OF_CCFS"
