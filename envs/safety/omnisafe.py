"""Register our environments with OmniSafe: ids "FastSafetyPointGoal2-v0" and so on, vectorised in one process.

Importing this module is all it takes::

    import ccfs.envs.safety.omnisafe
    import omnisafe
    omnisafe.Agent("PPOLag", "FastSafetyPointGoal2-v0", custom_cfgs={"train_cfgs": {"vector_env_nums": 10}})

It differs from OmniSafe's own class in three ways. An ended episode is reset once, not twice. The value at a time limit
is that of the observation that ended the episode. A reset right after all episodes ended does not reset again.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch

from ccfs.envs.registration import TASKS
from ccfs.envs.safety import compat
from ccfs.envs.safety.vector import SafetyVectorEnv

compat.stock()  # OmniSafe imports Safety-Gymnasium. If that is missing, this says what to install.

import omnisafe.envs.core as core  # noqa: E402

__all__ = ["PREFIX", "FastSafetyEnv", "core"]

PREFIX = "Fast"


@core.env_register
class FastSafetyEnv(core.CMDP):  # type: ignore[misc]
    """OmniSafe's view of `SafetyVectorEnv`: float32 tensors, unbatched when there is one copy."""

    need_auto_reset_wrapper: bool = False
    need_time_limit_wrapper: bool = False
    _support_envs: ClassVar[list[str]] = [PREFIX + task for task in TASKS]

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        device: torch.device | str = "cpu",
        *,
        max_episode_steps: int | None = None,
    ) -> None:
        super().__init__(env_id)
        self.vector = SafetyVectorEnv(env_id.removeprefix(PREFIX), num_envs, max_episode_steps=max_episode_steps)
        self._num_envs = num_envs
        self._device = torch.device(device)
        self._action_space = self.vector.action_space
        self._observation_space = self.vector.observation_space
        self._metadata: dict[str, object] = {}
        self._observation: np.ndarray[Any, np.dtype[np.float64]] | None = None

    @property
    def max_episode_steps(self) -> int:
        """Time limit of an episode."""
        return self.vector.max_episode_steps

    def step(
        self, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, object]]:
        """Step every copy. If an episode ended, `info` has "final_observation"."""
        actions = action.detach().cpu().numpy().reshape(self._num_envs, -1)
        step = self.vector.step(actions)
        self._observation = step.observation
        info: dict[str, object] = {}
        if step.episodes:
            info["final_observation"] = self._tensor(step.final_observation)
            info["_final_observation"] = step.done
        results = (step.observation, step.reward, step.cost, step.terminated, step.truncated)
        observation, reward, cost, terminated, truncated = (self._tensor(result) for result in results)
        return observation, reward, cost, terminated, truncated, info

    def reset(
        self, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[torch.Tensor, dict[str, object]]:
        """Reset every copy, or return what an automatic reset of all of them has just produced."""
        if seed is not None or self._observation is None or not self.vector.is_at_start:
            self._observation = self.vector.reset(seed=seed)
        return self._tensor(self._observation), {}

    def set_seed(self, seed: int) -> None:
        """Reset with `seed`. Copy i gets `seed + i`."""
        self.reset(seed=seed)

    def render(self) -> None:
        """Refuse, because training does not render. Use `ccfs.envs.make(..., render_mode="rgb_array")`."""
        raise NotImplementedError("Training environments do not render. Use `ccfs.envs.make` with a render mode.")

    def close(self) -> None:
        """Close every copy."""
        self.vector.close()

    def _tensor(self, values: np.ndarray[Any, np.dtype[Any]]) -> torch.Tensor:
        batch = torch.as_tensor(values, dtype=torch.float32, device=self._device)
        return batch if self._num_envs > 1 else batch[0]
