"""Training settings: OmniSafe's defaults, refused values, and the way to a dictionary and back."""

from __future__ import annotations

import pytest
from small_training import config_with

from ccfs.controllers.training.config import TrainingConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [("clip", float("nan")), ("discount", 1.5), ("batch_size", 0), ("seed", 2**32), ("hidden_sizes", (0,))],
)
def test_config_refuses(name: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError), match=f"`{name}"):
        config_with(**{name: value})


def test_config_survives_its_own_dictionary() -> None:
    config = config_with()
    assert TrainingConfig.from_dict(config.as_dict()) == config
    with pytest.raises(ValueError, match="must have the keys"):
        TrainingConfig.from_dict({"seed": 1})


def test_config_names_its_algorithm_unless_it_is_the_first() -> None:
    # Checkpoints and cards of the shipped agents have no such key, and must stay readable and equal.
    assert "algorithm" not in config_with().as_dict()
    other = TrainingConfig.of("trpolag", environment="SafetyPointGoal1-v0", seed=3, batch_size=32)
    assert (other.name, other.target_kl, other.batch_size) == ("trpolag-pointgoal1-3", 0.01, 32)
    assert TrainingConfig.from_dict(other.as_dict()) == other
    with pytest.raises(ValueError, match="`algorithm` must be one of ppolag, ppo-penalty, trpolag, cpo"):
        TrainingConfig.of("dqn", environment="SafetyPointGoal1-v0", seed=3)


@pytest.mark.slow
@pytest.mark.usefixtures("_omnisafe")
def test_config_defaults_are_omnisafes(capsys: pytest.CaptureFixture[str]) -> None:
    from omnisafe.utils.config import get_default_kwargs_yaml

    theirs = get_default_kwargs_yaml("PPOLag", "none", "on-policy")
    ours = TrainingConfig(environment="x", seed=0)
    algo, model, lagrange = theirs.algo_cfgs, theirs.model_cfgs, theirs.lagrange_cfgs
    assert ours.total_steps == theirs.train_cfgs.total_steps
    assert (ours.steps_per_epoch, ours.update_iterations) == (algo.steps_per_epoch, algo.update_iters)
    assert (ours.batch_size, ours.target_kl, ours.clip) == (algo.batch_size, algo.target_kl, algo.clip)
    assert (ours.entropy_coefficient, ours.max_gradient_norm) == (algo.entropy_coef, algo.max_grad_norm)
    assert (ours.critic_norm_coefficient, ours.discount) == (algo.critic_norm_coef, algo.gamma)
    assert (ours.trace_decay, ours.trace_decay) == (algo.lam, algo.lam_c)
    assert list(ours.hidden_sizes) == model.actor.hidden_sizes == model.critic.hidden_sizes
    assert (ours.actor_learning_rate, ours.critic_learning_rate) == (model.actor.lr, model.critic.lr)
    assert (ours.cost_limit, ours.multiplier_init) == (lagrange.cost_limit, lagrange.lagrangian_multiplier_init)
    assert ours.multiplier_learning_rate == lagrange.lambda_lr
    assert algo.obs_normalize
    assert algo.kl_early_stop
    assert algo.use_critic_norm
    assert model.linear_lr_decay
    assert not algo.reward_normalize
    assert not algo.cost_normalize
    assert model.actor.activation == model.critic.activation == "tanh"
