"""Read TOML on every supported Python, and write plain data as TOML."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TomlError", "read_toml", "toml_text"]

TomlError = tomllib.TOMLDecodeError

# A dot of a dotted key, or of prose. That of a number stands between digits, and a number has one.
_DOT = re.compile(r"(?<![0-9])\.|\.(?![0-9])|\.(?=[0-9]+\.)")
_MOST_DOTS = 2_000


def read_toml(text: str) -> dict[str, object]:
    """Return the content of a TOML text. Raise TomlError for any other text."""
    # The parser's time grows with the square of the parts of a dotted key: a hundred kilobytes would take minutes.
    if sum(len(_DOT.findall(line)) ** 2 for line in text.splitlines()) > _MOST_DOTS**2:
        raise TomlError(f"its dotted keys must have at most {_MOST_DOTS:,} parts, got more")
    return dict(tomllib.loads(text))


def toml_text(content: Mapping[str, object]) -> str:
    """Return texts, numbers, booleans, lists and tables as a TOML text that `read_toml` reads as the same.

    Tables at the top stand under heads of their own, and so do tables in lists at the top. Deeper ones are inline.

    >>> print(toml_text({"name": "a", "claim": {"delta": 0.1}, "arms": [{"sigma": [0.5, 1.0]}]}), end="")
    name = "a"
    <BLANKLINE>
    [claim]
    delta = 0.1
    <BLANKLINE>
    [[arms]]
    sigma = [0.5, 1.0]
    """
    plain, tables, lists = {}, {}, {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            tables[key] = value
        elif isinstance(value, (list, tuple)) and value and all(isinstance(part, Mapping) for part in value):
            lists[key] = value
        else:
            plain[key] = value
    parts = [_lines(plain)] if plain else []
    parts += [f"[{_key(key)}]\n{_lines(table)}" for key, table in tables.items()]
    parts += [f"[[{_key(key)}]]\n{_lines(table)}" for key, group in lists.items() for table in group]
    return "\n".join(parts)


def _lines(table: Mapping[str, object]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key, re.ASCII) else _text(key)


def _text(text: str) -> str:
    # JSON and TOML write texts alike, but for characters beyond 16 bits and the delete character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    raise TypeError(f"TOML holds texts, numbers, booleans, lists and tables only, got {value!r}.")
