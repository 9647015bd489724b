"""What an image run is: `run.json` names what was counted, and what was asked, from which all can be loaded again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ccfs.files.code import file_code_digest
from ccfs.files.documents import OPTIONAL, Document, DocumentError, Table
from ccfs.files.imports import files_behind
from ccfs.files.reading import limits
from ccfs.images.bands import load_band
from ccfs.images.counts import CountTable, RunKey, read_counts
from ccfs.images.data import Images, LazyImages, load_images
from ccfs.images.filters import ConfidenceFilter, Filter, NoFilter
from ccfs.images.forms import folded, fused, quantized
from ccfs.images.networks import ZOO, importable_here, load_checkpoint, load_model, load_shipped
from ccfs.images.sources import KNOWN, load_source
from ccfs.protocol.tables import Name
from ccfs.runs.store import RunError, Store

if TYPE_CHECKING:
    from torch import nn

    from ccfs.images.smoother import Network

__all__ = ["COUNTS", "HEAD", "Asked", "ImageRun", "image_store", "joined", "ranges", "read_run", "read_table"]

HEAD = "run.json"
COUNTS = "counts.parquet"


class Asked(Table):
    """What `ccfs image certify` was asked for: images, network and filter. A worker loads them again from it."""

    dataset: str = Field(
        description="Where the images come from: mnist, cifar10, cifar10.1, cifar10.2, an .npz file or a folder."
    )
    split: Literal["train", "test"] = Field(default="test", description="Which part of the images.")
    data: Path | None = Field(default=None, description="Folder with the files of a known data set. Null: the cache.")
    size: int | None = Field(default=None, ge=1, description="Pixels per side of the pictures of a folder.")
    classes: int | None = Field(
        default=None, ge=2, le=100_000, description="Number of labels of the network, if it has more than the images."
    )
    network: Name | None = Field(default=None, description="Name of a shipped network.")
    model: str | None = Field(
        default=None, description="A network of the user's: package.module:factory, a TorchScript or an ONNX file."
    )
    declared: str | None = Field(
        default=None,
        description="What the network is, if `model` gives a plain function, which has no weights to hash.",
        json_schema_extra=OPTIONAL,
    )
    checkpoint: Path | None = Field(
        default=None, description="File with weights: of a public CIFAR ResNet, or for the network of `model`."
    )
    arch: str | None = Field(default=None, description="Architecture of the checkpoint, if it does not say.")
    int8: bool = Field(default=False, description="Whether the 8-bit form of the network was counted.")
    precision: Literal["as it is", "float64", "float32", "bfloat16", "float16"] = Field(
        default="as it is", description="Number format of the weights. Another one is another network."
    )
    device: str = Field(default="cpu", description="The torch device that counted.")
    filter: Literal["none", "confidence", "band"] = Field(default="confidence", description="The filter.")
    threshold: float = Field(default=0.9, ge=0.0, lt=1.0, description="Threshold of the confidence filter.")
    band: Path | None = Field(default=None, description="Band file, for the filter `band`.")
    sigma: float = Field(gt=0.0, description="Noise scale, in units of a pixel in [0, 1].")

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        content: dict[str, object] = handler(self)
        # A key that is not given is left out, so that it changes those runs only that give it.
        if self.declared is None:
            content.pop("declared", None)
        return content

    @model_validator(mode="after")
    def _complete(self) -> Asked:
        if self.network is not None and (self.model or self.checkpoint):
            raise ValueError("name a shipped network, or a model or checkpoint of yours, not both")
        if self.network is None and self.model is None and self.checkpoint is None:
            raise ValueError("name a network: a shipped one, a model or a checkpoint")
        if (self.filter == "band") != (self.band is not None):
            raise ValueError("the filter `band` and a band file go together")
        if self.int8 and self.network is None:
            raise ValueError("the 8-bit form is made from shipped networks only")
        if self.int8 and (self.precision != "as it is" or self.device != "cpu"):
            raise ValueError("the 8-bit form runs on the CPU and has no other precision")
        return self

    @property
    def variant(self) -> str:
        """The filter variant that the certificates are about."""
        return {"none": "none", "band": "projected-band", "confidence": f"confidence>{self.threshold:g}"}[self.filter]

    @property
    def title(self) -> str:
        """The network's name for people."""
        name = self.network or (self.checkpoint.name if self.checkpoint is not None else None)
        name = f"{self.model} {name or ''}".strip() if self.model is not None else str(name)
        notes = ["8-bit"] if self.int8 else [self.precision] if self.precision != "as it is" else []
        return f"{name} ({notes[0]})" if notes else name

    @property
    def foreign(self) -> tuple[str, ...]:
        """What the description names outside of the package and the cache. To load it, a stranger's needs trust."""
        named = {"model": self.model, "checkpoint": self.checkpoint, "band": self.band}
        return (*(f"{key}: {value}" for key, value in named.items() if value is not None), *self.foreign_images)

    @property
    def foreign_images(self) -> tuple[str, ...]:
        """What of `foreign` are images."""
        named = {"dataset": None if self.dataset in KNOWN else self.dataset, "data": self.data}
        return tuple(f"{key}: {value}" for key, value in named.items() if value is not None)

    def files(self) -> dict[str, Path]:
        """Return the files that decide network and filter, by their key here."""
        script = Path(self.model) if self.model is not None and ":" not in self.model else None
        named = {"checkpoint": self.checkpoint, "band": self.band, "model": script}
        return {name: path for name, path in named.items() if path is not None}

    def code(self) -> dict[str, str]:
        """Return the digest of each file of the user's own code that builds the network."""
        if self.model is None or ":" not in self.model:
            return {}
        with importable_here():
            return {name: file_code_digest(path) for name, path in files_behind(self.model, "ccfs").items()}

    def image_set(self) -> Images:
        """Load the images, with as many classes as the network has."""
        images = load_source(self.dataset, self.split, data=self.data, size=self.size)
        return images if self.classes is None else _with_classes(images, self.classes)

    def rule(self) -> Filter:
        """Build the filter. A confidence filter also counts the variant `none`, in the same model calls."""
        if self.filter == "none":
            return NoFilter()
        if self.band is None:
            return ConfidenceFilter(0.0, self.threshold) if self.threshold else ConfidenceFilter(0.0)
        return load_band(self.band)

    def model_of(self) -> Network:
        """Load the network in the form that the run counts, on its device."""
        made = self._plain()
        if self.precision == "as it is" and self.device == "cpu":
            return made
        import torch

        if not isinstance(made, torch.nn.Module):
            raise TypeError(f"`{self.model}` gives a plain function, which has no precision and no device to choose.")
        kind = None if self.precision == "as it is" else getattr(torch, self.precision)
        return made.to(device=self.device, dtype=kind)

    def float_form(self) -> nn.Module:
        """Load the shipped network as it was trained, from which the 8-bit form is made. It has gradients."""
        return folded(load_shipped(str(self.network)))

    def _plain(self) -> Network:
        if self.model is not None:
            return load_model(self.model, weights=self.checkpoint)
        if self.checkpoint is not None:
            return folded(load_checkpoint(self.checkpoint, arch=self.arch))
        network = load_shipped(str(self.network))
        if self.int8:
            return self._int8(network)
        # The fused form uses oneDNN, which is for single precision on a CPU.
        is_usual = self.device == "cpu" and self.precision in ("as it is", "float32")
        return fused(network, 28 if self.dataset == "mnist" else 32) if is_usual else folded(network)

    def _int8(self, network: nn.Module) -> nn.Module:
        """Return the 8-bit form, calibrated on the first 500 training images with fixed noise."""
        import torch

        recipe = json.loads((ZOO / str(self.network) / "card.json").read_text(encoding="utf-8"))["recipe"]
        training = load_images(recipe["dataset"], "train", self.data).images[:500]
        # Fixed noise, so that a continued run gets the same network with the same digest.
        noise = np.random.default_rng(0).standard_normal(training.shape, dtype=np.float32)
        noisy = training.astype(np.float32) / np.float32(255.0) + np.float32(self.sigma) * noise
        return quantized(network, torch.from_numpy(noisy).permute(0, 3, 1, 2))


def _with_classes(images: Images, count: int) -> Images:
    """Return images with further, unused class names up to `count`."""
    if count < len(images.classes):
        raise ValueError(f"`classes` must be at least {len(images.classes)}, the labels of the images, got {count}.")
    names = (*images.classes, *(str(label) for label in range(len(images.classes), count)))
    # The digest of the images does not name their classes. The number of labels is in the key of a run.
    return LazyImages(name=images.name, labels=images.labels, classes=names, digest=images.digest, load=images.center)


class ImageRun(Document):
    """The head of an image run: the key of its counts, which images it has, and what was asked."""

    format: Literal["ccfs/image-run/2"] = Field(
        default="ccfs/image-run/2", description="Kind and version of this document."
    )
    key: RunKey = Field(description="What the counts are counts of.")
    images: tuple[tuple[int, int], ...] = Field(
        description="Which images, as ranges of positions in the data set. The second number is not included."
    )
    asked: Asked | None = Field(
        description="From what images, network and filter can be loaded again. Null for objects of a Python program."
    )

    @model_validator(mode="after")
    def _has_ranges(self) -> ImageRun:
        ends = [0, *(end for pair in self.images for end in pair)]
        if ends != sorted(ends) or any(first == stop for first, stop in self.images):
            raise ValueError("`images` must be ascending ranges that are not empty")
        total = sum(stop - first for first, stop in self.images)
        if total > limits().rows:
            raise ValueError(f"`images` must be at most {limits().rows:,} images, got {total:,}")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 that names the run. It does not change when a run grows by more images."""
        return self.key.hash

    @property
    def indices(self) -> tuple[int, ...]:
        """Positions of the images, ascending."""
        return tuple(index for first, stop in self.images for index in range(first, stop))

    @property
    def variant(self) -> str:
        """The filter variant that the certificates are about: the last one."""
        return self.key.variants[-1]


def ranges(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Return different integers as ascending ranges without their ends.

    >>> ranges([5, 1, 2, 3])
    ((1, 4), (5, 6))
    """
    found: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if found and found[-1][1] == index:
            found[-1] = (found[-1][0], index + 1)
        else:
            found.append((index, index + 1))
    return tuple(found)


def joined(former: ImageRun, run: ImageRun, *, where: Path) -> ImageRun:
    """Return a run that has the images of both. Each image has its own noise, so the counts of the others stay valid.

    Raises:
        RunError: they are counts of different things.
    """
    if former.key != run.key:
        changed = [name for name in RunKey.model_fields if getattr(former.key, name) != getattr(run.key, name)]
        raise RunError(f"{where}: belongs to another run: {', '.join(changed)} differ. Use another folder.")
    asked = run.asked if former.asked is None else former.asked
    return ImageRun(key=run.key, images=ranges((*former.indices, *run.indices)), asked=asked)


def image_store(folder: Path) -> Store:
    """Return the store of an image run."""
    return Store(folder, head=HEAD)


def read_run(folder: Path) -> ImageRun:
    """Read `run.json`."""
    store = image_store(folder)
    if not store.is_run:
        raise ValueError(f"{folder} is no image run: it has no {HEAD}. `ccfs image certify` makes one.")
    try:
        return ImageRun.from_bytes(store.read(HEAD), where=str(store.path(HEAD)))
    except DocumentError as error:
        raise ValueError(str(error)) from None


def read_table(folder: Path) -> tuple[ImageRun, CountTable]:
    """Read a run with its counts, which must belong together."""
    run, table = read_run(folder), read_counts(folder / COUNTS)
    if table.key != run.key:
        raise ValueError(f"{folder / COUNTS} holds counts of another run than {HEAD}.")
    return run, table
