"""Explain what is wrong with a protocol: one line with the key, the value and what is accepted, then advice."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping

from pydantic import BaseModel, ValidationError

__all__ = ["ProtocolError", "advice_on_arguments", "advice_on_import", "advice_on_kind", "explain"]

Path = tuple[int | str, ...]
# Pydantic puts the names of a union's members into the path of a fault. They are no keys of the file.
_VARIANTS = ("tuple[", "SeedRange", "UsedRange", "UsedProtocol", "constrained-")


class ProtocolError(ValueError):
    """A protocol that cannot be run. Each of its `lines` names the file, the key, the value and what is accepted."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def explain(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield one line for each fault."""
    faults = [(_path(fault["loc"]), fault) for fault in error.errors(include_url=False)]
    paths = [path for path, _ in faults]
    for path, fault in faults:
        # Pydantic also reports the table around a fault. The inner line says everything.
        if any(len(other) > len(path) and other[: len(path)] == path for other in paths if path):
            continue
        yield _line(path, fault, model)


def _line(path: Path, fault: Mapping[str, typing.Any], model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in path)
    if path == ("tune",):
        return "the table `tune` is for `ccfs tune`, which writes a protocol without it."
    if fault["type"] == "extra_forbidden":
        accepted = ", ".join(sorted(_fields_at(model, path[:-1])))
        return f"unknown key `{key}`, got {fault['input']!r}. Accepted here: {accepted}."
    meaning = _meaning(model, path)
    if fault["type"] == "missing":
        return f"key `{key}` is missing. It must be given, because there is no default.{meaning}"
    if fault["type"] == "value_error":
        place = f"`{key}`: " if key else ""
        return f"{place}{str(fault['ctx']['error']).rstrip('.')}."
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    return f"`{key}`: {message}, got {fault['input']!r}.{meaning}"


def _path(location: tuple[int | str, ...]) -> Path:
    return tuple(part for part in location if isinstance(part, int) or not _is_variant(part))


def _is_variant(part: str) -> bool:
    """Return whether a part of pydantic's path names a member of a union and not a key of the file."""
    return part.startswith(_VARIANTS) or part in ("constant", "per-step") or part.startswith("sigma-")


def _fields_at(model: type[BaseModel], path: Path) -> set[str]:
    """Return the keys that the table at `path` accepts."""
    return {name for found in _tables_at(model, path) for name in found.model_fields}


def _meaning(model: type[BaseModel], path: Path) -> str:
    """Return the first sentence of what docs/protocol.md says about a key, empty if it says nothing."""
    name = path[-1] if path else 0
    for table in _tables_at(model, path[:-1]):
        if isinstance(name, str) and name in table.model_fields:
            description = table.model_fields[name].description or ""
            return f" What it is: {description.partition('. ')[0].removesuffix('.')}." if description else ""
    return ""


def _tables_at(model: type[BaseModel], path: Path) -> set[type[BaseModel]]:
    """Return the models of the table at `path`. There are several if it may have one of several forms."""
    models = {model}
    for part in path:
        if isinstance(part, str):
            models = {
                inner
                for outer in models
                if part in outer.model_fields
                for inner in _models_in(outer.model_fields[part].annotation)
            }
    return models


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


_MEMBERS = {
    "Event": "`holds(trace)`",
    "Fallback": "`action(observation, center)`",
    "ShiftRule": "`reset()` and `shift(history, rng, *, allowance)`",
    "Verifier": "`accepts(observation, actions)`",
}


def advice_on_import(path: str, error: BaseException) -> str:
    """Return what to do if Python does not find a module. For any other error the text is empty."""
    top = path.partition(":")[0].partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == top and top != "ccfs":
        return f" Put {top!r} beside the protocol file, or give its folder with --modules, or install it."
    return ""


def advice_on_kind(kind: str) -> str:
    """Return what an object of this kind must have."""
    if kind not in _MEMBERS:
        return ""
    return f" It must have {_MEMBERS[kind]}."


def advice_on_arguments(function: Callable[..., object], arguments: Mapping[str, object]) -> str:
    """Return which arguments a function takes. The text is empty if the given ones fit, or if nobody can tell."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # built in, without a signature
        return ""
    try:
        signature.bind(**arguments)
    except TypeError:
        names = [str(part.replace(annotation=part.empty)) for part in signature.parameters.values()]
        missing = {part.name for part in signature.parameters.values() if part.default is part.empty} - set(arguments)
        asked = next((name for name in ("trace", "observation") if name in missing), None)
        factory = f" Name what makes the part (a class, a function that returns it), not a function of the {asked}."
        return f" It takes: {', '.join(names) or 'nothing'}.{factory if asked else ''}"
    return ""
