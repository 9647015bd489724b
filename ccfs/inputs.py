"""What a run depends on besides its protocol: versions, controllers and source, recorded without naming the machine."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from ccfs.building import references, source_digest
from ccfs.protocol import Protocol

__all__ = ["inputs", "packages"]

# Whatever can change a number of a trace. Others are recorded by the controllers' and the sources' digests.
_PACKAGES = ("ccfs", "numpy", "scipy", "gymnasium", "pyarrow", "python-flint", "mujoco", "safety-gymnasium", "torch")


def packages() -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def inputs(protocol: Protocol, controllers: dict[str, str]) -> dict[str, object]:
    """Return the record of everything a run depends on, given the controllers' digests."""
    return {
        "protocol": protocol.hash,
        "controllers": controllers,
        "sources": {reference: source_digest(reference) for reference in references(protocol)},
        "packages": packages(),
    }
