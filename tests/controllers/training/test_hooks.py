"""Hooks that certify during training: what they log and certify, and what they refuse. Training stays as it is."""

from __future__ import annotations

import csv
import math
import warnings
from fractions import Fraction
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ccfs
from ccfs.controllers import CertifyCallback, as_controller, certify_omnisafe, from_omnisafe
from ccfs.controllers.training.hooks import Certified, Certifying, _shown

CLAIM = {
    "event": ccfs.NotTerminated(horizon=10),
    "schedule": ccfs.ProposalSchedule(count=1, sigma=1.0),
    "horizon": 10,
    "trials": 20,
    "target": 0.5,
    "delta": 0.02,
    "seed": 3,
}


def cartpole():
    return gymnasium.make("CartPole-v1")


def ppo(*, normalized: bool = False):
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    env = DummyVecEnv([cartpole])
    learnt = VecNormalize(env) if normalized else env
    return PPO("MlpPolicy", learnt, n_steps=128, batch_size=64, n_epochs=2, seed=7, device="cpu")


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """A short training of two rollouts with two certificates, and the folder of its logs and runs."""
    import torch
    from stable_baselines3.common.logger import configure

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("training")
    callback = CertifyCallback(cartpole, times=2, folder=folder / "certified", **CLAIM)
    model = ppo()
    model.set_logger(configure(str(folder), ["csv", "tensorboard"]))
    model.learn(256, callback=callback)
    model.logger.close()
    return model, callback, folder


@pytest.mark.slow
def test_callback_certifies_in_the_middle_and_after_the_last_update(trained) -> None:
    model, callback, _ = trained
    middle, last = callback.certificates
    assert (middle.steps, last.steps) == (128, 256)
    assert last.certificate.controller == as_controller(model, env=cartpole()).digest != middle.certificate.controller
    assert [one.certificate.family for one in callback.certificates] == [2, 2]
    assert [one.certificate.seed for one in callback.certificates] == [3, 4]  # trials of their own
    assert last.certificate.trials == 20


@pytest.mark.slow
def test_callback_logs_through_the_logger_of_the_model(trained) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, callback, folder = trained
    written = [row for row in rows(folder / "progress.csv") if row["ccfs/p_lower"]]
    assert [int(row["time/total_timesteps"]) for row in written] == [128, 256]
    board = EventAccumulator(str(folder))
    board.Reload()
    for key in ("rate", "p_lower"):
        values = [one.logged[key] for one in callback.certificates]
        assert [float(row[f"ccfs/{key}"]) for row in written] == values
        assert [(point.step, point.value) for point in board.Scalars(f"ccfs/{key}")] == [
            (128, np.float32(values[0])),
            (256, np.float32(values[1])),
        ]
    assert all(
        point.value <= one.certificate.p_lower
        for point, one in zip(board.Scalars("ccfs/p_lower"), callback.certificates, strict=True)
    )


@pytest.mark.slow
def test_callback_leaves_the_training_as_it_is(trained) -> None:
    model = trained[0]
    plain = ppo().learn(256)
    for name, value in plain.policy.state_dict().items():
        assert value.equal(model.policy.state_dict()[name]), name


@pytest.mark.slow
def test_callback_keeps_runs_that_can_be_audited_with_the_kept_model(trained) -> None:
    from stable_baselines3 import PPO

    _, callback, folder = trained
    kept = folder / "certified"
    loaded = PPO.load(kept / "model-128.zip", env=cartpole())
    report = ccfs.audit_policy(kept / "steps-128", cartpole, loaded, event=CLAIM["event"], replay=3)
    assert (report.faults, report.replayed) == ((), 3)
    stored = ccfs.load_certificate(next((kept / "steps-128" / "certificates").rglob("*.json")))
    assert stored == callback.certificates[0].certificate


@pytest.mark.slow
def test_callback_freezes_the_statistics_of_the_moment(tmp_path: Path) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    model = ppo(normalized=True)
    callback = CertifyCallback(cartpole, times=2, folder=tmp_path, **CLAIM)
    model.learn(256, callback=callback)
    env = VecNormalize.load(str(tmp_path / "vecnormalize-128.pkl"), DummyVecEnv([cartpole]))
    loaded = PPO.load(tmp_path / "model-128.zip", env=env)
    assert callback.certificates[0].certificate.controller == as_controller(loaded, env=cartpole()).digest


class Moody(gymnasium.Wrapper):
    """An environment that remembers how often it was reset, and then ends early."""

    resets = 0

    def reset(self, **given):
        Moody.resets += 1
        return super().reset(**given)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation + 1e-3 * (Moody.resets % 7), reward, terminated, truncated, info


@pytest.mark.slow
def test_callback_warns_and_goes_on_when_the_premises_do_not_hold() -> None:
    model = ppo()
    callback = CertifyCallback(lambda: Moody(cartpole()), times=1, **CLAIM)
    with pytest.warns(UserWarning, match="Nothing is certified at 128 steps"):
        model.learn(128, callback=callback)
    assert callback.certificates == [Certified(steps=128, certificate=None)]
    assert callback.certificates[0].logged == {}


@pytest.mark.slow
def test_callback_refuses_mistakes_before_the_first_step() -> None:
    for change, message in (
        ({"trials": 3}, "`trials` must be enough to certify"),
        ({"horizon": 0}, "`horizon` must be"),
        ({"event": ccfs.CostAtMost(limit=0.0, horizon=10)}, "cost"),
    ):
        model = ppo()
        with pytest.raises(ValueError, match=message):
            model.learn(128, callback=CertifyCallback(cartpole, times=1, **{**CLAIM, **change}))
        assert model.num_timesteps == 0
    missing = {key: value for key, value in CLAIM.items() if key != "event"}
    with pytest.raises(TypeError, match="missing a required argument: 'event'"):
        ppo().learn(128, callback=CertifyCallback(cartpole, times=1, **missing))
    with pytest.raises(TypeError, match="`family` must not be given here"):
        CertifyCallback(cartpole, times=1, family=3, **CLAIM)
    with pytest.raises(ValueError, match="`times` must be"):
        CertifyCallback(cartpole, times=0, **CLAIM)


def test_a_hook_serves_one_training_only() -> None:
    hook = Certifying(cartpole, times=1, folder=None, claim=CLAIM)
    hook.certificates.append(Certified(steps=1, certificate=None))
    with pytest.raises(ValueError, match="Each training must have a hook of its own"):
        hook.begin(lambda observation: np.zeros(2))


@pytest.mark.parametrize(("times", "due"), [(1, [12]), (2, [6, 12]), (5, [3, 5, 8, 10, 12])])
def test_certificates_are_spread_evenly(times: int, due: list[int]) -> None:
    hook = Certifying(cartpole, times=times, folder=None, claim=CLAIM)
    found = []
    for epoch in range(1, 15):
        if hook.is_due(epoch / 12):
            found.append(epoch)
            hook.certificates.append(Certified(steps=epoch, certificate=None))
    assert found == due


@given(st.floats(0.0, 1e30, allow_nan=False))
def test_shown_bound_is_never_above_in_any_form(bound: float) -> None:
    shown = _shown(bound)
    assert Fraction(shown) <= Fraction(bound)
    assert float(np.float32(shown)) == shown  # TensorBoard changes nothing
    assert Fraction(f"{shown:.3g}") <= Fraction(bound)  # nor the table of Stable-Baselines3
    assert shown >= 0.99 * bound or bound < 1e-30


class Plain(gymnasium.Env):
    """Three numbers are seen and two are done, as in OmniSafe's own toy."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 3), {}

    def step(self, action):
        return self.np_random.uniform(-1.0, 1.0, 3), 0.0, bool(action[0] < -0.9), False, {}


def agent(folder: Path, **train: int):
    import omnisafe
    from omnisafe.envs import custom_env  # noqa: F401 registers Simple-v0

    settings = {
        "train_cfgs": {"total_steps": 96, "vector_env_nums": 1, "torch_threads": 1},
        "algo_cfgs": {"steps_per_epoch": 32, "update_iters": 1},
        "logger_cfgs": {"use_wandb": False, "use_tensorboard": True, "save_model_freq": 1, "log_dir": str(folder)},
    }
    return omnisafe.Agent("PPOLag", "Simple-v0", train_terminal_cfgs=train or None, custom_cfgs=settings)


@pytest.mark.slow
@pytest.mark.usefixtures("_omnisafe")
def test_omnisafe_is_certified_through_its_own_logger(tmp_path: Path) -> None:
    claim = {**CLAIM, "schedule": ccfs.ProposalSchedule(count=1, sigma=0.1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = agent(tmp_path)
        hook = certify_omnisafe(learner, Plain, times=2, folder=tmp_path / "certified", **claim)
        learner.learn()
    run = Path(learner.agent.logger.log_dir)
    first, last = hook.certificates
    assert (first.steps, last.steps) == (64, 96)
    assert (
        first.certificate.controller
        == from_omnisafe(run, 2).digest
        == as_controller(tmp_path / "certified/policy-64").digest
    )
    assert last.certificate.controller == from_omnisafe(run, 3).digest
    written = rows(run / "progress.csv")
    assert [row["ccfs/p_lower"] for row in written] == [
        "nan",
        *(str(one.logged["p_lower"]) for one in hook.certificates),
    ]
    budgets = [one.logged.get("budget", math.nan) for one in hook.certificates]
    assert [row["ccfs/budget"] for row in written[1:]] == [str(number) for number in budgets]
    assert any((run / "tb").iterdir())
    assert (tmp_path / "certified" / "steps-96" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("_omnisafe")
def test_omnisafe_hook_refuses_before_learning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        learner = agent(tmp_path)
    for change, message in (
        ({"times": 4}, "`times` must be at most the number of epochs, 3, got 4"),
        ({"trials": 3}, "`trials` must be"),
    ):
        with pytest.raises(ValueError, match=message):
            certify_omnisafe(learner, Plain, **{"times": 1, **CLAIM, **change})
    settings = learner.cfgs
    settings.train_cfgs.parallel = 2
    with pytest.raises(ValueError, match="must be trained in one process, got parallel=2"):
        certify_omnisafe(learner, Plain, times=1, **CLAIM)
    settings.model_cfgs.actor_type = "gaussian_sac"
    with pytest.raises(ValueError, match="must have an actor of type 'gaussian_learning'"):
        certify_omnisafe(learner, Plain, times=1, **CLAIM)
