"""The settings of a training run, with the defaults that OmniSafe 0.5.0 has for each algorithm."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from ccfs.certificates import checks

__all__ = ["ALGORITHMS", "TrainingConfig"]

_TRUST_REGION: Final[Mapping[str, Any]] = {
    "update_iterations": 10, "batch_size": 128, "target_kl": 0.01, "critic_learning_rate": 1e-3,
}  # fmt: skip
ALGORITHMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "ppolag": {},
    # The price of cost stays where it is. Without the Lagrangian rule, 1 is the plain difference of reward and cost.
    "ppo-penalty": {"multiplier_init": 1.0},
    "trpolag": _TRUST_REGION,
    "cpo": {**_TRUST_REGION, "multiplier_init": 0.0},
}
"""The algorithms, each with its defaults where they are not those of PPOLag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Settings of one run. Every default but `environments` is that of OmniSafe's `configs/on-policy/PPOLag.yaml`.

    `TrainingConfig.of("trpolag", ...)` gives the defaults of another algorithm.

    Args:
        algorithm: "ppolag", "trpolag", "cpo", or "ppo-penalty", where the multiplier stays at `multiplier_init`.
        environment: Safety-Gymnasium task.
        seed: seeds weights, exploration noise, batch order and environment resets.
        total_steps: where the actor's learning rate has decayed to zero. A run may stop earlier.
        environments: how many run side by side in the process (OmniSafe: `vector_env_nums`, default 1).
        cost_limit: the multiplier grows while the mean episode cost is above this limit.
        episode_window: number of last episodes in the mean cost that the multiplier reads.
    """

    environment: str
    seed: int
    total_steps: int = 10_000_000
    steps_per_epoch: int = 20_000
    environments: int = 10
    update_iterations: int = 40
    batch_size: int = 64
    target_kl: float = 0.02
    clip: float = 0.2
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 40.0
    critic_norm_coefficient: float = 0.001
    discount: float = 0.99
    trace_decay: float = 0.95
    hidden_sizes: tuple[int, ...] = (64, 64)
    actor_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    cost_limit: float = 25.0
    multiplier_init: float = 0.001
    multiplier_learning_rate: float = 0.035
    episode_window: int = 50
    algorithm: str = "ppolag"

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"`algorithm` must be one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}.")
        # It becomes the name of a folder, so it must not lead anywhere else.
        if not (isinstance(self.environment, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.environment)):
            raise TypeError(f"`environment` must be a task id such as 'SafetyPointGoal2-v0', got {self.environment!r}.")
        if not checks.count("seed", self.seed) < 2**32:
            raise ValueError(f"`seed` must be below 2**32, got {self.seed}.")
        for name in ("total_steps", "steps_per_epoch", "environments", "update_iterations", "batch_size"):
            checks.count(name, getattr(self, name), minimum=1)
        checks.count("episode_window", self.episode_window, minimum=1)
        for name in ("target_kl", "clip", "max_gradient_norm", "actor_learning_rate", "critic_learning_rate"):
            checks.positive(name, getattr(self, name))
        for name in ("entropy_coefficient", "critic_norm_coefficient", "cost_limit", "multiplier_init"):
            checks.nonnegative(name, getattr(self, name))
        checks.positive("multiplier_learning_rate", self.multiplier_learning_rate)
        checks.probability("discount", self.discount)
        checks.probability("trace_decay", self.trace_decay)
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        for i, size in enumerate(self.hidden_sizes):
            checks.count(f"hidden_sizes[{i}]", size, minimum=1)
        for name, divisor in (("steps_per_epoch", self.environments), ("total_steps", self.steps_per_epoch)):
            if getattr(self, name) % divisor:
                raise ValueError(f"`{name}` must be a multiple of {divisor}, got {getattr(self, name)}.")

    @property
    def epochs(self) -> int:
        """Epochs until `total_steps`."""
        return self.total_steps // self.steps_per_epoch

    @property
    def name(self) -> str:
        """Name of the run and of its zoo entry."""
        task = self.environment.removesuffix("-v0").removeprefix("Safety").lower()
        return f"{self.algorithm}-{task}-{self.seed}"

    @classmethod
    def of(cls, algorithm: str, **settings: Any) -> TrainingConfig:
        """Return the settings of an algorithm, with its own defaults where nothing is given."""
        return cls(**{"algorithm": algorithm, **ALGORITHMS.get(algorithm, {}), **settings})

    def as_dict(self) -> dict[str, str | int | float | list[int]]:
        """Return the settings as plain JSON values."""
        values = asdict(self) | {"hidden_sizes": list(self.hidden_sizes)}
        # Checkpoints and cards from before there were other algorithms do not name theirs.
        if self.algorithm == "ppolag":
            del values["algorithm"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> TrainingConfig:
        """Invert `as_dict`. Unknown or missing keys are refused."""
        names = {field.name for field in fields(cls)}
        if values.keys() | {"algorithm"} != names:
            raise ValueError(f"The settings must have the keys {sorted(names)}, got {sorted(values)}.")
        sizes = values["hidden_sizes"]
        if not isinstance(sizes, (list, tuple)):
            raise TypeError(f"`hidden_sizes` must be a list of integers, got {sizes!r}.")
        return cls(**{**values, "hidden_sizes": tuple(sizes)})  # type: ignore[arg-type]
