"""LunarLander whose episodes follow from the reset seed alone.

LunarLander-v2 keeps its Box2D world from episode to episode, so the same seed gives another episode later on
(github.com/Farama-Foundation/Gymnasium/issues/728). Version 3 makes the world anew at each reset, and so does this.
"""

from __future__ import annotations

from typing import Any

import gymnasium

__all__ = ["Lander", "make"]


def make(id: str) -> Lander:
    """Make a task by its id, such as "LunarLander-v2"."""
    return Lander(gymnasium.make(id))


class Lander(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The task with a world of its own for each episode."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in a new world."""
        task: Any = self.env.unwrapped
        task._destroy()
        task.world = type(task.world)(gravity=task.world.gravity)
        return self.env.reset(seed=seed, options=options)
