"""Image certification with a filter: counts from a network, certificates from the counts. Torch is imported on use."""

from __future__ import annotations

from ccfs.certificates.images import CovarianceProof, LabelCounts, Rule, Verdict, certified_count, exceeds, verdict
from ccfs.images.bands import Band, ProjectedBand
from ccfs.images.data import DataError, ImageSet, load_images
from ccfs.images.dataset import certify_dataset
from ccfs.images.filters import CallableFilter, ConfidenceFilter, Filter, NoFilter
from ccfs.images.models import folded, load_checkpoint, load_shipped, shipped_names
from ccfs.images.records import CountRow, CountTable, RecordError, read_counts, write_counts
from ccfs.images.smoother import FilteredSmoother
from ccfs.images.streams import NoiseStream

__all__ = [
    "Band",
    "CallableFilter",
    "ConfidenceFilter",
    "CountRow",
    "CountTable",
    "CovarianceProof",
    "DataError",
    "Filter",
    "FilteredSmoother",
    "ImageSet",
    "LabelCounts",
    "NoFilter",
    "NoiseStream",
    "ProjectedBand",
    "RecordError",
    "Rule",
    "Verdict",
    "certified_count",
    "certify_dataset",
    "exceeds",
    "folded",
    "load_checkpoint",
    "load_images",
    "load_shipped",
    "read_counts",
    "shipped_names",
    "verdict",
    "write_counts",
]
