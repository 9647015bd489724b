"""The training plan: which controllers to train, and in which order, read from a TOML file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccfs.controllers.training.config import TrainingConfig
from ccfs.files.reading import read_text
from ccfs.files.toml import read_toml

__all__ = ["Plan"]

_KEYS = {"environment", "seeds", "milestones", "folder", "checkpoints"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Every controller is trained to the first milestone, then every one to the next, so that all make progress.

    Args:
        configs: one per controller.
        milestones: increasing step counts. At the last one the learning rate reaches zero.
        folder: where runs are kept.
        checkpoints: folder of committed checkpoints `<name>.npz`, to continue from if `folder` has no later one.
    """

    configs: tuple[TrainingConfig, ...]
    milestones: tuple[int, ...]
    folder: Path
    checkpoints: Path | None = None

    def __post_init__(self) -> None:
        if not (self.configs and len({config.name for config in self.configs}) == len(self.configs)):
            raise ValueError("`seeds` must name at least one controller, and each once.")
        if len({(config.environment, config.environments) for config in self.configs}) > 1:
            raise ValueError("A plan must have one environment: its controllers are trained on the same copies.")
        if not (self.milestones and list(self.milestones) == sorted(set(self.milestones))):
            raise ValueError(f"`milestones` must increase, got {self.milestones}.")
        for config in self.configs:
            for milestone in self.milestones:
                if milestone % config.steps_per_epoch or not 0 < milestone <= config.total_steps:
                    raise ValueError(
                        f"`milestones` must be multiples of {config.steps_per_epoch} up to {config.total_steps}, "
                        f"got {milestone}."
                    )

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan. Unknown keys are refused."""
        values: dict[str, Any] = read_toml(read_text(path))
        if not ({"environment", "seeds", "milestones", "folder"} <= values.keys() <= _KEYS):
            raise ValueError(f"A plan must have the keys {sorted(_KEYS)}, got {sorted(values)}.")
        environment = values["environment"]
        return cls(
            configs=tuple(TrainingConfig(environment=environment, seed=seed) for seed in values["seeds"]),
            milestones=tuple(values["milestones"]),
            folder=Path(values["folder"]),
            checkpoints=Path(values["checkpoints"]) if "checkpoints" in values else None,
        )

    def turns(self) -> Iterator[tuple[TrainingConfig, int]]:
        """Yield (controller, step count to reach) in order."""
        for milestone in self.milestones:
            for config in self.configs:
                yield config, milestone
