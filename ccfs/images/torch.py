"""What is imported on use, with one clear answer where it is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["extra", "require_torch"]


def require_torch() -> None:
    """Say how to install torch if it is missing; a function that needs torch calls this, then imports it."""
    extra("torch", "torch==2.13.0")


def extra(name: str, requirement: str) -> ModuleType:
    """Return an optional module, or say which requirement brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Image certification needs `{name}`, which is not installed. Install it: pip install '{requirement}'"
        ) from error
