"""Turn a validation error into one line that names the key, the value and what is accepted."""

from __future__ import annotations

import typing
from collections.abc import Iterator

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

__all__ = ["ProtocolError", "explain"]

Path = tuple[int | str, ...]
_VARIANTS = ("tuple[", "SeedRange", "UsedRange", "UsedProtocol", "constrained-")


class ProtocolError(ValueError):
    """A protocol that cannot be run; each of its `lines` names the file, the key, the value and what is accepted."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def explain(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield one line for each fault."""
    faults = [(_path(fault["loc"]), fault) for fault in error.errors(include_url=False)]
    paths = [path for path, _ in faults]
    for path, fault in faults:
        # A fault inside a table makes pydantic complain about the table too: the inner one says it all.
        if any(len(other) > len(path) and other[: len(path)] == path for other in paths if path):
            continue
        yield _line(path, fault, model)


def _line(path: Path, fault: ErrorDetails, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in path)
    if fault["type"] == "extra_forbidden":
        accepted = ", ".join(sorted(_fields_at(model, path[:-1])))
        return f"unknown key `{key}`, got {fault['input']!r}. Accepted here: {accepted}."
    if fault["type"] == "missing":
        return f"key `{key}` is missing. It must be given; there is no default."
    if fault["type"] == "value_error":
        place = f"`{key}`: " if key else ""
        return f"{place}{str(fault['ctx']['error']).rstrip('.')}."
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"`{key}`: {message}, got {fault['input']!r}."


def _path(location: tuple[int | str, ...]) -> Path:
    return tuple(part for part in location if isinstance(part, int) or not _is_variant(part))


def _is_variant(part: str) -> bool:
    """Whether a part of pydantic's path names a member of a union and not a key of the file."""
    return part.startswith(_VARIANTS) or part in ("constant", "per-step")


def _fields_at(model: type[BaseModel], path: Path) -> set[str]:
    """Return the keys that the table at `path` accepts."""
    models = {model}
    for part in path:
        if isinstance(part, str):
            models = {
                inner
                for outer in models
                if part in outer.model_fields
                for inner in _models_in(outer.model_fields[part].annotation)
            }
    return {name for found in models for name in found.model_fields}


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)
