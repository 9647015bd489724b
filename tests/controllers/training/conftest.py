"""The oracle of the training tests: OmniSafe's own code on given weights, batch and order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.networks import ACTOR, COST_CRITIC, REWARD_CRITIC, Layout
from ccfs.controllers.training.update import Batch


class Silent:
    """A logger that answers what `PPOLag._update` asks for: the mean episode cost."""

    def __init__(self, mean_cost: float) -> None:
        self.mean_cost, self.stored = mean_cost, {}

    def get_stats(self, _key: str) -> tuple[float]:
        return (self.mean_cost,)

    def store(self, data: dict[str, object]) -> None:
        self.stored |= data

    def log(self, _message: str, _colour: str = "") -> None:
        pass


class OmniSafeAgent:
    """A `PPOLag`, `TRPOLag` or `CPO` of OmniSafe with its default configuration, not attached to any environment."""

    def __init__(self, config: TrainingConfig, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        from gymnasium.spaces import Box
        from omnisafe.algorithms.on_policy import CPO, PPOLag, TRPOLag
        from omnisafe.common.lagrange import Lagrange
        from omnisafe.models.actor_critic.constraint_actor_critic import ConstraintActorCritic
        from omnisafe.utils.config import get_default_kwargs_yaml

        kind = {"ppolag": PPOLag, "trpolag": TRPOLag, "cpo": CPO}[config.algorithm]
        settings = get_default_kwargs_yaml(kind.__name__, "none", "on-policy")
        hidden = {"hidden_sizes": list(layout.hidden_sizes)}
        settings.model_cfgs.recurisve_update({"actor": hidden, "critic": hidden})
        changed = {
            "update_iters": config.update_iterations,
            "batch_size": config.batch_size,
            "max_grad_norm": config.max_gradient_norm,
            "entropy_coef": config.entropy_coefficient,
            "target_kl": config.target_kl,
        }
        settings.algo_cfgs.recurisve_update(changed)
        self.settings, self.layout, self.monkeypatch = settings, layout, monkeypatch
        self.agent = kind.__new__(kind)
        self.agent._cfgs = settings
        if config.algorithm != "cpo":
            self.agent._lagrange = Lagrange(**settings.lagrange_cfgs)
        self.model = self.agent._actor_critic = ConstraintActorCritic(
            obs_space=Box(-np.inf, np.inf, (layout.observation_size,)),
            act_space=Box(-1.0, 1.0, (layout.action_size,)),
            model_cfgs=settings.model_cfgs,
            epochs=config.epochs,
        )

    @property
    def multiplier(self) -> float:
        return self.agent._lagrange.lagrangian_multiplier.item()

    def update(self, batch: Batch, mean_cost: float, orders: list[NDArray[np.intp]]) -> dict[str, float]:
        """Run its `_update` on `batch` in the given orders; return what it logged."""
        import torch
        from omnisafe.algorithms.on_policy.base import natural_pg, policy_gradient

        left = iter(orders)

        class OrderedLoader:
            def __init__(self, dataset, batch_size: int, shuffle: bool) -> None:
                assert shuffle
                self.tensors, self.batch_size = dataset.tensors, batch_size

            def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
                order = torch.as_tensor(next(left))
                for start in range(0, len(order), self.batch_size):
                    yield tuple(t[order[start : start + self.batch_size]] for t in self.tensors)

        for module in (natural_pg, policy_gradient):
            self.monkeypatch.setattr(module, "DataLoader", OrderedLoader)
        self.monkeypatch.setattr(policy_gradient, "track", lambda items, description: items)
        names = {
            "obs": batch.observations,
            "act": batch.actions,
            "logp": batch.log_densities,
            "target_value_r": batch.reward_targets,
            "target_value_c": batch.cost_targets,
            "adv_r": batch.reward_advantages,
            "adv_c": batch.cost_advantages,
        }
        data = {name: torch.as_tensor(value) for name, value in names.items()}
        self.agent._buf = SimpleNamespace(get=lambda: data)
        self.agent._logger = Silent(torch.as_tensor(mean_cost))
        self.agent._update()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the scheduler cannot know that the optimiser did step
            if hasattr(self.model, "actor_scheduler"):
                self.model.actor_scheduler.step()
        return self.agent._logger.stored

    def load(self, matrix: NDArray[np.floating]) -> None:
        """Give OmniSafe's networks the weights of `matrix`."""
        import torch

        weights, biases, log_std = self.layout.views(matrix)
        with torch.no_grad():
            for row, layer, linear in self._layers():
                outputs = linear.weight.shape[0]
                linear.weight.copy_(torch.as_tensor(weights[layer][row, :, :outputs].T))
                linear.bias.copy_(torch.as_tensor(biases[layer][row, 0, :outputs]))
            self.model.actor.log_std.copy_(torch.as_tensor(log_std[ACTOR]))

    def matrix(self) -> NDArray[np.floating]:
        """Return OmniSafe's weights as a matrix."""
        matrix = np.zeros((3, self.layout.row), self.model.actor.log_std.detach().numpy().dtype)
        weights, biases, log_std = self.layout.views(matrix)
        for row, layer, linear in self._layers():
            outputs = linear.weight.shape[0]
            weights[layer][row, :, :outputs] = linear.weight.detach().numpy().T
            biases[layer][row, 0, :outputs] = linear.bias.detach().numpy()
        log_std[ACTOR] = self.model.actor.log_std.detach().numpy()
        return matrix

    def _layers(self):
        networks = {
            ACTOR: self.model.actor.mean,
            REWARD_CRITIC: self.model.reward_critic.net_lst[0],
            COST_CRITIC: self.model.cost_critic.net_lst[0],
        }
        for row, network in networks.items():
            yield from ((row, i, linear) for i, linear in enumerate(m for m in network if hasattr(m, "weight")))


@pytest.fixture
def omnisafe_agent(_omnisafe: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function (config, layout) -> OmniSafeAgent."""
    return lambda config, layout: OmniSafeAgent(config, layout, monkeypatch)


@pytest.fixture
def double_precision(_omnisafe: None) -> Iterator[None]:
    """Let torch make float64 tensors, so that a comparison shows formulas and not rounding."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
