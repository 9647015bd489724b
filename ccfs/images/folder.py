"""What an image run is: `run.json` names what was counted, and what was asked, from which all can be loaded again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field, model_validator

from ccfs.files.documents import Document, DocumentError, Table
from ccfs.images.bands import load_band
from ccfs.images.counts import CountTable, RunKey, read_counts
from ccfs.images.data import ImageSet, load_images
from ccfs.images.filters import ConfidenceFilter, Filter, NoFilter
from ccfs.images.forms import folded, fused, quantized
from ccfs.images.networks import load_checkpoint, load_shipped
from ccfs.runs.store import RunError, Store

if TYPE_CHECKING:
    from torch import nn

__all__ = ["COUNTS", "HEAD", "Asked", "ImageRun", "image_store", "joined", "ranges", "read_run", "read_table"]

HEAD = "run.json"
COUNTS = "counts.parquet"


class Asked(Table):
    """What `ccfs image certify` was asked for: images, network and filter. A worker loads them again from it."""

    dataset: Literal["mnist", "cifar10", "cifar10.1", "cifar10.2"] = Field(description="Where the images come from.")
    split: Literal["train", "test"] = Field(default="test", description="Which part of the images.")
    data: Path | None = Field(default=None, description="Folder with the data files. Null means the cache.")
    network: str | None = Field(default=None, description="Name of a shipped network.")
    checkpoint: Path | None = Field(default=None, description="File of a public checkpoint, instead of `network`.")
    arch: str | None = Field(default=None, description="Architecture of the checkpoint, if it does not say.")
    int8: bool = Field(default=False, description="Whether the 8-bit form of the network was counted.")
    filter: Literal["none", "confidence", "band"] = Field(default="confidence", description="The filter.")
    threshold: float = Field(default=0.9, ge=0.0, lt=1.0, description="Threshold of the confidence filter.")
    band: Path | None = Field(default=None, description="Band file, for the filter `band`.")
    sigma: float = Field(gt=0.0, description="Noise scale, in units of a pixel in [0, 1].")

    @model_validator(mode="after")
    def _complete(self) -> Asked:
        if (self.network is None) == (self.checkpoint is None):
            raise ValueError("name a shipped network or a checkpoint, not both and not neither")
        if (self.filter == "band") != (self.band is not None):
            raise ValueError("the filter `band` and a band file go together")
        if self.int8 and self.network is None:
            raise ValueError("the 8-bit form is made from shipped networks only")
        return self

    @property
    def variant(self) -> str:
        """The filter variant that the certificates are about."""
        return {"none": "none", "band": "projected-band", "confidence": f"confidence>{self.threshold:g}"}[self.filter]

    @property
    def title(self) -> str:
        """The network's name for people."""
        name = str(self.network) if self.checkpoint is None else self.checkpoint.name
        return f"{name} (8-bit)" if self.int8 else name

    def files(self) -> dict[str, Path]:
        """Return the files that decide network and filter, by their key here."""
        named = {"checkpoint": self.checkpoint, "band": self.band}
        return {name: path for name, path in named.items() if path is not None}

    def code(self) -> dict[str, str]:
        """Return the digest of each file of the user's own code that builds the network."""
        return {}

    def image_set(self) -> ImageSet:
        """Load the images."""
        return load_images(self.dataset, self.split, self.data)

    def rule(self) -> Filter:
        """Build the filter. A confidence filter also counts the variant `none`, in the same model calls."""
        if self.filter == "none":
            return NoFilter()
        if self.band is None:
            return ConfidenceFilter(0.0, self.threshold) if self.threshold else ConfidenceFilter(0.0)
        return load_band(self.band)

    def model(self) -> nn.Module:
        """Load the network in the form that the run counts."""
        if self.checkpoint is not None:
            return folded(load_checkpoint(self.checkpoint, arch=self.arch))
        network = load_shipped(str(self.network))
        return self._int8(network) if self.int8 else fused(network, 28 if self.dataset == "mnist" else 32)

    def _int8(self, network: nn.Module) -> nn.Module:
        """Return the 8-bit form, calibrated on the first 500 training images with fixed noise."""
        import torch

        training = load_images(self.dataset, "train", self.data).images[:500]
        # Fixed noise, so that a continued run gets the same network with the same digest.
        noise = np.random.default_rng(0).standard_normal(training.shape, dtype=np.float32)
        noisy = training.astype(np.float32) / np.float32(255.0) + np.float32(self.sigma) * noise
        return quantized(network, torch.from_numpy(noisy).permute(0, 3, 1, 2))


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
