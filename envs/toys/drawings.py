"""Drawings of the corridor's trials, for reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ccfs.protocol.model import Arm, Protocol
from ccfs.report.drawings import Panel, PathGroup, Rule, Shown

__all__ = ["corridor"]


def corridor(protocol: Protocol, arm: Arm, shown: Sequence[Shown]) -> Panel:
    """Draw the corridor from above: lateral position over time, and the post at its end."""
    arguments = protocol.environment.arguments
    post, start = _number(arguments.get("post", 0.5)), _number(arguments.get("start", 0.0))
    groups = []
    for part in shown:
        # The public trace holds actions, not states. In the corridor the position is their running sum.
        positions = [np.append(start, start + np.nancumsum(trace.actions[:, 0])) for trace in part.traces]
        paths = tuple(np.column_stack([np.arange(len(run)), run]) for run in positions)
        whole = [run for run in positions if len(run) == protocol.horizon + 1]
        bold = np.column_stack([np.arange(protocol.horizon + 1), np.mean(whole, axis=0)]) if whole else None
        groups.append(PathGroup(name=part.attack, paths=paths, bold=bold))
    top = max([1.3 * post, *(float(path[:, 1].max()) for group in groups for path in group.paths)])
    wall = Rule(name="post", start=(protocol.horizon, post), end=(protocol.horizon, top))
    return Panel(
        caption="The corridor from above: each thin line is one trajectory, the thick ones are means. "
        "A cart that ends on the post has failed.",
        x_label="step",
        y_label="lateral position",
        groups=tuple(groups),
        rules=(wall,),
    )


def _number(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError(f"the corridor's arguments must be numbers, got {value!r}.")
    return float(value)
