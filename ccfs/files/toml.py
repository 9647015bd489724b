"""Read TOML on every supported Python, with the standard library or with the package it came from."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TomlError", "read_toml"]

TomlError = tomllib.TOMLDecodeError


def read_toml(text: str) -> dict[str, object]:
    """Return the content of a TOML text. Raise TomlError for any other text."""
    return dict(tomllib.loads(text))
