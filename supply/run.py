"""What CCFS is made of: lock every package with its hashes, build the same bytes twice, list parts and weak spots.

    python supply/run.py lock      # write the lock files anew, after a pin has changed
    python supply/run.py dist      # build wheel and sdist twice, compare them byte by byte, keep them in dist/
    python supply/run.py check     # SBOM, licences and known vulnerabilities of what is installed, in build/supply/

`make lock`, `make dist` and `make supply` call this in an environment of its own, with the tools of tools.txt.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUT = ROOT / "build" / "supply"
# torch is left out, with its CUDA companions: people install the build for their processor or graphics card, and each
# build has hashes of its own. `make setup` pins its version.
NOT_LOCKED = ("torch", "triton", "nvidia-", "cuda-")
TOOLS = ("uv", "pip-audit", "cyclonedx-bom", "build", "setuptools", "wheel")
# Their own requirements exclude the versions that we use, so pip must not follow them.
APART = ("safety-gymnasium==1.0.0", "gymnasium-robotics==1.2.2", "omnisafe==0.5.0")
# Lists that are complete, so that only hashes are added.
COMPLETE = {
    "full-3.11": "requirements.txt",
    "modern": "requirements-modern.txt",
    "site": "docs/requirements.txt",
}
EXTRAS = ("safety", "omnisafe", "sb3", "onnx", "torch", "cluster", "minari", "dev")


def lock() -> None:
    """Write every lock file. It needs a network."""
    core = [*_requirements(None), "pytest", "hypothesis", "mpmath", "setuptools", "wheel"]
    _lock("core", core, "--universal", "--python-version", "3.10")
    _lock("tools", TOOLS, "--universal", "--python-version", "3.10")
    for name, source in COMPLETE.items():
        _lock(name, _pins(ROOT / source), "--no-deps", "--python-version", "3.11.7")
    # The pins of requirements.txt were tried on 3.11, and some of them have no release for 3.10.
    extras = [line for extra in EXTRAS for line in _requirements(extra)]
    wanted = [*_requirements(None), *extras, "sb3-contrib", "setuptools", "wheel"]
    resolved = _compiled(wanted, "--python-version", "3.10")
    apart = _compiled(APART, "--no-deps", "--python-version", "3.10")
    _write("full-3.10", resolved + apart)


def _requirements(extra: str | None) -> list[str]:
    """Return what pyproject.toml asks for, in the core or in an extra."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    return [line for line in found if not line.startswith("ccfs-rl[")]


def _pins(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _lock(name: str, wanted: list[str] | tuple[str, ...], *options: str) -> None:
    _write(name, _compiled(wanted, *options))


def _compiled(wanted: list[str] | tuple[str, ...], *options: str) -> str:
    """Return the wanted packages, and with a resolution all that they need, with the hashes of all their files."""
    command = ["uv", "pip", "compile", "-", "--quiet", "--no-header", "--no-annotate", "--generate-hashes"]
    # No address of a registry belongs into the files. Everybody uses the one that they have set.
    command += ["--no-emit-index-url", "--no-emit-find-links", "--no-config", *options]
    done = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    # A package begins at the left edge, its hashes are indented.
    entries = re.split(r"^(?=[A-Za-z0-9])", done.stdout, flags=re.MULTILINE)
    return "".join(entry for entry in entries if entry and not _is_apart(entry.partition("==")[0].lower()))


def _is_apart(name: str) -> bool:
    return any(name.startswith(start) if start.endswith("-") else name == start for start in NOT_LOCKED)


def _write(name: str, content: str) -> None:
    head = "# Written by `make lock`. pip checks every file that it installs against these hashes. torch is not here.\n"
    (HERE / f"{name}.txt").write_text(head + content, encoding="utf-8")
    print(f"supply/{name}.txt: {content.count('==')} packages")


def dist() -> None:
    """Build twice, in folders with other names, times and permissions, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = (build(ROOT, Path(folder) / name, mask) for name, mask in (("a", 0o022), ("other", 0o077)))
        if [path.read_bytes() for path in first] != [path.read_bytes() for path in second]:
            raise SystemExit("Two builds of the same commit differ.")
        (ROOT / "dist").mkdir(exist_ok=True)
        for path in first:
            shutil.copy(path, ROOT / "dist" / path.name)
            print(f"dist/{path.name}: the same bytes twice")


def build(root: Path, folder: Path, mask: int = 0o022) -> list[Path]:
    """Build sdist and wheel of what git tracks in `root`, and return both. The same sources give the same bytes."""
    before = os.umask(mask)
    try:
        sources, out = folder / "sources", folder / "out"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (sources / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, sources / name)
                (sources / name).chmod(0o755 if os.access(root / name, os.X_OK) else 0o644)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(_epoch(root))}
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(sources)]
        done = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
        sdist.write_bytes(_settled(sdist.read_bytes(), _epoch(root)))
    finally:
        os.umask(before)
    return [sdist, wheel]


def _epoch(root: Path) -> int:
    """Return the time of the last commit. Without git, a day that any archive format knows."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.stdout.strip() else 315_532_800


def _settled(archive: bytes, epoch: int) -> bytes:
    """Return a tar.gz with its files in order, one time, no owners, and the permissions that git knows."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    return packed.getvalue()


def check() -> None:
    """Write the SBOM of the environment `.venv` and the licences of our pins, and ask for their vulnerabilities."""
    OUT.mkdir(parents=True, exist_ok=True)
    python = str(ROOT / ".venv" / "bin" / "python")
    words = ["cyclonedx-py", "environment", python, "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    subprocess.run([*words, "--output-reproducible", "--of", "JSON", "-o", str(OUT / "sbom.json")], check=True)
    stated = json.loads(subprocess.run([python, "-c", _STATED], capture_output=True, text=True, check=True).stdout)
    # What else somebody has installed beside it is in the SBOM, but not on the page.
    ours = {_plain(pin.partition("==")[0]) for pin in _pins(ROOT / "requirements.txt")}
    stated = sorted((each for each in stated if _plain(each[0]) in ours), key=lambda each: each[0].lower())
    lines = [f"| {name} | {_licence(*fields)} |\n" for name, _, *fields in stated]
    (HERE / "licences.md").write_text(_PAGE + "".join(lines), encoding="utf-8")
    print(f"build/supply/sbom.json, and supply/licences.md with {len(lines)} packages")
    # A local build such as 2.13.0+cpu is known by its public version.
    raise SystemExit(_vulnerabilities([f"{name}=={version.partition('+')[0]}" for name, version, *_ in stated]))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_STATED = """
import json
from importlib.metadata import distributions
print(json.dumps([
    [each.metadata["Name"], each.version, each.metadata["License-Expression"], each.metadata["License"],
     [line for line in each.metadata.get_all("Classifier", []) if line.startswith("License ::")]]
    for each in distributions() if each.metadata["Name"] != "ccfs-rl"
]))
"""
_PAGE = """# Licences

CCFS itself is under Apache-2.0. These are the packages that `make setup` installs for it, with the licence that each
one states. `make supply` writes this page, and `build/supply/sbom.json` with the versions (CycloneDX).

| package | licence |
|---|---|
"""


def _licence(expression: str | None, text: str | None, classifiers: list[str]) -> str:
    """Return the licence of a package as its metadata states it, in one short line."""
    named = ", ".join(line.rpartition(" :: ")[2] for line in classifiers if line.count("::") > 1)
    short = text if text and len(text) < 80 and "\n" not in text and text != "UNKNOWN" else ""
    return (expression or short or named or "not stated").replace("|", "/")


def _vulnerabilities(pins: list[str]) -> int:
    """Ask for known vulnerabilities of the installed versions. Say so if nobody answers."""
    if not any(package.get("vulns") for package in _asked([_CANARY])):
        print(
            "Vulnerabilities: NOT CHECKED. This machine cannot ask the database of pip-audit. We first ask about "
            f"{_CANARY}, an old release that is none of our packages, and no vulnerability of it came back. Run this "
            "where pypi.org can be reached."
        )
        return 0
    answered = [package for package in _asked(pins) if "skip_reason" not in package]
    accepted = {line.split()[0] for line in _pins(HERE / "accepted.txt")}
    found = [(package, each) for package in answered for each in package["vulns"]]
    for package, each in found:
        state = "accepted" if each["id"] in accepted else "VULNERABLE"
        mended = ", ".join(each["fix_versions"]) or "no release"
        print(f"{state}: {package['name']} {package['version']}: {each['id']}, mended in {mended}")
    news = [each for _, each in found if each["id"] not in accepted]
    print(f"Vulnerabilities: asked about {len(answered)} of {len(pins)} packages, {len(found)} known, {len(news)} new.")
    return 1 if news else 0


# A release with vulnerabilities that were published years ago, and no package of ours. Without a network, or through
# a mirror that has none of them, pip-audit may answer that there are none. Whoever does not report these knows none.
_CANARY = "jinja2==2.4.1"


def _asked(pins: list[str]) -> list[dict[str, Any]]:
    wanted, answer = OUT / "installed.txt", OUT / "vulnerabilities.json"
    wanted.write_text("\n".join(pins) + "\n", encoding="utf-8")
    answer.unlink(missing_ok=True)
    command = ["pip-audit", "-r", str(wanted), "--no-deps", "--disable-pip", "--format", "json", "-o", str(answer)]
    subprocess.run(command, capture_output=True, check=False)
    packages: list[dict[str, Any]] = json.loads(answer.read_text())["dependencies"] if answer.exists() else []
    return packages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lock", "dist", "check"))
    {"lock": lock, "dist": dist, "check": check}[parser.parse_args().what]()
