"""Import Safety-Gymnasium 1.0.0 on Python 3.10 and 3.11, where its own import fails."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

__all__ = ["stock"]

_COLOR = "safety_gymnasium.assets.color"
_INSTALL = (
    "Install CCFS with its extra `safety` and then "
    "`pip install --no-deps safety-gymnasium==1.0.0 gymnasium-robotics==1.2.2` on Python 3.10 or 3.11."
)


class HashableArray(np.ndarray):  # type: ignore[type-arg]
    """An array that dataclasses of Python 3.11 accept as a default, because it is hashable (by identity)."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def stock(name: str = "") -> ModuleType:
    """Import `safety_gymnasium` or, with `name`, one of its modules, and make its colors hashable first.

    From Python 3.11 a dataclass refuses unhashable defaults. Every such default of Safety-Gymnasium is a color from one
    leaf module. That module is loaded before the package, and its colors are viewed as hashable arrays. Nothing else
    changes, neither there nor in `dataclasses`.

    Args:
        name: dotted name below `safety_gymnasium`, such as "builder". Empty for the package.

    Raises:
        ImportError: if the package is missing or cannot run here. The message says what to install.
    """
    if "safety_gymnasium" not in sys.modules:
        _cure_colors()
    try:
        package = importlib.import_module("safety_gymnasium")
        return importlib.import_module(f"safety_gymnasium.{name}") if name else package
    except ImportError as error:
        raise ImportError(f"Safety-Gymnasium could not be imported: {error}. {_INSTALL}") from error


def _cure_colors() -> None:
    package = importlib.util.find_spec("safety_gymnasium")
    if package is None or not package.submodule_search_locations:
        raise ImportError(f"Safety-Gymnasium is not installed. {_INSTALL}")
    path = Path(package.submodule_search_locations[0], "assets", "color.py")
    spec = importlib.util.spec_from_file_location(_COLOR, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"Safety-Gymnasium has no `assets/color.py`; only version 1.0.0 is known. {_INSTALL}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.COLOR.update({name: color.view(HashableArray) for name, color in module.COLOR.items()})
    sys.modules[_COLOR] = module
