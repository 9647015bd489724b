"""What every claim about trials takes for granted, as sentences that stand on the certificate."""

from __future__ import annotations

__all__ = ["PREMISES"]

FIXED = (
    "Program, schedule, event, target, delta, the number of claims and the plan of the trials "
    "were fixed before sampling."
)
CAUSAL = (
    "Controller, verifier, fallbacks, environment and event are the same with and without shift. "
    "None of them reads the shift or a random generator that follows it."
)
GAUSSIAN = (
    "The noise is taken for exact independent Gaussian draws. It was computed by the pseudo-random generator Philox "
    "and the ziggurat method and rounded to doubles."
)

# The one list: a premise that is added here stands on every certificate, in the threat model and in the report.
# Besides these a certificate has the premise of its bound. A changed sentence needs a new version of the format.
PREMISES = (FIXED, CAUSAL, GAUSSIAN)
