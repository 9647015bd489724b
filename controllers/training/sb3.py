"""Train a controller with the PPO of Stable-Baselines3 on reward minus a fixed price times cost."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import gymnasium
from rich.console import Console

from ccfs.certificates import checks
from ccfs.controllers import zoo
from ccfs.controllers.adapters.sb3 import from_sb3
from ccfs.controllers.training.rollout import first_admissible
from ccfs.controllers.training.runner import versions
from ccfs.controllers.training.seeds import TRAINING_SEED_HIGH, TRAINING_SEED_LOW, reset_seeds, stream
from ccfs.files.atomic import remove_together, write_atomically

if TYPE_CHECKING:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecEnv

    from ccfs.controllers.actor import NumpyActor

__all__ = ["STRETCH", "PricedCost", "train_sb3"]

STRETCH: Final = 100_000
"""Training is saved after so many steps."""


class PricedCost(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Pay reward minus `penalty` times `info["cost"]`, and reset with the seeds that are kept for training.

    With a penalty of 0 no cost is asked for, so the task needs none.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], *, penalty: float, seed: int, number: int = 0) -> None:
        self._penalty = checks.nonnegative("penalty", penalty)
        self._seeds = reset_seeds(seed, number)
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
    environments: int = 1,
    settings: Mapping[str, zoo.Json] | None = None,
) -> zoo.Card:
    """Train with SB3's PPO and write `model.zip` and a zoo entry. An interruption loses at most `STRETCH` steps.

    `environment` is a Safety-Gymnasium task or any other id of Gymnasium. `environments` copies of it run side by side,
    and `settings` are arguments of PPO.
    """
    checks.count("steps", steps, minimum=2)
    checks.count("environments", environments, minimum=1)
    task = environment.removesuffix("-v0").removeprefix("Safety").lower()
    name = f"sb3ppo-{task}-{seed}"
    target = folder / name
    if (target / "model.zip").exists():
        raise FileExistsError(f"{target} holds a model already. Choose another folder (`-o`) or move it away.")
    if importlib.util.find_spec("stable_baselines3") is None:
        raise ImportError("`--algo sb3-ppo` needs Stable-Baselines3. Install it: pip install 'ccfs-rl[sb3]'")
    rollout = min(2048, steps)
    config = {"n_steps": rollout, "batch_size": min(64, rollout), **(settings or {})}
    about = {"penalty": penalty, "environments": environments, **config}
    _claim(target, {"environment": environment, "seed": seed, "steps": steps, **about})
    make = partial(_copies, environment, environments, penalty=penalty, seed=seed)
    model = _trained(target / "checkpoint.zip", make, config, seed=seed, steps=steps, shows=console.is_terminal)
    card = zoo.write(
        target,
        cast("NumpyActor", from_sb3(target / "checkpoint.zip")),  # an `MlpPolicy` is linear layers
        name=name,
        algorithm="PPO of Stable-Baselines3 on reward minus penalty times cost",
        environment=environment,
        seed=seed,
        steps=int(model.num_timesteps),
        config=about,
        curve=_last_episodes(model),
        training_reset_seeds=(TRAINING_SEED_LOW, TRAINING_SEED_HIGH),
        versions=tuple(sorted(versions("stable-baselines3", "torch"))),
        command=f"ccfs train --algo sb3-ppo --environment {environment} --seed {seed} --steps {steps} "
        f"--penalty {penalty}",
    )
    # Last, because a model says that everything is there.
    write_atomically(target / "model.zip", (target / "checkpoint.zip").read_bytes())
    remove_together([target / "checkpoint.zip"])
    done = f"{name}: {card.steps:,} steps, with model.zip, actor.npz and card.json in {target}"
    console.print(done, highlight=False, soft_wrap=True)
    return card


def _claim(target: Path, settings: Mapping[str, zoo.Json]) -> None:
    """Write down what is trained in a folder, or refuse to go on with something else."""
    content = (json.dumps(settings, indent=1, sort_keys=True) + "\n").encode()
    path = target / "settings.json"
    # Without a checkpoint nothing would be mixed: settings that PPO refused can be mended.
    if (target / "checkpoint.zip").exists() and path.exists() and path.read_bytes() != content:
        raise ValueError(
            f"{target} must hold a training with the same settings, got others. Choose another folder, or delete this "
            "one to begin anew."
        )
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)


def _copies(environment: str, count: int, stretch: int, *, penalty: float, seed: int) -> VecEnv:
    """Return the environments of a stretch, each with training seeds of its own."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    from ccfs.envs.registration import TASKS, make_gymnasium

    def made(number: int) -> Monitor[Any, Any]:
        task = make_gymnasium(environment) if environment in TASKS else gymnasium.make(environment)
        return Monitor(PricedCost(task, penalty=penalty, seed=seed, number=stretch * count + number))

    return DummyVecEnv([partial(made, number) for number in range(count)])


def _trained(
    path: Path, make: Callable[[int], VecEnv], config: Mapping[str, zoo.Json], *, seed: int, steps: int, shows: bool
) -> PPO:
    """Train from the last checkpoint on. Every stretch but the first begins by loading it, interrupted or not.

    Environments are made anew and generators are seeded by the number of the stretch, so a resumed training gives the
    same weights as an uninterrupted one.
    """
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)  # with two threads beside a busy core, small batches are a hundred times slower
    while True:
        if path.exists():
            model = PPO.load(path, device="cpu")
            if model.num_timesteps >= steps:
                return model
            stretch = model.num_timesteps // STRETCH
            model.set_env(make(stretch), force_reset=True)
            model.set_random_seed(int(stream(seed, stretch, "noise").integers(2**31)))
        else:
            stretch = 0
            model = PPO("MlpPolicy", make(0), seed=seed, device="cpu", **cast("dict[str, Any]", config))
        until = min(steps, (stretch + 1) * STRETCH)
        model.learn(until - model.num_timesteps, reset_num_timesteps=stretch == 0, progress_bar=shows)
        file = io.BytesIO()
        model.save(file)
        write_atomically(path, file.getvalue())


def _last_episodes(model: PPO) -> dict[str, zoo.Json]:
    """Return the mean priced return of the last 100 episodes at most."""
    totals = [float(episode["r"]) for episode in model.ep_info_buffer or ()]
    return {"episodes": len(totals), "priced_return": round(sum(totals) / len(totals), 4) if totals else None}
