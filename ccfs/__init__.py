"""Wrap a policy, run trials of it, and certify an event under every bounded causal shift of its proposals."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from ccfs.attacks.attack import Attack
    from ccfs.attacks.ledger import EnergyLedger, EnergyRefusedError
    from ccfs.attacks.rules import (
        BurstShift,
        ConstantShift,
        GreedyShift,
        NoShift,
        OpposedShift,
        RandomShift,
        ScriptedShift,
    )
    from ccfs.certificates.schedule import ProposalSchedule, Schedule, Stage
    from ccfs.certificates.trajectory import TrajectoryCertificate, certify_event
    from ccfs.policy import audit_policy, certify_policy, load_certificate
    from ccfs.protocol.model import load_protocol
    from ccfs.results.certificate import in_words
    from ccfs.runs.events import (
        AllOf,
        CostAtMost,
        GoalBeforeCost,
        NoAbstention,
        NoCostUntilGoal,
        NotTerminated,
        ReturnAtLeast,
        Terminated,
    )
    from ccfs.runs.outcomes import Outcome
    from ccfs.runs.store import PremiseError
    from ccfs.runs.trace import Trace
    from ccfs.runtime.components import AcceptAll, BoxVerifier, CenterFallback, FixedFallback
    from ccfs.runtime.environment import Signals, SixTuple
    from ccfs.runtime.history import Source
    from ccfs.runtime.program import CausalProgram, FallbackEntry
    from ccfs.runtime.remade import MadeAnew
    from ccfs.runtime.selector import Selection
    from ccfs.runtime.streams import Purpose, Streams
    from ccfs.runtime.wrapper import ProposalWrapper
    from ccfs.study.opened import load_run
    from ccfs.study.plan import plan

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
    "MadeAnew",
    "NoAbstention",
    "NoCostUntilGoal",
    "NoShift",
    "NotTerminated",
    "OpposedShift",
    "Outcome",
    "PremiseError",
    "ProposalSchedule",
    "ProposalWrapper",
    "Purpose",
    "RandomShift",
    "ReturnAtLeast",
    "Schedule",
    "ScriptedShift",
    "Selection",
    "Signals",
    "SixTuple",
    "Source",
    "Stage",
    "Streams",
    "Terminated",
    "Trace",
    "TrajectoryCertificate",
    "__version__",
    "audit_policy",
    "certify_event",
    "certify_policy",
    "in_words",
    "load_certificate",
    "load_protocol",
    "load_run",
    "plan",
]

# Names are imported when they are first used, so that `import ccfs` and `ccfs --help` do not load Gymnasium.
_HOMES = {
    "AcceptAll": "ccfs.runtime.components",
    "AllOf": "ccfs.runs.events",
    "Attack": "ccfs.attacks.attack",
    "BoxVerifier": "ccfs.runtime.components",
    "BurstShift": "ccfs.attacks.rules",
    "CausalProgram": "ccfs.runtime.program",
    "CenterFallback": "ccfs.runtime.components",
    "ConstantShift": "ccfs.attacks.rules",
    "CostAtMost": "ccfs.runs.events",
    "EnergyLedger": "ccfs.attacks.ledger",
    "EnergyRefusedError": "ccfs.attacks.ledger",
    "FallbackEntry": "ccfs.runtime.program",
    "FixedFallback": "ccfs.runtime.components",
    "GoalBeforeCost": "ccfs.runs.events",
    "GreedyShift": "ccfs.attacks.rules",
    "MadeAnew": "ccfs.runtime.remade",
    "NoAbstention": "ccfs.runs.events",
    "NoCostUntilGoal": "ccfs.runs.events",
    "NoShift": "ccfs.attacks.rules",
    "NotTerminated": "ccfs.runs.events",
    "OpposedShift": "ccfs.attacks.rules",
    "Outcome": "ccfs.runs.outcomes",
    "PremiseError": "ccfs.runs.store",
    "ProposalSchedule": "ccfs.certificates.schedule",
    "ProposalWrapper": "ccfs.runtime.wrapper",
    "Purpose": "ccfs.runtime.streams",
    "RandomShift": "ccfs.attacks.rules",
    "ReturnAtLeast": "ccfs.runs.events",
    "Schedule": "ccfs.certificates.schedule",
    "ScriptedShift": "ccfs.attacks.rules",
    "Selection": "ccfs.runtime.selector",
    "Signals": "ccfs.runtime.environment",
    "SixTuple": "ccfs.runtime.environment",
    "Source": "ccfs.runtime.history",
    "Stage": "ccfs.certificates.schedule",
    "Streams": "ccfs.runtime.streams",
    "Terminated": "ccfs.runs.events",
    "Trace": "ccfs.runs.trace",
    "TrajectoryCertificate": "ccfs.certificates.trajectory",
    "audit_policy": "ccfs.policy",
    "certify_event": "ccfs.certificates.trajectory",
    "certify_policy": "ccfs.policy",
    "in_words": "ccfs.results.certificate",
    "load_certificate": "ccfs.policy",
    "load_protocol": "ccfs.protocol.model",
    "load_run": "ccfs.study.opened",
    "plan": "ccfs.study.plan",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("ccfs-rl")
    if name not in _HOMES:
        raise AttributeError(f"module 'ccfs' has no attribute {name!r}")
    return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})
