"""Train a causal adversary with SB3's PPO under the energy ledger, and ship it as a small numpy file.

    python experiments/goal2/attacks/train_adversary.py --arm ppolag-pointgoal2-1120275774 --budget 0.2 \
        --seed 1 --steps 200704 --name adversary-ppolag-pointgoal2 --critic critic-ppolag-pointgoal2

One episode is one trial of the attacked arm until goal, cost or step 500. The reward is 1 on cost and 0 elsewhere,
shaped by the critic's score of the state (discount * score(next) - score(now), which leaves the best policy as it is).
Each shift goes through the same Attack and EnergyLedger as in a run. The network sees which share of its allowance is
left, never the budget itself, so that it can be run at any other budget. The policy begins as an imitation of the
critic's slope (SensitivityShift), since costs alone say little in so few episodes. Development seeds only.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arms import DEVELOPMENT, HORIZON, SHIPPED, as_actor, controller_of, ship, wrapped

from ccfs.attacks.learned import CostCritic, SensitivityShift, features, network, shift_of
from ccfs.attacks.ledger import energy_limit
from ccfs.controllers import zoo
from ccfs.controllers.actor import FrozenNormalizer
from ccfs.runtime.history import PublicHistory
from ccfs.runtime.interfaces import Vector
from ccfs.runtime.streams import Streams

HERE = Path(__file__).parent
FIRST_SEED = DEVELOPMENT[0] + 300_000
DISCOUNT = 0.995
IMITATED, GAIN = 10_000, 2.0
SETTINGS = {
    "n_steps": 4096, "batch_size": 512, "n_epochs": 6, "gamma": DISCOUNT, "gae_lambda": 0.95, "learning_rate": 2e-4,
    "ent_coef": 0.0, "clip_range": 0.2,
}  # fmt: skip


class Puppet:
    """A shift rule that does what the training loop said last."""

    def __init__(self) -> None:
        self.output = np.zeros(3)

    def reset(self) -> None:
        """Do nothing."""

    def shift(self, history: PublicHistory, rng: np.random.Generator, *, allowance: float) -> Vector:
        """Return the shift of the last output."""
        return shift_of(self.output, allowance)


class AdversaryEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """The attacked arm as the adversary's environment."""

    def __init__(self, arm: str, budget: float, seed: int, normalizer: FrozenNormalizer, critic: CostCritic) -> None:
        self._controller, schedule = controller_of(arm)
        self._puppet = Puppet()
        self._env = wrapped(arm, self._puppet, budget, seed=seed)
        self._limit = energy_limit(budget, schedule)
        self._seed, self._trial, self._critic, self._normalizer = seed, 0, critic, normalizer
        self.observation_space = gymnasium.spaces.Box(-5.0, 5.0, (64,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.outcomes: list[str] = []

    @property
    def trials(self) -> int:
        """Number of resets so far."""
        return self._trial

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None):
        """Begin the next trial; the caller's seed is replaced by the next training seed."""
        super().reset(seed=seed)
        first = FIRST_SEED + self._trial
        streams = Streams(protocol="adversary training", root=self._seed, arm="", trial=self._trial, reset_seed=first)
        self._env.use_streams(streams)
        self._raw, _ = self._env.reset(seed=streams.reset_seed)
        self._trial += 1
        self._t, self._left = 0, 1.0
        self._controller.reset()
        self._look()
        return self._seen(), {}

    def step(self, action: np.ndarray):
        """Shift, let the arm act, and say what became of it."""
        self._puppet.output = np.asarray(action, dtype=np.float64)
        before = self._score
        self._raw, *_ = self._env.step(self._center)
        last, shift = self._env.last_step, self._env.last_shift
        self._t += 1
        self._left = max(0.0, 1.0 - shift.spent / self._limit) ** 0.5
        is_cost, is_goal = bool(last.cost), last.goal
        is_over = is_cost or is_goal or self._t == HORIZON
        if is_over:
            self.outcomes.append("cost" if is_cost else "goal" if is_goal else "timeout")
            return self._seen(), float(is_cost) - before, True, False, {}
        self._look()
        return self._seen(), DISCOUNT * self._score - before, False, False, {}

    def _look(self) -> None:
        self._center = np.clip(self._controller.center(self._raw), -1.0, 1.0)
        self._score = float(self._critic(self._raw, self._center[None])[0])

    def _seen(self) -> np.ndarray:
        history = PublicHistory(t=self._t, horizon=HORIZON, observation=self._raw, center=self._center, steps=())
        return self._normalizer(features(history, self._left).astype(np.float32))

    def teach(self, gain: float) -> np.ndarray:
        """Return the output that means the critic's slope rule, in the current state."""
        history = PublicHistory(t=self._t, horizon=HORIZON, observation=self._raw, center=self._center, steps=())
        rule = SensitivityShift(critic=self._critic, gain=gain)
        # At budget 1, of which `left` is left.
        shift = rule.shift(history, np.random.default_rng(0), allowance=1.0)
        norm = float(np.linalg.norm(shift))
        share = min(norm / max(self._left, 1e-3), 1.0)
        return np.append(shift / max(norm, 1e-9), 2.0 * np.cbrt(share) - 1.0)


def imitate(model: PPO, env: AdversaryEnv, steps: int, gain: float) -> float:
    """Fit the policy's mean to the slope rule along trajectories that the rule itself attacks; return the last loss."""
    inputs, outputs = [], []
    seen, _ = env.reset()
    for _ in range(steps):
        inputs.append(seen)
        outputs.append(env.teach(gain))
        seen, _, is_over, _, _ = env.step(outputs[-1])
        if is_over:
            seen, _ = env.reset()
    x, y = torch.from_numpy(np.array(inputs)), torch.from_numpy(np.array(outputs, dtype=np.float32))
    optimizer = torch.optim.Adam(
        [*model.policy.mlp_extractor.policy_net.parameters(), *model.policy.action_net.parameters()], lr=1e-3
    )
    for _ in range(30):
        for rows in torch.randperm(len(x)).split(256):
            optimizer.zero_grad()
            answer = model.policy.action_net(model.policy.mlp_extractor.forward_actor(x[rows]))
            loss = ((answer - y[rows]) ** 2).mean()
            loss.backward()
            optimizer.step()
    return float(loss.detach())


class Curve(BaseCallback):
    """One line a rollout: steps, episodes, share of cost, goal and timeout since the last line."""

    def __init__(self, env: AdversaryEnv) -> None:
        super().__init__()
        self.env, self.rows, self.seen = env, [], 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        fresh, self.seen = self.env.outcomes[self.seen :], len(self.env.outcomes)
        shares = [round(fresh.count(kind) / max(len(fresh), 1), 4) for kind in ("cost", "goal", "timeout")]
        self.rows.append((self.num_timesteps, len(fresh), *shares))
        print(self.rows[-1], flush=True)


def main() -> None:
    """Train and ship."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", required=True, help='"navigator" or the name of a shipped agent')
    parser.add_argument("--budget", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--name", required=True, help="folder of the result")
    parser.add_argument("--critic", default="critic-pointgoal2", help="folder of the critic that shapes the reward")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    digest = zoo.load(SHIPPED / arguments.critic).card.digest
    judge = network(arguments.critic, digest)
    # As the critic's for the observation; center and shares are left as they are.
    normalizer = FrozenNormalizer(
        mean=np.concatenate([judge.normalizer.mean[:60], np.zeros(4)]),
        std=np.concatenate([judge.normalizer.std[:60], np.ones(4)]),
        clip=np.float32(5.0),
    )
    env = AdversaryEnv(arguments.arm, arguments.budget, arguments.seed, normalizer, CostCritic(actor=judge))
    policy = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh, "log_std_init": -1.0}
    model = PPO("MlpPolicy", env, seed=arguments.seed, device="cpu", policy_kwargs=policy, **SETTINGS)
    print(f"imitation: loss {imitate(model, env, IMITATED, GAIN):.4f}", flush=True)
    env.outcomes.clear()
    curve = Curve(env)
    model.learn(arguments.steps, callback=curve)
    with (HERE / f"{arguments.name}_curve.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("steps", "episodes", "cost", "goal", "timeout"), *curve.rows])
    layers = [m for m in (*model.policy.mlp_extractor.policy_net, model.policy.action_net) if hasattr(m, "weight")]
    half = len(env.outcomes) // 2
    ship(
        arguments.name,
        as_actor(layers, normalizer),
        algorithm="PPO of Stable-Baselines3 under the energy ledger",
        seed=arguments.seed,
        steps=int(model.num_timesteps),
        config={
            **SETTINGS,
            "arm": arguments.arm,
            "controller": controller_of(arguments.arm)[0].digest,
            "budget": arguments.budget,
            "critic": digest,
            "imitated_steps": IMITATED,
            "imitated_gain": GAIN,
        },
        curve={
            "episodes": len(env.outcomes),
            "cost_first_half": round(env.outcomes[:half].count("cost") / half, 4),
            "cost_second_half": round(env.outcomes[half:].count("cost") / (len(env.outcomes) - half), 4),
        },
        training_reset_seeds=(FIRST_SEED, FIRST_SEED + env.trials - 1),
        command=f"python experiments/goal2/attacks/train_adversary.py --arm {arguments.arm} "
        f"--budget {arguments.budget} --seed {arguments.seed} --steps {arguments.steps} --name {arguments.name} "
        f"--critic {arguments.critic}",
    )


if __name__ == "__main__":
    main()
