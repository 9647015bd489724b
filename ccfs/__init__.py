"""Wrap a policy, roll it out, and certify what it does under every bounded causal shift of its proposals."""

from __future__ import annotations

from importlib.metadata import version as _version

__all__ = ["__version__"]

__version__ = _version("ccfs")
