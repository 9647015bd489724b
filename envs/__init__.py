"""Environments: exact and fast Safety-Gymnasium, small environments with known truth, and their verifiers."""

from __future__ import annotations

from ccfs.envs.registration import TASKS, is_fast, make

__all__ = ["TASKS", "is_fast", "make"]
