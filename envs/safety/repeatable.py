"""Let the episodes of a Safety-Gymnasium task follow from their reset seeds alone."""

from __future__ import annotations

from typing import Any

import gymnasium

__all__ = ["NewWorlds"]


class NewWorlds(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins each episode in a new world, as the first episode of a stock environment does.

    From its second reset on, stock computes the forces of a new world once more than at the first one. That moves the
    last bits of what the solver starts from, where a robot rests on several contacts, as Car does. An episode would
    then depend on whether there was one before it, and not on its reset seed alone.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        task: Any = env.unwrapped.task  # type: ignore[attr-defined]
        build = task._build

        def build_anew() -> None:
            task.world = None
            build()
            # Stock tells its viewer of a new world in the branch for later worlds only.
            for viewer in task._viewers.values():
                viewer.model, viewer.data = task.model, task.data

        task._build = build_anew
