"""Sample Safety-Gymnasium layouts with plain floats: same draws, same comparisons, same random state at the end."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

__all__ = ["sample_layout"]

_TRIES = 100
_Rectangle = tuple[float, float, float, float]


@functools.lru_cache(maxsize=1)
def _uniform_is_plain() -> bool:
    """Return True if numpy draws uniforms as `low + width * u` without fusing. If it fuses, `uniform` is called."""
    one, other = np.random.RandomState(0), np.random.RandomState(0)
    low, width = -1.85, 1.3 - -1.85
    return all(one.uniform(low, 1.3) == low + width * other.random_sample() for _ in range(200))


def sample_layout(self: Any) -> bool:
    """Draw a place for every object once. Return False if one finds no room in 100 tries.

    This replaces the method of stock's `RandomGenerator`. Distances need two squares and one addition, which round the
    same in numpy and in plain floats.
    """
    rng = self.random_generator
    plain = _uniform_is_plain()
    layout: dict[str, Any] = {}
    placed: list[tuple[float, float, float]] = []
    for name, (placements, keepout) in self.placements.items():
        rectangle = _single_rectangle(self, placements, keepout)
        radii = [(x, y, radius + self.placements_margin + keepout) for x, y, radius in placed]
        for _ in range(_TRIES):
            if rectangle is None:
                x, y = self.draw_placement(placements, keepout).tolist()
            elif plain:
                xmin, ymin, xmax, ymax = rectangle
                x = xmin + (xmax - xmin) * rng.random_sample()
                y = ymin + (ymax - ymin) * rng.random_sample()
            else:
                xmin, ymin, xmax, ymax = rectangle
                x, y = rng.uniform(xmin, xmax), rng.uniform(ymin, ymax)
            for other_x, other_y, radius in radii:
                dx, dy = x - other_x, y - other_y
                if math.sqrt(dx * dx + dy * dy) < radius:
                    break
            else:
                break
        else:
            return False
        # In the order of drawing, because later code walks through this dictionary.
        layout[name] = np.array([x, y])
        placed.append((x, y, keepout))
    self.layout = layout
    return True


def _single_rectangle(generator: Any, placements: Any, keepout: float) -> _Rectangle | None:
    """Return the only rectangle to draw from, or None if stock must choose among several or refuse."""
    if placements is not None and len(placements) != 1:
        return None
    area = generator.placements_extents if placements is None else placements[0]
    xmin, ymin, xmax, ymax = generator.constrain_placement(area, keepout)
    if placements is not None and (xmin > xmax or ymin > ymax):
        return None
    return xmin, ymin, xmax, ymax
