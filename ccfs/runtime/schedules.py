"""Proposal schedules over time: one for every step, or one per step, fixed before sampling."""

from __future__ import annotations

from collections.abc import Sequence

from ccfs.certificates.schedule import ProposalSchedule

__all__ = ["ProposalSchedule", "Schedules", "as_schedules", "schedule_at"]

Schedules = ProposalSchedule | tuple[ProposalSchedule, ...]


def as_schedules(schedules: ProposalSchedule | Sequence[ProposalSchedule]) -> Schedules:
    """Return one schedule, or a non-empty tuple of them (one a step)."""
    if isinstance(schedules, ProposalSchedule):
        return schedules
    fixed = tuple(schedules)
    if not fixed or not all(isinstance(schedule, ProposalSchedule) for schedule in fixed):
        raise TypeError(f"`schedules` must hold at least one ProposalSchedule and nothing else, got {schedules!r}.")
    return fixed


def schedule_at(schedules: Schedules, t: int) -> ProposalSchedule:
    """Return the schedule of step `t`; a time-varying one ends where its last entry ends."""
    if isinstance(schedules, ProposalSchedule):
        return schedules
    if not 0 <= t < len(schedules):
        raise ValueError(
            f"`t` must be in [0, {len(schedules)}), got {t}. Give a schedule for every step of the horizon."
        )
    return schedules[t]
