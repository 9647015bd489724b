"""Controllers: one intake for the policies of other libraries, their adapters, and the trained zoo."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.controllers.zoo import Card, ZooEntry, ZooError
from ccfs.runtime.interfaces import Controller

if TYPE_CHECKING:
    from ccfs.controllers.adapters.callables import from_callable
    from ccfs.controllers.adapters.omnisafe import from_omnisafe
    from ccfs.controllers.adapters.predict import from_predict
    from ccfs.controllers.adapters.programs import from_onnx, from_torchscript
    from ccfs.controllers.adapters.rl_zoo import from_rl_zoo
    from ccfs.controllers.adapters.saved import normalizer_from_sb3
    from ccfs.controllers.adapters.sb3 import from_sb3
    from ccfs.controllers.adapters.torch import from_torch
    from ccfs.controllers.intake import as_controller
    from ccfs.controllers.training.hooks import certify_omnisafe
    from ccfs.controllers.training.sb3_callback import CertifyCallback
    from ccfs.runtime.flat import flattened

__all__ = [
    "Card",
    "CertifyCallback",
    "Controller",
    "FrozenNormalizer",
    "NumpyActor",
    "ZooEntry",
    "ZooError",
    "as_controller",
    "certify_omnisafe",
    "flattened",
    "from_callable",
    "from_omnisafe",
    "from_onnx",
    "from_predict",
    "from_rl_zoo",
    "from_sb3",
    "from_torch",
    "from_torchscript",
    "normalizer_from_sb3",
]

# Names are imported when they are first used, so that the zoo and its actors do not load Gymnasium.
_HOMES = {
    "CertifyCallback": "ccfs.controllers.training.sb3_callback",
    "as_controller": "ccfs.controllers.intake",
    "certify_omnisafe": "ccfs.controllers.training.hooks",
    "flattened": "ccfs.runtime.flat",
    "from_callable": "ccfs.controllers.adapters.callables",
    "from_omnisafe": "ccfs.controllers.adapters.omnisafe",
    "from_onnx": "ccfs.controllers.adapters.programs",
    "from_predict": "ccfs.controllers.adapters.predict",
    "from_rl_zoo": "ccfs.controllers.adapters.rl_zoo",
    "from_sb3": "ccfs.controllers.adapters.sb3",
    "from_torch": "ccfs.controllers.adapters.torch",
    "from_torchscript": "ccfs.controllers.adapters.programs",
    "normalizer_from_sb3": "ccfs.controllers.adapters.saved",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ccfs.controllers' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
