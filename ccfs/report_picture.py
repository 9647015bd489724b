"""One rendered picture for a report: a replayed trajectory's last moment, off-screen, as the text of a data URI."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ccfs.drawings import scene_for
from ccfs.protocol import Protocol
from ccfs.recording import StepRow, TrajectoryRow
from ccfs.report_replay import ReplayError, retell

__all__ = ["Picture", "picture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture as a data URI, or why there is none."""

    uri: str = ""
    legend: str = ""
    missing: str = ""


def picture(protocol: Protocol, row: TrajectoryRow, steps: Sequence[StepRow]) -> Picture:
    """Replay the given steps where pictures can be drawn and show how the world stands after them.

    Drawing off-screen needs libraries that a machine may lack, in more ways than can be foreseen: whatever goes wrong
    there leaves the picture out and says so.
    """
    try:
        scene = scene_for(protocol, pictures=True)
        if scene is None:
            return Picture(missing="this environment has no scene.")
        try:
            retell(protocol, scene, row, steps)
            return Picture(uri=_data_uri(np.asarray(scene.env.render())), legend=scene.legend())
        finally:
            scene.close()
    except ReplayError as error:
        return Picture(missing=str(error))
    except Exception as error:
        return Picture(missing=f"this machine could not render off-screen ({type(error).__name__}).")


def _data_uri(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    from PIL import Image  # comes with matplotlib

    below_sky = pixels[pixels.shape[0] // 6 :]
    stream = io.BytesIO()
    Image.fromarray(below_sky).save(stream, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode()
