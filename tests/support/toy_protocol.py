"""A small protocol on the corridor, as a TOML text with places to change."""

from __future__ import annotations

from ccfs.protocol.model import load_protocol

TEXT = """
name = "toy"
seed = 7
horizon = 6
batch = 4

[trials]
cohort = {{ first = 100, count = {trials} }}

[claim]
delta = 0.05
target = 0.5
bound = "cohort"

[environment]
make = "corridor"
arguments = {{ horizon = 6, post = 0.6 }}

[[controllers]]
name = "steer"
make = "steering"
arguments = {{ gain = 0.2 }}

[[schedules]]
name = "one"
action = {{ count = 1, sigma = 0.2 }}

[[schedules]]
name = "four"
action = {{ count = 4, sigma = 0.2, multiplier = 1.05 }}

[program]
verifier = {{ make = "box", arguments = {{ low = [-0.5], high = [0.5] }} }}

[[program.fallbacks]]
name = "center"
make = "center"
unverified = true

[[events]]
name = "safe"
event = "no-cost-until-goal"

[[attacks]]
name = "push"
rule = "constant"
budget = 0.1
arguments = {{ direction = [1.0] }}
"""


def text(trials=10, **replaced):
    content = TEXT.format(trials=trials)
    for old, new in replaced.values():
        assert old in content, old
        content = content.replace(old, new)
    return content


def protocol(folder, trials=10, **replaced):
    path = folder / "protocol.toml"
    path.write_text(text(trials, **replaced))
    return load_protocol(path)


def contents(root):
    """Every file of a run but the lock, by name."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }
