"""The one place that imports what an extra brings, such as torch, and that shortens its errors.

It stays a module of its own because every module here needs it. It imports nothing of ours, so no cycle can form.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["extra", "first_sentence", "require_torch"]


def require_torch() -> None:
    """Raise ImportError with the pip command if torch is missing.

    A function that needs torch calls this first and then imports torch inside its body. So the package imports without
    torch, and counts can be read and certified without it.
    """
    extra("torch", "torch")


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error of a library. What follows is advice for its own users.

    TorchScript puts a trace before its message, which then follows the name of the error.

    >>> first_sentence(ValueError("Weights only load failed. This file can still be loaded"))
    'Weights only load failed.'
    >>> first_sentence(RuntimeError("The operation failed.\\n  ... <--- HERE\\nRuntimeError: no such shape\\n"))
    'no such shape.'
    """
    told = str(error).strip()
    text = told.rpartition("\nRuntimeError: ")[2].partition("\n")[0].partition(". ")[0].rstrip(". ")
    return f"{text or type(error).__name__}."


def extra(name: str, of: str) -> ModuleType:
    """Return an optional module, or raise ImportError with the command that installs it.

    Args:
        name: the module.
        of: the extra of CCFS that brings it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"Image certification needs `{name}`, which is not installed. Install it: pip install 'ccfs-rl[{of}]'"
        ) from error
