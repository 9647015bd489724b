"""Adapters that turn a trained policy into a proposal center, and the trained zoo."""

from __future__ import annotations

from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.controllers.callable_adapter import from_callable
from ccfs.controllers.omnisafe_adapter import from_omnisafe
from ccfs.controllers.predict_adapter import from_predict
from ccfs.controllers.sb3_adapter import from_sb3, normalizer_from_sb3
from ccfs.controllers.torch_adapter import from_torch
from ccfs.controllers.zoo import Card, ZooEntry, ZooError
from ccfs.interfaces import Controller

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
