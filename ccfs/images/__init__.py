"""Image classifiers behind a filter: networks, noise, counts and runs. The radii are in `ccfs.certificates.images`."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccfs.images.bands import Band, ProjectedBand
    from ccfs.images.counts import CountRow, CountTable, RecordError, read_counts, write_counts
    from ccfs.images.data import DataError, Images, ImageSet, LazyImages, load_images
    from ccfs.images.filters import CallableFilter, ConfidenceFilter, Filter, NoFilter
    from ccfs.images.forms import folded
    from ccfs.images.networks import load_checkpoint, load_shipped, shipped_names
    from ccfs.images.run import certify_dataset
    from ccfs.images.smoother import FilteredSmoother
    from ccfs.images.streams import NoiseStream

__all__ = [
    "Band",
    "CallableFilter",
    "ConfidenceFilter",
    "CountRow",
    "CountTable",
    "DataError",
    "Filter",
    "FilteredSmoother",
    "ImageSet",
    "Images",
    "LazyImages",
    "NoFilter",
    "NoiseStream",
    "ProjectedBand",
    "RecordError",
    "certify_dataset",
    "folded",
    "load_checkpoint",
    "load_images",
    "load_shipped",
    "read_counts",
    "shipped_names",
    "write_counts",
]

# Imported when first used. Whoever needs one submodule does not pay for pyarrow, pydantic and scipy.
_HOMES = {
    "bands": ("Band", "ProjectedBand"),
    "counts": ("CountRow", "CountTable", "RecordError", "read_counts", "write_counts"),
    "data": ("DataError", "ImageSet", "Images", "LazyImages", "load_images"),
    "filters": ("CallableFilter", "ConfidenceFilter", "Filter", "NoFilter"),
    "forms": ("folded",),
    "networks": ("load_checkpoint", "load_shipped", "shipped_names"),
    "run": ("certify_dataset",),
    "smoother": ("FilteredSmoother",),
    "streams": ("NoiseStream",),
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(_import_module(f"ccfs.images.{module}"), name)
    raise AttributeError(f"module 'ccfs.images' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
