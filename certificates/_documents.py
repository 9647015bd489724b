"""Certificates as JSON documents: strict reading, lossless floats, one error for all that is wrong with a file."""

from __future__ import annotations

import json
import math

from ccfs.certificates import checks

__all__ = ["CertificateError", "decode_float", "encode_float", "read_document"]


class CertificateError(ValueError):
    """A stored certificate that does not follow from its own inputs, or is not one."""


def read_document(text: str, name: str, version: int) -> dict[str, object]:
    """Return the entries of the JSON object `text` without its format and version, which must be as given."""
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except CertificateError:
        raise
    except (ValueError, RecursionError) as error:
        raise CertificateError(f"a certificate must be a JSON document: {error}") from error
    if not isinstance(document, dict) or document.pop("format", None) != name:
        raise CertificateError(f'the certificate must have `"format": "{name}"`.')
    found = document.pop("version", None)
    if type(found) is not int or found != version:
        raise CertificateError(f"the certificate has format version {found!r}; this release reads {version}.")
    return document


def encode_float(value: float | None) -> float | str | None:
    """Return what JSON holds for a bound that may be absent or infinite."""
    return "infinity" if value == math.inf else value


def decode_float(name: str, value: object) -> float | None:
    """Return the bound that `encode_float` wrote; refuse NaN, negative numbers and other kinds."""
    if value is None:
        return None
    return math.inf if value == "infinity" else checks.nonnegative(name, value)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise CertificateError("the certificate repeats an entry, so that readers could see different claims.")
    return entries
