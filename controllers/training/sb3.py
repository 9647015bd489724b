"""Train a controller with the PPO of Stable-Baselines3 on reward minus a fixed price times cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gymnasium
from rich.console import Console

from ccfs.certificates import checks
from ccfs.controllers import zoo
from ccfs.controllers.adapters.sb3 import from_sb3
from ccfs.controllers.training.rollout import first_admissible
from ccfs.controllers.training.runner import versions
from ccfs.controllers.training.seeds import TRAINING_SEED_HIGH, TRAINING_SEED_LOW, reset_seeds

if TYPE_CHECKING:
    from stable_baselines3 import PPO

    from ccfs.controllers.actor import NumpyActor

__all__ = ["PricedCost", "train_sb3"]


class PricedCost(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pay reward minus `penalty` times `info["cost"]`, and reset with the seeds that are kept for training.

    With a penalty of 0 no cost is asked for, so the task needs none.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, penalty: float, seed: int) -> None:
        self._penalty = checks.nonnegative("penalty", penalty)
        self._seeds = reset_seeds(seed, 0)
        super().__init__(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. The next training seed replaces the caller's seed."""
        return first_admissible(lambda seed: super(PricedCost, self).reset(seed=seed, options=options), self._seeds)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step and price the cost."""
        observation, reward, terminated, truncated, info = super().step(action)
        paid = float(reward) - self._penalty * float(info["cost"]) if self._penalty else float(reward)
        return observation, paid, terminated, truncated, info


def train_sb3(
    environment: str,
    *,
    seed: int,
    steps: int,
    penalty: float,
    folder: Path,
    console: Console,
    settings: Mapping[str, zoo.Json] | None = None,
) -> zoo.Card:
    """Train with SB3's PPO and write `model.zip` and a zoo entry. The training cannot be resumed.

    `environment` is a Safety-Gymnasium task or any other id of Gymnasium, and `settings` are arguments of PPO.
    """
    checks.count("steps", steps, minimum=2)
    task = environment.removesuffix("-v0").removeprefix("Safety").lower()
    name = f"sb3ppo-{task}-{seed}"
    target = folder / name
    if (target / "model.zip").exists():
        raise FileExistsError(f"{target} holds a model already. Choose another folder (`-o`) or move it away.")
    try:
        from stable_baselines3 import PPO
    except ImportError as error:
        raise ImportError("`--algo sb3-ppo` needs Stable-Baselines3. Install it: pip install 'ccfs-rl[sb3]'") from error
    import torch

    from ccfs.envs.registration import TASKS, make_gymnasium

    torch.set_num_threads(1)  # with two threads beside a busy core, small batches are a hundred times slower
    task_made = make_gymnasium(environment) if environment in TASKS else gymnasium.make(environment)
    env = PricedCost(task_made, penalty=penalty, seed=seed)
    rollout = min(2048, steps)
    config = {"n_steps": rollout, "batch_size": min(64, rollout), **(settings or {})}
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **cast("dict[str, Any]", config))
    model.learn(steps, progress_bar=console.is_terminal)
    target.mkdir(parents=True, exist_ok=True)
    model.save(target / "model.zip")
    card = zoo.write(
        target,
        cast("NumpyActor", from_sb3(target / "model.zip")),  # an `MlpPolicy` is linear layers
        name=name,
        algorithm="PPO of Stable-Baselines3 on reward minus penalty times cost",
        environment=environment,
        seed=seed,
        steps=int(model.num_timesteps),
        config={"penalty": penalty, **config},
        curve=_last_episodes(model),
        training_reset_seeds=(TRAINING_SEED_LOW, TRAINING_SEED_HIGH),
        versions=tuple(sorted(versions("stable-baselines3", "torch"))),
        command=f"ccfs train --algo sb3-ppo --environment {environment} --seed {seed} --steps {steps} "
        f"--penalty {penalty}",
    )
    done = f"{name}: {card.steps:,} steps, with model.zip, actor.npz and card.json in {target}"
    console.print(done, highlight=False, soft_wrap=True)
    return card


def _last_episodes(model: PPO) -> dict[str, zoo.Json]:
    """Return the mean priced return of the last 100 episodes at most."""
    totals = [float(episode["r"]) for episode in model.ep_info_buffer or ()]
    return {"episodes": len(totals), "priced_return": round(sum(totals) / len(totals), 4) if totals else None}
