"""How much faster the fused update is than OmniSafe's own, on the same batch and order, alternating in one run.

Run: OPENBLAS_NUM_THREADS=1 python experiments/training/bench_update.py [passes]. Prints seconds per pass, the ratio and
the distance between the two sets of weights.
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import chain
from statistics import median
from types import SimpleNamespace

import numpy as np

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, COST_CRITIC, REWARD_CRITIC, Adam, Layout, log_density
from ccfs.controllers.training.update import Batch, update
from ccfs.envs.safety import compat

LAYOUT = Layout(observation_size=60, action_size=2, hidden_sizes=(64, 64))
CONFIG = TrainingConfig(environment="none", seed=0, update_iterations=1)


def omnisafe_agent(parameters: np.ndarray):
    """Return OmniSafe's PPOLag with the given weights, attached to no environment."""
    import torch
    from gymnasium.spaces import Box
    from omnisafe.algorithms.on_policy.naive_lagrange.ppo_lag import PPOLag
    from omnisafe.common.lagrange import Lagrange
    from omnisafe.models.actor_critic.constraint_actor_critic import ConstraintActorCritic
    from omnisafe.utils.config import get_default_kwargs_yaml

    torch.set_num_threads(1)
    settings = get_default_kwargs_yaml("PPOLag", "none", "on-policy")
    settings.algo_cfgs.recurisve_update({"update_iters": 1})
    agent = PPOLag.__new__(PPOLag)
    agent._cfgs, agent._lagrange = settings, Lagrange(**settings.lagrange_cfgs)
    spaces = {"obs_space": Box(-np.inf, np.inf, (60,)), "act_space": Box(-1.0, 1.0, (2,))}
    agent._actor_critic = ConstraintActorCritic(**spaces, model_cfgs=settings.model_cfgs, epochs=500)
    silent = {"get_stats": lambda key: (60.0,), "store": lambda data: None, "log": lambda message: None}
    agent._logger = SimpleNamespace(**silent)
    weights, biases, log_std = LAYOUT.views(parameters)
    with torch.no_grad():
        for row, layer, linear in _linear(agent):
            outputs = linear.weight.shape[0]
            linear.weight.copy_(torch.as_tensor(weights[layer][row, :, :outputs].T))
            linear.bias.copy_(torch.as_tensor(biases[layer][row, 0, :outputs]))
        agent._actor_critic.actor.log_std.copy_(torch.as_tensor(log_std[ACTOR]))
    return agent


def _linear(agent):
    model = agent._actor_critic
    networks = {
        ACTOR: model.actor.mean,
        REWARD_CRITIC: model.reward_critic.net_lst[0],
        COST_CRITIC: model.cost_critic.net_lst[0],
    }
    for row, network in networks.items():
        yield from ((row, i, part) for i, part in enumerate(part for part in network if hasattr(part, "weight")))


def omnisafe_pass(agent, batch: Batch, order: np.ndarray) -> None:
    """Run `PPOLag._update` for one pass in the given order."""
    import torch
    from omnisafe.algorithms.on_policy.base import policy_gradient

    columns = {
        "obs": batch.observations, "act": batch.actions, "logp": batch.log_densities,
        "target_value_r": batch.reward_targets, "target_value_c": batch.cost_targets,
        "adv_r": batch.reward_advantages, "adv_c": batch.cost_advantages,
    }  # fmt: skip
    agent._buf = SimpleNamespace(get=lambda: {name: torch.as_tensor(value) for name, value in columns.items()})
    real = policy_gradient.DataLoader
    policy_gradient.track = lambda items, description: items
    policy_gradient.DataLoader = lambda dataset, batch_size, shuffle: real(
        dataset, batch_size=batch_size, sampler=order.tolist()
    )
    try:
        agent._update()
    finally:
        policy_gradient.DataLoader = real


def main() -> None:
    """Alternate the two updates and print medians."""
    passes = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compat.stock()
        import omnisafe  # noqa: F401
    rng = np.random.default_rng(0)
    parameters = LAYOUT.initial(rng)
    adam = Adam(np.zeros_like(parameters), np.zeros_like(parameters), 0)
    agent = omnisafe_agent(parameters)
    size = CONFIG.steps_per_epoch
    observations = rng.normal(size=(size, 60)).astype(np.float32)
    means = LAYOUT.forward(parameters, observations)[-1][ACTOR]
    log_std = LAYOUT.views(parameters)[2][ACTOR]
    actions = means + np.exp(log_std) * rng.normal(size=means.shape).astype(np.float32)
    noise = (rng.normal(size=size).astype(np.float32) for _ in range(4))
    names = ("reward_targets", "cost_targets", "reward_advantages", "cost_advantages")
    batch = Batch(
        observations=observations,
        actions=actions,
        log_densities=log_density(actions, means, log_std),
        **dict(zip(names, noise, strict=True)),
    )
    theirs, ours = [], []
    for _ in range(passes):
        order = rng.permutation(size)
        started = time.perf_counter()
        omnisafe_pass(agent, batch, order)
        between = time.perf_counter()
        multiplier = agent._lagrange.lagrangian_multiplier.item()
        update(
            batch, parameters, adam, layout=LAYOUT, config=CONFIG, multiplier=multiplier,
            learning_rates=np.full(3, 3e-4), permutation=lambda order=order: order,
        )  # fmt: skip
        theirs.append(between - started)
        ours.append(time.perf_counter() - between)
    weights, biases, _ = LAYOUT.views(parameters)
    distances = chain.from_iterable(
        (
            np.abs(part.weight.detach().numpy().T - weights[layer][row, :, : part.weight.shape[0]]).max(),
            np.abs(part.bias.detach().numpy() - biases[layer][row, 0, : part.weight.shape[0]]).max(),
        )
        for row, layer, part in _linear(agent)
    )
    ratio = median(a / b for a, b in zip(theirs, ours, strict=True))
    print(f"OmniSafe {median(theirs):.3f} s, ours {median(ours):.3f} s a pass, ratio {ratio:.1f}")
    print(f"largest distance between the weights after {passes} passes: {max(distances):.1e}")


if __name__ == "__main__":
    main()
