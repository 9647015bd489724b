"""The description of an image run, `run.json`, from which report and attack rebuild images, network and filter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ccfs.certificates.documents import DocumentError, read_document
from ccfs.files.atomic import write_atomically
from ccfs.images.bands import load_band
from ccfs.images.data import ImageSet, load_images
from ccfs.images.filters import ConfidenceFilter, Filter, NoFilter
from ccfs.images.forms import folded, fused, quantized
from ccfs.images.networks import load_checkpoint, load_shipped

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ImageRun", "read_run", "write_run"]


class ImageRun(BaseModel):
    """One run of `ccfs image certify`: images, network, filter, noise and sizes."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, json_schema_serialization_defaults_required=True
    )

    format: Literal["ccfs/image-run/1"] = Field(
        default="ccfs/image-run/1", description="Kind and version of this document."
    )
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
    images: int = Field(default=100, ge=1, description="How many images, from the first on.")
    n0: int = Field(default=100, ge=1, description="Selection proposals per image.")
    n: int = Field(default=1000, ge=1, description="Estimation proposals per image.")
    seed: int = Field(default=0, ge=0, description="Base seed.")

    @model_validator(mode="after")
    def _complete(self) -> ImageRun:
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


def write_run(folder: Path, run: ImageRun) -> None:
    """Write `run.json`, or raise ValueError if the folder belongs to another run."""
    path = folder / "run.json"
    if path.exists():
        former = read_run(folder)
        # A run may grow by more images. Each image has its own noise, so the counts of the others stay valid.
        if former.model_copy(update={"images": run.images}) != run:
            raise ValueError(f"{folder} belongs to another run: see {path.name}. Use another folder.")
    write_atomically(path, f"{run.model_dump_json(indent=1)}\n".encode())


def read_run(folder: Path) -> ImageRun:
    """Read `run.json`."""
    path = folder / "run.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a run of `ccfs image certify`: it has no run.json.")
    text = path.read_text(encoding="utf-8")
    try:
        read_document(text, str(ImageRun.model_fields["format"].default))
    except DocumentError as error:
        raise ValueError(f"{path}: {error}") from None
    return ImageRun.model_validate_json(text)
