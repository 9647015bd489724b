"""Environments: fast Safety-Gymnasium with the bits of stock, and small environments whose truth is known."""

from __future__ import annotations

from ccfs.envs.registration import TASKS, is_fast, make, make_repeatable

__all__ = ["TASKS", "is_fast", "make", "make_repeatable"]
