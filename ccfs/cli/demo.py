"""The protocol of `ccfs demo`: a steered cart in a corridor, two proposal settings, three attacks, half a minute."""

from __future__ import annotations

from ccfs.files.toml import read_toml
from ccfs.protocol.model import Protocol, parse_protocol

__all__ = ["TEXT", "demo_protocol"]

TEXT = """\
name = "demo"
description = "A cart steers along a corridor and must not hit the post at its end."
seed = 20240229
horizon = 20
batch = 50

[trials]
initial_law = 500

[claim]
delta = 0.001
target = 0.9
bound = "clopper-pearson"

[environment]
make = "corridor"
arguments = { horizon = 20, post = 0.8 }

[[controllers]]
name = "steering"
make = "steering"
arguments = { gain = 0.2 }

[[schedules]]
name = "one"
action = { count = 1, sigma = 0.2 }

[[schedules]]
name = "four"
action = { count = 4, sigma = 0.2, multiplier = 1.05 }

[program]
verifier = { make = "box", arguments = { low = [-0.45], high = [0.45] } }

[[program.fallbacks]]
name = "center"
make = "center"

[[events]]
name = "passes"
event = "goal-before-cost"

[[attacks]]
name = "worst"
rule = "corridor-worst"
arguments = { gain = 0.2 }
budget = 0.2

[[attacks]]
name = "opposed"
rule = "opposed"
budget = 0.2

[[attacks]]
name = "random"
rule = "random"
budget = 0.2
"""


def demo_protocol() -> Protocol:
    """Return the demo's protocol."""
    return parse_protocol(read_toml(TEXT), where="the demo's protocol")
