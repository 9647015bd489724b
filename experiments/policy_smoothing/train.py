"""Train the two agents of this study with Stable-Baselines3, under the sensor noise for which they are certified.

    python experiments/policy_smoothing/train.py cartpole   # about a minute on one core
    python experiments/policy_smoothing/train.py pendulum   # about three minutes

Writes `agents/NAME.npz`, plain arrays without torch, and `agents/NAME.json`, which says how it was made. On the same
machine, the same command gives the same agent.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from ccfs.controllers import from_sb3

HERE = Path(__file__).resolve().parent
SIGMA = 0.2
SEED = 1
TASKS = {"cartpole": "CartPole-v1", "pendulum": "Pendulum-v1"}
STEPS = {"cartpole": 200_000, "pendulum": 400_000}
COPIES = {"cartpole": 8, "pendulum": 4}
SETTINGS: dict[str, dict[str, object]] = {
    "cartpole": {"n_steps": 256, "batch_size": 256, "n_epochs": 10, "learning_rate": 5e-4},
    "pendulum": {
        "n_steps": 1024, "gamma": 0.9, "gae_lambda": 0.95, "n_epochs": 10, "learning_rate": 1e-3,
        "use_sde": True, "sde_sample_freq": 4,
    },
}  # fmt: skip


class NoisySensor(gymnasium.ObservationWrapper):
    """Add Gaussian noise to every observation, from the environment's own generator."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        wide = np.full(env.observation_space.shape, np.inf, np.float32)
        self.observation_space = gymnasium.spaces.Box(-wide, wide)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the noisy observation."""
        return (observation + SIGMA * self.np_random.standard_normal(observation.shape)).astype(np.float32)


def train(name: str) -> None:
    """Train one agent and write it with its card."""
    # One thread is fastest for networks this small, and sums do not depend on how threads share the work.
    torch.set_num_threads(1)
    copies = make_vec_env(TASKS[name], n_envs=COPIES[name], seed=SEED, wrapper_class=NoisySensor)
    model = PPO("MlpPolicy", copies, seed=SEED, device="cpu", **SETTINGS[name])
    model.learn(STEPS[name])
    # Through a file, because the live model holds the noisy copies. The certificate adds the sensor noise itself.
    with TemporaryDirectory() as scratch:
        model.save(Path(scratch) / "model.zip")
        actor = from_sb3(Path(scratch) / "model.zip")
    folder = HERE / "agents"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.npz"
    actor.save(path)
    card = {
        "command": f"python experiments/policy_smoothing/train.py {name}",
        "environment": TASKS[name],
        "algorithm": "PPO of Stable-Baselines3",
        "policy": "MlpPolicy",
        "settings": SETTINGS[name],
        "copies": COPIES[name],
        "sensor_sigma": SIGMA,
        "seed": SEED,
        "steps": model.num_timesteps,
        "digest": actor.digest,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "packages": {part: version(part) for part in ("gymnasium", "numpy", "stable-baselines3", "torch")},
    }
    path.with_suffix(".json").write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(f"{path.name}: {model.num_timesteps:,} steps, digest {actor.digest}")


if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in TASKS]:
        raise SystemExit(f"Give one of {', '.join(TASKS)}.")
    train(sys.argv[1])
