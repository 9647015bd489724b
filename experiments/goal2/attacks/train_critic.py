"""Train the cost critic on rollouts of the shipped agents with held random pushes, and ship it as a small numpy file.

    python experiments/goal2/attacks/train_critic.py --name critic-ppolag-pointgoal2 --seed 1 --episodes 2400 \
        --agents ppolag-pointgoal2-1120275774 ppolag-pointgoal2-1346831933

Q(observation, action) is the expected discount^k, k the steps until the first cost (0 if the goal or step 500 comes
first), when the center is pushed to `action` for the next few steps. What the regression takes as the action is the
center plus the mean of the next PUSH deviations of the proposals from their centers: those were drawn independently of
everything else, so that the regression finds what a push causes, not what comes along with the agent's own reactions.
As in the attacked arms, the center is executed where the verifier refuses the push. Development seeds only.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent))

from arms import DEVELOPMENT, HORIZON, SIGMA, TASK, as_actor, normalizer_of, ship

from ccfs.controllers import zoo
from ccfs.envs import make
from ccfs.envs.safety.lidar_box import LidarBox

HERE = Path(__file__).parent
FIRST_SEED = DEVELOPMENT[0] + 100_000
DISCOUNT, PUSH = 0.97, 8
HOLD, PUSH_SCALE = 10, 0.5
BATCH, EPOCHS, RATE = 512, 3, 1e-3  # more epochs overfit: of twelve, the second had the least held-out loss
COLUMNS = ("epoch", "loss", "held_out", "held_out_actions_shuffled")

Array = NDArray[np.float64]


def collect(agents: Sequence[str], seed: int, episodes: int) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """Return observations, actions, targets and the episode number of every step."""
    env, verifier = make(TASK), LidarBox(keep_away=0.3, reach=0.6)
    actors = [zoo.load(name).actor for name in agents]
    parts: list[tuple[Array, Array, Array]] = []
    for episode in range(episodes):
        rng = np.random.Generator(np.random.Philox(key=(seed << 32) + episode))
        actor = actors[episode % len(actors)]
        is_pushed = rng.random() < 0.75  # the rest are nominal rollouts
        observation, _ = env.reset(seed=FIRST_SEED + episode)
        observations, centers, deviations, is_cost = [], [], [], False
        for t in range(HORIZON):
            if t % HOLD == 0:
                push = PUSH_SCALE * rng.standard_normal(2) * is_pushed
            center = np.clip(actor.center(observation), -1.0, 1.0)
            deviation = push + SIGMA * rng.standard_normal(2)
            observations.append(observation)
            centers.append(center)
            deviations.append(deviation)
            action = np.clip(center + deviation, -1.0, 1.0)
            is_accepted = bool(verifier.accepts(observation, action[None])[0])
            observation, _, cost, _, _, info = env.step(action if is_accepted else center)
            is_cost = cost > 0
            if is_cost or info.get("goal_met"):
                break
        steps = len(centers)
        pushes = np.array([np.mean(deviations[t : t + PUSH], axis=0) for t in range(steps)])
        targets = is_cost * DISCOUNT ** np.arange(steps)[::-1].astype(np.float64)
        parts.append((np.array(observations), np.array(centers) + pushes, targets))
        if episode % 100 == 99:
            print(f"{episode + 1} episodes, {sum(len(p[2]) for p in parts)} steps", flush=True)
    numbers = np.repeat(np.arange(episodes), [len(part[2]) for part in parts])
    observations_, actions, targets_ = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return observations_, actions, targets_, numbers


def fit(
    inputs: NDArray[np.float32], targets: NDArray[np.float32], is_held_out: NDArray[np.bool_], seed: int
) -> tuple[torch.nn.Sequential, list[tuple[int, float, float, float]]]:
    """Return the network and one line an epoch: loss, held-out loss, held-out loss with the actions shuffled."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    network = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
        torch.nn.Linear(64, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    loss = torch.nn.BCEWithLogitsLoss()
    x, y = torch.from_numpy(inputs[~is_held_out]), torch.from_numpy(targets[~is_held_out])
    held_x, held_y = torch.from_numpy(inputs[is_held_out]), torch.from_numpy(targets[is_held_out])
    shuffled = held_x.clone()
    shuffled[:, -2:] = held_x[torch.randperm(len(held_x)), -2:]
    curve = []
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            value = loss(network(x[rows])[:, 0], y[rows])
            value.backward()
            optimizer.step()
            total += float(value.detach()) * len(rows)
        schedule.step()
        with torch.no_grad():
            held, blind = (float(loss(network(rows)[:, 0], held_y)) for rows in (held_x, shuffled))
        curve.append((epoch, round(total / len(x), 6), round(held, 6), round(blind, 6)))
        print(dict(zip(COLUMNS, curve[-1], strict=True)), flush=True)
    return network, curve


def main() -> None:
    """Collect, fit, ship."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True, help="folder of the result")
    parser.add_argument("--agents", nargs="+", default=zoo.names(), help="shipped agents in turns (all of them)")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True)
    arguments = parser.parse_args()
    if not 10 <= arguments.episodes <= 100_000:
        parser.error("--episodes must be in [10, 100000]: further seeds belong to others")
    observations, actions, targets, numbers = collect(arguments.agents, arguments.seed, arguments.episodes)
    normalizer = normalizer_of(np.hstack([observations, actions]), plain=2)
    inputs = np.array([normalizer(row.astype(np.float32)) for row in np.hstack([observations, actions])])
    network, curve = fit(inputs, targets.astype(np.float32), numbers % 10 == 9, arguments.seed)
    with (HERE / f"{arguments.name}_curve.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *curve])
    ship(
        arguments.name,
        as_actor([layer for layer in network if isinstance(layer, torch.nn.Linear)], normalizer, output="sigmoid"),
        algorithm="regression of the discounted first cost on observation and push",
        seed=arguments.seed,
        steps=len(targets),
        config={
            "agents": {name: zoo.load(name).card.digest for name in arguments.agents},
            "sigma": SIGMA,
            "discount": DISCOUNT,
            "push": PUSH,
            "hold": HOLD,
            "push_scale": PUSH_SCALE,
            "batch": BATCH,
            "epochs": EPOCHS,
            "rate": RATE,
        },
        curve=dict(zip(COLUMNS, curve[-1], strict=True)),
        training_reset_seeds=(FIRST_SEED, FIRST_SEED + arguments.episodes - 1),
        command=f"python experiments/goal2/attacks/train_critic.py --name {arguments.name} "
        f"--agents {' '.join(arguments.agents)} --seed {arguments.seed} --episodes {arguments.episodes}",
    )


if __name__ == "__main__":
    main()
