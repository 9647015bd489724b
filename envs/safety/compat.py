"""Make Safety-Gymnasium 1.0.0 importable on Python 3.11, where its own import fails, whoever imports it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

import numpy as np

__all__ = ["cure_import", "stock"]

_COLOR = "safety_gymnasium.assets.color"
_INSTALL = (
    "On Python 3.10 or 3.11, install it: pip install 'ccfs-rl[safety]' and then "
    "pip install --no-deps safety-gymnasium==1.0.0 gymnasium-robotics==1.2.2"
)
_NO_WHEELS = f"MuJoCo 2.3.3 has no wheels for this Python, {sys.version_info.major}.{sys.version_info.minor}. "


class HashableArray(np.ndarray):  # type: ignore[type-arg]
    """An array that dataclasses of Python 3.11 accept as a default, because it is hashable (by identity)."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class _ColorLoader(SourceFileLoader):
    """Loads the module of colors and views each color as a hashable array."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's own code, then replace its colors."""
        super().exec_module(module)
        colors = getattr(module, "COLOR", {})
        colors.update({name: color.view(HashableArray) for name, color in colors.items()})


class _ColorFinder(MetaPathFinder):
    """Finds one module, the colors of Safety-Gymnasium, where Python finds it, and has it loaded by `_ColorLoader`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module of colors. Every other module is left to the other finders."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _COLOR else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _ColorLoader(spec.loader.name, spec.loader.path)
        return spec


_FINDER = _ColorFinder()


def cure_import() -> None:
    """Have Safety-Gymnasium's colors made hashable whenever they are imported in this process.

    From Python 3.11 a dataclass refuses unhashable defaults. Every such default of Safety-Gymnasium is a color from one
    leaf module. Only that module is loaded in another way. `dataclasses` stays as it is.

    Gymnasium calls this through our plugin whenever it is imported, and Safety-Gymnasium imports Gymnasium before
    anything else. So `import safety_gymnasium` and `import omnisafe` work by themselves where CCFS is installed.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def stock(name: str = "") -> ModuleType:
    """Import `safety_gymnasium` or, with `name`, one of its modules.

    Args:
        name: dotted name below `safety_gymnasium`, such as "builder". Empty for the package.

    Raises:
        ImportError: if the package is missing or cannot run here. The message says what to install.
    """
    cure_import()
    if importlib.util.find_spec("safety_gymnasium") is None:
        reason = _NO_WHEELS if sys.version_info >= (3, 12) else ""
        raise ImportError(f"Safety-Gymnasium is not installed. {reason}{_INSTALL}")
    try:
        package = importlib.import_module("safety_gymnasium")
        return importlib.import_module(f"safety_gymnasium.{name}") if name else package
    except ImportError as error:
        raise ImportError(f"Safety-Gymnasium could not be imported: {error}. {_INSTALL}") from error
