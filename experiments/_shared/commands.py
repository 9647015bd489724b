"""Turn a frozen dataclass of arguments into a command line, and say which command was run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import TypeVar

T = TypeVar("T")


def parse(kind: type[T], description: str, words: Sequence[str] | None = None) -> T:
    """Read one instance of `kind`; every field is an option whose type is that of its default."""
    parser = argparse.ArgumentParser(description=description)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.default is MISSING:
            raise TypeError(f"`{field.name}` needs a default to become an option.")
        flag = f"--{field.name.replace('_', '-')}"
        about = field.metadata.get("help", "")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true", default=field.default, help=about)
        else:
            shown = f"{about} ({field.default})"
            parser.add_argument(flag, type=type(field.default), default=field.default, help=shown)
    return kind(**vars(parser.parse_args(words)))


def recorded(arguments: object) -> dict[str, object]:
    """Return the arguments that change the numbers: not where they are written, and no switches."""
    return {
        field.name: getattr(arguments, field.name)
        for field in fields(arguments)  # type: ignore[arg-type]
        if field.name != "out" and not isinstance(field.default, bool)
    }


def spelled(script: str, arguments: object) -> str:
    """Return the command that repeats the numbers, every recorded argument written out."""
    words = [f"--{name.replace('_', '-')} {value}" for name, value in recorded(arguments).items()]
    return " ".join(["python", script, *words])
