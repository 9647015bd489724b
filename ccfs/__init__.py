"""Wrap a policy, roll it out, and certify what it does under every bounded causal shift of its proposals."""

from __future__ import annotations

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccfs.adapter import Signals, SixTuple
    from ccfs.attack import Attack
    from ccfs.certificates.schedule import ProposalSchedule
    from ccfs.certificates.trajectory import TrajectoryCertificate, certify_event
    from ccfs.components import AcceptAll, BoxVerifier, CenterFallback, FixedFallback
    from ccfs.ledger import EnergyLedger, EnergyRefusedError
    from ccfs.program import CausalProgram, FallbackEntry
    from ccfs.selection import Selection, Source
    from ccfs.streams import Purpose, Streams
    from ccfs.wrapper import ProposalWrapper

__all__ = [
    "AcceptAll",
    "Attack",
    "BoxVerifier",
    "CausalProgram",
    "CenterFallback",
    "EnergyLedger",
    "EnergyRefusedError",
    "FallbackEntry",
    "FixedFallback",
    "ProposalSchedule",
    "ProposalWrapper",
    "Purpose",
    "Selection",
    "Signals",
    "SixTuple",
    "Source",
    "Streams",
    "TrajectoryCertificate",
    "__version__",
    "certify_event",
]

__version__ = _version("ccfs")

# Imported when first used: `import ccfs` costs nothing, and `ccfs --help` needs no Gymnasium.
_HOMES = {
    "AcceptAll": "ccfs.components",
    "Attack": "ccfs.attack",
    "BoxVerifier": "ccfs.components",
    "CausalProgram": "ccfs.program",
    "CenterFallback": "ccfs.components",
    "EnergyLedger": "ccfs.ledger",
    "EnergyRefusedError": "ccfs.ledger",
    "FallbackEntry": "ccfs.program",
    "FixedFallback": "ccfs.components",
    "ProposalSchedule": "ccfs.certificates.schedule",
    "ProposalWrapper": "ccfs.wrapper",
    "Purpose": "ccfs.streams",
    "Selection": "ccfs.selection",
    "Signals": "ccfs.adapter",
    "SixTuple": "ccfs.adapter",
    "Source": "ccfs.selection",
    "Streams": "ccfs.streams",
    "TrajectoryCertificate": "ccfs.certificates.trajectory",
    "certify_event": "ccfs.certificates.trajectory",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ccfs' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
