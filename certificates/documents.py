"""Documents: JSON objects whose `format` names their kind and version, read strictly and with lossless floats."""

from __future__ import annotations

import json
import math

from ccfs.certificates import checks

__all__ = [
    "CertificateError",
    "DocumentError",
    "decode_float",
    "encode_float",
    "read_document",
    "refuse_other_format",
]


class DocumentError(ValueError):
    """A file that is not a document of the expected kind and version, or was changed after it was written."""


class CertificateError(DocumentError):
    """A stored certificate that does not follow from its own inputs, or is not one."""


def read_document(text: str | bytes, expected: str) -> dict[str, object]:
    """Return the entries of the JSON object `text`, whose `format` must be `expected`."""
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"must be a JSON document of the format {expected!r}: {error}.") from error
    if not isinstance(document, dict):
        raise DocumentError(f"must be a JSON object of the format {expected!r}, got something else.")
    refuse_other_format(document.get("format"), expected)
    return document


def refuse_other_format(found: object, expected: str) -> None:
    """Raise DocumentError unless `found` is the expected format, such as "ccfs/certificate/1"."""
    if found == expected:
        return
    if isinstance(found, str) and found.startswith("ccfs-"):
        raise DocumentError(
            f"has the format {found!r} of the first edition; this release reads {expected!r}. Run the protocol again."
        )
    if found is None:
        raise DocumentError(f"has no `format`; this release reads {expected!r}, and no file of the first edition.")
    raise DocumentError(f"has the format {found!r}; this release reads {expected!r}.")


def encode_float(value: float | None) -> float | str | None:
    """Return what JSON holds for a bound that may be absent or infinite."""
    return "infinity" if value == math.inf else value


def decode_float(name: str, value: object) -> float | None:
    """Return the bound that `encode_float` wrote. Refuse NaN, negative numbers and other kinds."""
    if value is None:
        return None
    return math.inf if value == "infinity" else checks.nonnegative(name, value)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    # JSON leaves open which of two equal keys counts.
    if len(entries) != len(pairs):
        raise DocumentError("repeats an entry, so that readers could see different claims.")
    return entries
