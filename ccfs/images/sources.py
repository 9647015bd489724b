"""Images of any source: a known data set, an .npz file, a folder of pictures, or a data set of a Python program."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ccfs.files.digests import file_digest
from ccfs.images.data import DataError, Images, ImageSet, LazyImages, load_cifar10, load_idx, load_images
from ccfs.images.torch import extra

__all__ = ["KNOWN", "Dataset", "from_dataset", "load_folder", "load_npz", "load_source"]

KNOWN = ("mnist", "cifar10", "cifar10.1", "cifar10.2")
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})


class Dataset(Protocol):
    """What `torch.utils.data.Dataset` gives: pairs of an image (channels, height, width) in [0, 1] and a label."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[object, int]: ...


def load_source(source: str, split: str, *, data: Path | None = None, size: int | None = None) -> Images:
    """Load the images that a text names.

    Args:
        source: `mnist`, `cifar10`, `cifar10.1` or `cifar10.2`, an .npz file, or a folder. A folder holds idx files with
            MNIST's names, the binary or python batches of CIFAR-10, or one folder of pictures per class.
        split: `train` or `test`. An .npz file and a folder of pictures have one split only, which is `test`.
        data: folder with the files of a known data set. By default the cache.
        size: pixels per side that pictures of a folder are scaled and cropped to.
    """
    if source in KNOWN:
        return load_images(source, split, data)
    path = Path(source)
    if data is not None:
        raise ValueError("`data` goes with the name of a known data set. Give a file or folder as the data set alone.")
    if path.suffix == ".npz":
        return load_npz(path)
    if not path.is_dir():
        raise DataError(
            f"`dataset` must be {', '.join(KNOWN)}, an .npz file or a folder, got {source!r}. There is no such folder."
        )
    names = {file.name.removesuffix(".gz") for inner in ("", "raw", "MNIST/raw") for file in (path / inner).glob("*")}
    if {"t10k-images-idx3-ubyte", "train-images-idx3-ubyte"} & names:
        return load_idx(split, path)
    if any((path / inner / name).is_file() for inner in ("", "cifar-10-batches-bin") for name in ("test_batch.bin",)):
        return load_cifar10(split, path)
    if any((path / inner / "test_batch").is_file() for inner in ("", "cifar-10-batches-py")):
        return load_cifar10(split, path)
    return load_folder(path, size=size)


def load_npz(path: Path) -> ImageSet:
    """Load images and labels from an .npz file. Nothing in it is run.

    The arrays are called `images` and `labels`, `x` and `y`, or `x_test` and `y_test`. Images have the shape (count,
    height, width), (count, height, width, channels) or (count, channels, height, width). They are bytes, or real pixels
    in [0, 1]. The names of the classes may be in `classes`.
    """
    if not path.is_file():
        raise DataError(f"{path} is missing.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} must be an .npz file of plain arrays: {error}") from None
    for first, second in (("images", "labels"), ("x", "y"), ("x_test", "y_test"), ("data", "labels")):
        if first in arrays and second in arrays:
            images, labels = arrays[first], arrays[second].reshape(-1)
            break
    else:
        raise DataError(f"{path} must hold arrays `images` and `labels`, it holds {', '.join(arrays)}.")
    if not np.issubdtype(labels.dtype, np.integer) or len(labels) != len(images):
        raise DataError(f"{path}: `labels` must hold one integer per image, got {labels.dtype} {labels.shape}.")
    if len(labels) == 0:
        raise DataError(f"{path} must hold at least one image.")
    named = arrays.get("classes")
    classes = tuple(str(name) for name in (range(int(labels.max()) + 1) if named is None else named.tolist()))
    return ImageSet(
        name=path.stem, images=_channels_last(images, path), labels=labels.astype(np.int64), classes=classes
    )


def _channels_last(images: NDArray[np.generic], path: Path) -> NDArray[np.uint8] | NDArray[np.float32]:
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim == 4 and images.shape[3] not in (1, 3, 4) and images.shape[1] in (1, 3, 4):
        images = images.transpose(0, 2, 3, 1)
    if images.ndim != 4:
        raise DataError(f"{path}: `images` must have 3 or 4 dimensions, got {images.shape}.")
    if images.dtype == np.uint8:
        return np.ascontiguousarray(images, dtype=np.uint8)
    if np.issubdtype(images.dtype, np.floating):
        return np.ascontiguousarray(images, dtype=np.float32)
    raise DataError(f"{path}: `images` must be bytes or real pixels in [0, 1], got {images.dtype}.")


def load_folder(folder: Path, *, size: int | None = None) -> LazyImages:
    """Load pictures from one folder per class, as image-classification tools keep them.

    Classes are the sorted names of the folders. Pictures are read when they are needed. They have three channels, or
    one if all of them are grey.

    Args:
        folder: the folder of the class folders.
        size: scale the shorter side to 8/7 of this and crop the center, as is usual for ImageNet. Without it all
            pictures must have one size.
    """
    image_module = extra("PIL.Image", "torch")
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted((folder / name).rglob("*"))
        if file.suffix.lower() in _PICTURES
    ]
    if not files or len(classes) < 2:
        raise DataError(
            f"{folder} must hold one folder of pictures per class, at least two classes, got {len(classes)} folders "
            f"and {len(files)} pictures."
        )

    def opened(file: Path, wanted: str | None = None) -> Any:
        try:
            # Read first, so that a lazy decoder keeps no file open.
            picture = image_module.open(io.BytesIO(file.read_bytes()))
            return picture if wanted is None else picture.convert(wanted)
        except Exception as error:  # a decoder may raise anything
            raise DataError(f"{file} cannot be read as a picture: {error}") from None

    # Opening reads the head only. It stops at the first picture with colours.
    mode = "L" if all(opened(file).mode in ("1", "L") for file, _ in files) else "RGB"
    summary = hashlib.sha256(f"folder size {size}{' grey' if mode == 'L' else ''}".encode())
    for file, label in files:
        summary.update(f"{label} {file.relative_to(folder).as_posix()} {file_digest(file)}\n".encode())

    def load(index: int) -> NDArray[np.uint8]:
        picture = opened(files[index][0], mode)
        if size is not None:
            scale = size * 8 / 7 / min(picture.size)
            wide = [max(size, round(side * scale)) for side in picture.size]
            picture = picture.resize(wide, image_module.Resampling.BILINEAR)
            left, top = (wide[0] - size) // 2, (wide[1] - size) // 2
            picture = picture.crop((left, top, left + size, top + size))
        pixels = np.asarray(picture, dtype=np.uint8)
        return pixels[..., np.newaxis] if mode == "L" else pixels

    return LazyImages(
        name=folder.name,
        labels=[label for _, label in files],
        classes=classes,
        digest=summary.hexdigest(),
        load=load,
    )


def from_dataset(dataset: Dataset, classes: Sequence[str], *, name: str, digest: str | None = None) -> LazyImages:
    """Return the images of a data set of torch, torchvision or your own. They are loaded when they are needed.

    Args:
        dataset: pairs of an image and a label. The image is a tensor or array (channels, height, width) with pixels in
            [0, 1], not normalised. `ToTensor()` alone gives that.
        classes: the name of each label.
        name: name in stored counts.
        digest: SHA-256 over all that decides pixels and labels. Without it every image is loaded once to compute it.
    """

    def load(index: int) -> NDArray[np.float32]:
        image = np.asarray(dataset[index][0])
        if image.ndim != 3 or not np.issubdtype(image.dtype, np.floating):
            raise DataError(
                f"image {index} of `dataset` must be real pixels (channels, height, width), got {image.dtype} "
                f"{image.shape}. Use torchvision's ToTensor()."
            )
        return np.ascontiguousarray(image.transpose(1, 2, 0), dtype=np.float32)

    # torchvision keeps the labels apart, so that nothing must be decoded to know them.
    kept = getattr(dataset, "targets", None)
    labels = [int(label) for label in (kept if kept is not None else (dataset[i][1] for i in range(len(dataset))))]
    summary = hashlib.sha256()
    for index in range(len(dataset)) if digest is None else ():
        image = load(index)
        summary.update(f"{image.shape} {labels[index]}".encode() + image.tobytes())
    return LazyImages(name=name, labels=labels, classes=tuple(classes), digest=digest or summary.hexdigest(), load=load)
