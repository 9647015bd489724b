"""Choose how MuJoCo draws without a screen, and say what to install where it cannot."""

from __future__ import annotations

import ctypes.util
import os

__all__ = ["OFF_SCREEN", "choose_backend"]

OFF_SCREEN = ("rgb_array", "depth_array")
_LIBRARIES = {"egl": "EGL", "osmesa": "OSMesa"}


def choose_backend() -> str:
    """Return the value of `MUJOCO_GL`, setting it to a backend that is installed if the user has not.

    Raises:
        RuntimeError: if neither EGL nor OSMesa is installed.
    """
    if "MUJOCO_GL" not in os.environ:
        for backend, library in _LIBRARIES.items():
            if ctypes.util.find_library(library):
                os.environ["MUJOCO_GL"] = backend
                break
        else:
            raise RuntimeError(
                "Rendering off-screen needs the library EGL or OSMesa, and neither was found. On Debian: "
                "`apt install libegl1 libegl-mesa0` (or `libosmesa6`); with a screen, set MUJOCO_GL=glfw."
            )
    return os.environ["MUJOCO_GL"]
