"""What to do about a "module:callable" that cannot be imported, called or used: one sentence behind the error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

__all__ = ["advice_on_arguments", "advice_on_import", "advice_on_kind"]

_MEMBERS = {
    "Controller": "`digest`, `reset()` and `center(observation)`",
    "Event": "`holds(trace)`",
    "Fallback": "`action(observation, center)`",
    "ShiftRule": "`reset()` and `shift(history, rng, *, allowance)`",
    "Verifier": "`accepts(observation, actions)`",
}


def advice_on_import(path: str, error: BaseException) -> str:
    """Return what helps against a module that Python does not find; nothing for any other error."""
    top = path.partition(":")[0].partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name == top and top != "ccfs":
        return f" Put the folder of {top!r} on PYTHONPATH, or install it."
    return ""


def advice_on_kind(kind: str, made: object) -> str:
    """Return what an object of this kind must have, and how to come by one from what was made."""
    if kind not in _MEMBERS:
        return ""
    needed = f" It must have {_MEMBERS[kind]}."
    if kind == "Controller" and callable(getattr(made, "predict", None)):
        return f"{needed} Turn the model into one with ccfs.controllers.from_sb3 or from_torch."
    if kind == "Controller" and callable(made):
        return f"{needed} Wrap the function with ccfs.controllers.from_callable(function, name)."
    return needed


def advice_on_arguments(function: Callable[..., object], arguments: Mapping[str, object]) -> str:
    """Return which arguments are taken if the given ones do not fit; nothing if they do or nobody can tell."""
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
