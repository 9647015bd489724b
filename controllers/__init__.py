"""Controllers: adapters for the policies of other libraries, and the trained zoo."""

from __future__ import annotations

from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.controllers.adapters.callables import from_callable
from ccfs.controllers.adapters.omnisafe import from_omnisafe
from ccfs.controllers.adapters.predict import from_predict
from ccfs.controllers.adapters.sb3 import from_sb3, normalizer_from_sb3
from ccfs.controllers.adapters.torch import from_torch
from ccfs.controllers.zoo import Card, ZooEntry, ZooError
from ccfs.runtime.interfaces import Controller

__all__ = [
    "Card",
    "Controller",
    "FrozenNormalizer",
    "NumpyActor",
    "ZooEntry",
    "ZooError",
    "from_callable",
    "from_omnisafe",
    "from_predict",
    "from_sb3",
    "from_torch",
    "normalizer_from_sb3",
]
