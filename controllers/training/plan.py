"""The training plan: which controllers to train, in which order, read from a TOML file, and how far they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ccfs.controllers.training.config import TrainingConfig
from ccfs.files.documents import Document, Table
from ccfs.files.reading import read_text
from ccfs.files.toml import read_toml

__all__ = ["Plan", "TrainingStatus", "training_status"]

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


class RunStatus(Table):
    """How far one controller is, with the numbers of its last epoch."""

    controller: str = Field(description="Name of the controller.")
    steps: int = Field(ge=0, description="Environment steps so far.")
    episode_return: float = Field(description="Mean return of an episode.")
    episode_cost: float = Field(description="Mean cost of an episode.")
    multiplier: float = Field(description="The price of cost.")
    steps_per_second: float = Field(description="Speed of the last epoch.")


class TrainingStatus(Document):
    """How far the controllers of a folder are."""

    format: Literal["ccfs/training-status/1"] = Field(
        default="ccfs/training-status/1", description="Kind and version of this document."
    )
    runs: tuple[RunStatus, ...] = Field(description="One entry for each controller, in the order of their folders.")
    unread: tuple[str, ...] = Field(description="Why a checkpoint could not be read, one text for each.")


def training_status(folder: Path) -> TrainingStatus:
    """Return how far each run in a folder is. A checkpoint that cannot be read is named."""
    from ccfs.controllers.training.state import CURVE, TrainingState

    runs: list[RunStatus] = []
    unread: list[str] = []
    for path in sorted(folder.glob("*/checkpoint.npz")):
        try:
            state = TrainingState.load(path)
        except ValueError as error:
            unread.append(str(error))
            continue
        row = {name: float(value) for name, value in zip(CURVE, state.curve[-1], strict=True)}
        runs.append(
            RunStatus(
                controller=state.config.name,
                steps=int(state.steps),
                episode_return=row["return"],
                episode_cost=row["cost"],
                multiplier=row["multiplier"],
                steps_per_second=state.config.steps_per_epoch / (row["rollout_seconds"] + row["update_seconds"]),
            )
        )
    return TrainingStatus(runs=tuple(runs), unread=tuple(unread))
