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
    from ccfs.events import AllOf, CostAtMost, GoalBeforeCost, NoAbstention, NoCostUntilGoal, ReturnAtLeast
    from ccfs.ledger import EnergyLedger, EnergyRefusedError
    from ccfs.outcomes import Outcome
    from ccfs.program import CausalProgram, FallbackEntry
    from ccfs.protocol import load_protocol
    from ccfs.quick import certify_policy, load_certificate
    from ccfs.run_certificate import in_words
    from ccfs.selection import Selection, Source
    from ccfs.shifts import BurstShift, ConstantShift, GreedyShift, NoShift, OpposedShift, RandomShift, ScriptedShift
    from ccfs.streams import Purpose, Streams
    from ccfs.trace import Trace
    from ccfs.wrapper import ProposalWrapper

__all__ = [
    "AcceptAll",
    "AllOf",
    "Attack",
    "BoxVerifier",
    "BurstShift",
    "CausalProgram",
    "CenterFallback",
    "ConstantShift",
    "CostAtMost",
    "EnergyLedger",
    "EnergyRefusedError",
    "FallbackEntry",
    "FixedFallback",
    "GoalBeforeCost",
    "GreedyShift",
    "NoAbstention",
    "NoCostUntilGoal",
    "NoShift",
    "OpposedShift",
    "Outcome",
    "ProposalSchedule",
    "ProposalWrapper",
    "Purpose",
    "RandomShift",
    "ReturnAtLeast",
    "ScriptedShift",
    "Selection",
    "Signals",
    "SixTuple",
    "Source",
    "Streams",
    "Trace",
    "TrajectoryCertificate",
    "__version__",
    "certify_event",
    "certify_policy",
    "in_words",
    "load_certificate",
    "load_protocol",
]

__version__ = _version("ccfs")

# Imported when first used: `import ccfs` costs nothing, and `ccfs --help` needs no Gymnasium.
_HOMES = {
    "AcceptAll": "ccfs.components",
    "AllOf": "ccfs.events",
    "Attack": "ccfs.attack",
    "BoxVerifier": "ccfs.components",
    "BurstShift": "ccfs.shifts",
    "CausalProgram": "ccfs.program",
    "CenterFallback": "ccfs.components",
    "ConstantShift": "ccfs.shifts",
    "CostAtMost": "ccfs.events",
    "EnergyLedger": "ccfs.ledger",
    "EnergyRefusedError": "ccfs.ledger",
    "FallbackEntry": "ccfs.program",
    "FixedFallback": "ccfs.components",
    "GoalBeforeCost": "ccfs.events",
    "GreedyShift": "ccfs.shifts",
    "NoAbstention": "ccfs.events",
    "NoCostUntilGoal": "ccfs.events",
    "NoShift": "ccfs.shifts",
    "OpposedShift": "ccfs.shifts",
    "Outcome": "ccfs.outcomes",
    "ProposalSchedule": "ccfs.certificates.schedule",
    "ProposalWrapper": "ccfs.wrapper",
    "Purpose": "ccfs.streams",
    "RandomShift": "ccfs.shifts",
    "ReturnAtLeast": "ccfs.events",
    "ScriptedShift": "ccfs.shifts",
    "Selection": "ccfs.selection",
    "Signals": "ccfs.adapter",
    "SixTuple": "ccfs.adapter",
    "Source": "ccfs.selection",
    "Streams": "ccfs.streams",
    "Trace": "ccfs.trace",
    "TrajectoryCertificate": "ccfs.certificates.trajectory",
    "certify_event": "ccfs.certificates.trajectory",
    "certify_policy": "ccfs.quick",
    "in_words": "ccfs.run_certificate",
    "load_certificate": "ccfs.quick",
    "load_protocol": "ccfs.protocol",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'ccfs' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
