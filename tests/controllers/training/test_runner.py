"""A whole training run on a small environment: resuming, learning, milestones, several processes."""

from __future__ import annotations

import csv
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box
from rich.console import Console

from ccfs.controllers.training import runner
from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.plan import Plan
from ccfs.controllers.training.rollout import collect
from ccfs.controllers.training.runner import run_plan
from ccfs.controllers.training.seeds import EVALUATION_SEED_LIMIT, reset_seeds
from ccfs.controllers.training.state import CURVE, TrainingState

pytestmark = pytest.mark.slow
SMALL = {
    "environments": 4, "steps_per_epoch": 200, "total_steps": 2_000, "update_iterations": 3, "hidden_sizes": (8,),
    "batch_size": 32, "episode_window": 10,
}  # fmt: skip


class Target:
    """The action is paid for being near the observed target; leaving the box costs 1. Episodes last 20 steps."""

    observation_space, action_space = Box(-np.inf, np.inf, (3,)), Box(-1.0, 1.0, (2,))

    def __init__(self, refused_resets: int = 0) -> None:
        self.seeds: list[int] = []
        self.refused_resets = refused_resets

    def reset(self, *, seed: int | None = None):
        self.seeds.append(seed)
        if self.refused_resets:
            self.refused_resets -= 1
            raise AssertionError("World has starting cost! {}")
        self.rng, self.time = np.random.default_rng(seed), 0
        return self._observe(), {}

    def step(self, action):
        reward = -float(np.abs(action - self.target).sum())
        cost = float(np.abs(action).max() > 1.0)
        self.time += 1
        return self._observe(), reward, cost, False, self.time >= 20, {}

    def _observe(self):
        self.target = self.rng.uniform(-0.5, 0.5, 2)
        return np.append(self.target, float(self.time))


def config_with(**changes) -> TrainingConfig:
    return TrainingConfig(environment="SafetyTarget0-v0", **({"seed": 11} | SMALL | changes))


def make(config: TrainingConfig) -> list[Target]:
    return [Target() for _ in range(config.environments)]


def fresh(config: TrainingConfig) -> TrainingState:
    return TrainingState.fresh(config, observation_size=3, action_size=2)


def test_training_resumed_equals_training_uninterrupted(tmp_path: Path) -> None:
    config = config_with()
    straight = fresh(config)
    for _ in range(4):
        straight.run_epoch(make(config))
    broken = fresh(config)
    for _ in range(4):
        broken.run_epoch(make(config))
        broken.save(tmp_path / "checkpoint.npz")
        broken = TrainingState.load(tmp_path / "checkpoint.npz")
    assert broken.parameters.tobytes() == straight.parameters.tobytes()
    assert broken.adam.first.tobytes() == straight.adam.first.tobytes()
    assert broken.adam.second.tobytes() == straight.adam.second.tobytes()
    assert broken.multiplier == straight.multiplier
    assert broken.actor().digest == straight.actor().digest
    assert broken.episodes == straight.episodes
    timeless = len(CURVE) - 2
    assert [row[:timeless] for row in broken.curve] == [row[:timeless] for row in straight.curve]


def test_training_learns_the_target() -> None:
    config = config_with(actor_learning_rate=0.01, critic_learning_rate=0.01, cost_limit=1.0, total_steps=6_000)
    state, environments = fresh(config), make(config_with())
    for _ in range(config.epochs):
        state.run_epoch(environments)
    first, last = state.curve[0], state.curve[-1]
    assert last[CURVE.index("epoch_return")] > 0.5 * first[CURVE.index("epoch_return")]
    assert last[CURVE.index("epoch_cost")] < 0.5 * first[CURVE.index("epoch_cost")]
    assert state.steps == 6_000


def test_actor_equals_the_policy_that_was_trained() -> None:
    config = config_with()
    state = fresh(config)
    state.run_epoch(make(config))
    actor, frozen = state.actor(), state.normalizer.frozen()
    for observation in np.random.default_rng(1).normal(size=(20, 3)):
        normalised = frozen(observation.astype(np.float32))
        expected = state.layout.forward(state.parameters, normalised[None])[-1][0, 0]
        np.testing.assert_allclose(actor.center(observation), expected, atol=1e-6)


class Clock(Target):
    """Pays nothing, so that a one-step value target is the bootstrapped value alone; may terminate instead."""

    def __init__(self, *, terminates: bool = False) -> None:
        super().__init__()
        self.terminates = terminates

    def step(self, action):
        observation, _, _, _, ended, info = super().step(action)
        return observation, 0.0, 0.0, ended and self.terminates, ended and not self.terminates, info


def collect_clock(*, terminates: bool) -> tuple[np.ndarray, TrainingState]:
    """Return reward targets (4 environments, 40 steps: two episodes) where the value is the normalised clock."""
    config = config_with(steps_per_epoch=160, total_steps=160, discount=1.0, trace_decay=0.0, hidden_sizes=())
    state = fresh(config)
    state.parameters[:] = 0.0
    state.layout.views(state.parameters)[0][0][1, 2, 0] = 1.0
    environments = [Clock(terminates=terminates) for _ in range(4)]
    rollout = collect(environments, state.parameters, state.normalizer, layout=state.layout, config=config, epoch=0)
    assert [episode.length for episode in rollout.episodes] == [20] * 8
    return rollout.batch.reward_targets.reshape(4, 40), state


def test_collect_bootstraps_from_the_true_final_observation() -> None:
    targets, state = collect_clock(terminates=False)
    final, first = (state.normalizer.frozen()(np.array([0.0, 0.0, time], np.float32))[2] for time in (20.0, 0.0))
    assert final > 1.0 > -1.0 > first
    np.testing.assert_allclose(targets[:, 39], final, rtol=1e-6)
    assert (targets[:, 19] > 1.0).all()  # within the epoch: the clock's statistics were a little different then
    assert (np.diff(targets[:, :20]) > 0.0).all()


def test_collect_gives_a_terminated_path_no_future() -> None:
    targets, _ = collect_clock(terminates=True)
    assert not targets[:, [19, 39]].any()
    assert targets[:, :19].any()


def test_training_on_safety_gymnasium_resumes_bit_for_bit(tmp_path: Path) -> None:
    # New environments stand for a new process: whatever they remember from before must not matter.
    config = TrainingConfig(
        environment="SafetyPointGoal1-v0", seed=9, environments=2, steps_per_epoch=80, total_steps=160,
        update_iterations=1, hidden_sizes=(8,),
    )  # fmt: skip
    environments = runner.make_environments(config)
    for environment in environments:
        environment.task.num_steps = 25  # an episode ends within each epoch
    straight = runner.fresh(config, environments[0])
    straight.run_epoch(environments)
    straight.save(tmp_path / "run" / "checkpoint.npz")
    straight.run_epoch(environments)
    renewed = runner.make_environments(config)
    for environment in renewed:
        environment.task.num_steps = 25
    resumed = runner.furthest(config, tmp_path / "run")
    resumed.run_epoch(renewed)
    assert resumed.parameters.tobytes() == straight.parameters.tobytes()
    assert resumed.normalizer.mean.tobytes() == straight.normalizer.mean.tobytes()
    assert resumed.episodes == straight.episodes
    assert len(straight.episodes) == 4


def test_reset_seeds_stay_out_of_the_evaluation_range_and_repeat() -> None:
    first = [seed for seed, _ in zip(reset_seeds(658990255, 3), range(1_000), strict=False)]
    again = [seed for seed, _ in zip(reset_seeds(658990255, 3), range(1_000), strict=False)]
    assert first == again
    assert min(first) >= EVALUATION_SEED_LIMIT
    assert max(first) < 2**32
    assert first != [seed for seed, _ in zip(reset_seeds(658990255, 4), range(1_000), strict=False)]


def test_rollout_draws_another_seed_when_a_world_starts_with_cost() -> None:
    config = config_with()
    environments = [Target(refused_resets=2), *make(config)[1:]]
    fresh(config).run_epoch(environments)
    assert len(set(environments[0].seeds[:3])) == 3


def test_rollout_does_not_hide_other_failures() -> None:
    config = config_with()
    environments = make(config)
    environments[0].step = lambda action: (_ for _ in ()).throw(AssertionError("broken"))
    with pytest.raises(AssertionError, match="broken"):
        fresh(config).run_epoch(environments)


def test_plan_takes_turns_and_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = (config_with(seed=1), config_with(seed=2))
    plan = Plan(configs=configs, milestones=(400, 800), folder=tmp_path)
    assert [(c.seed, m) for c, m in plan.turns()] == [(1, 400), (2, 400), (1, 800), (2, 800)]
    calls = 0

    class Interrupted(Target):
        def step(self, action):
            nonlocal calls
            calls += 1
            if calls > 700:  # within the second controller's second epoch
                raise KeyboardInterrupt
            return super().step(action)

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, Console(quiet=True), make=lambda config: [Interrupted() for _ in range(4)])
    assert TrainingState.load(tmp_path / configs[0].name / "checkpoint.npz").steps == 400
    assert TrainingState.load(tmp_path / configs[1].name / "checkpoint.npz").steps == 200
    run_plan(plan, Console(), make=make)
    straight = fresh(configs[1])
    for _ in range(4):
        straight.run_epoch(make(configs[1]))
    ended = TrainingState.load(tmp_path / configs[1].name / "milestone-800.npz")
    assert ended.actor().digest == straight.actor().digest
    assert any(version.startswith("numpy==") for version in ended.versions)
    with (tmp_path / configs[1].name / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["steps"]) for row in rows] == [200.0, 400.0, 600.0, 800.0]
    assert "800 steps" in capsys.readouterr().out
    run_plan(plan, Console(), make=make)
    assert capsys.readouterr().out == "The plan is done: every controller has 800 steps.\n"


def test_plan_continues_from_a_committed_checkpoint(tmp_path: Path) -> None:
    config = config_with()
    state = fresh(config)
    for _ in range(2):
        state.run_epoch(make(config))
    state.save(tmp_path / "committed" / f"{config.name}.npz")
    folders = {"folder": tmp_path / "runs", "checkpoints": tmp_path / "committed"}
    run_plan(Plan(configs=(config,), milestones=(200, 400, 600), **folders), Console(quiet=True), make=make)
    # A milestone that lay behind is not written with another step count.
    written = {path.name: TrainingState.load(path).steps for path in (tmp_path / "runs" / config.name).glob("*.npz")}
    assert written == {"checkpoint.npz": 600, "milestone-600.npz": 600}
    state.run_epoch(make(config))
    ended = TrainingState.load(tmp_path / "runs" / config.name / "checkpoint.npz")
    assert ended.parameters.tobytes() == state.parameters.tobytes()


def test_furthest_refuses_other_settings(tmp_path: Path) -> None:
    fresh(config_with()).save(tmp_path / "checkpoint.npz")
    with pytest.raises(ValueError, match="other settings"):
        runner.furthest(config_with(clip=0.1), tmp_path)
    assert runner.furthest(config_with(), tmp_path / "nowhere") is None


def test_processes_share_a_plan_and_never_a_controller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    busy, free = config_with(), config_with(seed=8)
    plan = Plan(configs=(busy, free), milestones=(200, 400), folder=tmp_path)
    with runner._claimed(tmp_path / busy.name) as is_mine:
        assert is_mine
        run_plan(plan, Console(), make=make)
    assert f"{busy.name}: another process is training it." in capsys.readouterr().out
    assert not (tmp_path / busy.name / "checkpoint.npz").exists()
    assert TrainingState.load(tmp_path / free.name / "checkpoint.npz").steps == 400

    run_plan(plan, Console(), make=make)
    assert "another process" not in capsys.readouterr().out
    alone = Plan(configs=(busy,), milestones=(200, 400), folder=tmp_path / "alone")
    run_plan(alone, Console(quiet=True), make=make)
    ended = [TrainingState.load(folder / busy.name / "checkpoint.npz") for folder in (tmp_path, tmp_path / "alone")]
    assert ended[0].parameters.tobytes() == ended[1].parameters.tobytes()


def test_a_milestone_is_written_even_if_interrupted_right_after_it(tmp_path: Path, monkeypatch) -> None:
    plan = Plan(configs=(config_with(),), milestones=(200, 400), folder=tmp_path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_curve", stop)
        with pytest.raises(KeyboardInterrupt):
            run_plan(plan, Console(quiet=True), make=make)
    run_plan(plan, Console(quiet=True), make=make)
    steps = {path.name: TrainingState.load(path).steps for path in (tmp_path / config_with().name).glob("*.npz")}
    assert steps == {"checkpoint.npz": 400, "milestone-200.npz": 200, "milestone-400.npz": 400}


def test_real_processes_share_a_plan_and_write_every_milestone(tmp_path: Path) -> None:
    """Two processes at once: each controller passes each milestone once, and its weights are those of one process."""
    configs, milestones = tuple(config_with(seed=seed) for seed in (1, 2, 3)), (200, 400, 600)
    plan = Plan(configs=configs, milestones=milestones, folder=tmp_path / "shared")
    context = multiprocessing.get_context("fork" if "fork" in multiprocessing.get_all_start_methods() else None)
    workers = [context.Process(target=run_plan, args=(plan, Console(quiet=True)), kwargs={"make": make}) for _ in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    run_plan(plan, Console(quiet=True), make=make)
    run_plan(Plan(configs=configs, milestones=milestones, folder=tmp_path / "alone"), Console(quiet=True), make=make)
    for config in configs:
        for milestone in milestones:
            name = f"{config.name}/milestone-{milestone}.npz"
            shared, alone = (TrainingState.load(tmp_path / folder / name) for folder in ("shared", "alone"))
            assert shared.steps == milestone
            assert shared.parameters.tobytes() == alone.parameters.tobytes()


def test_plan_refuses_two_environments() -> None:
    other = TrainingConfig(environment="SafetyOther0-v0", seed=12, **SMALL)
    with pytest.raises(ValueError, match="one environment"):
        Plan(configs=(config_with(), other), milestones=(200,), folder=Path("x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds = [1]", "must have the keys"),
        ('environment = "a"\nseeds = [1]\nmilestones = [20_000]\nfolder = "x"\nfast = 1', "must have the keys"),
        ('environment = "a"\nseeds = [1, 1]\nmilestones = [20_000]\nfolder = "x"', "each once"),
        ('environment = "a"\nseeds = [1]\nmilestones = [40_000, 20_000]\nfolder = "x"', "must increase"),
        ('environment = "a"\nseeds = [1]\nmilestones = [30_000]\nfolder = "x"', "must be multiples of 20000"),
    ],
)
def test_plan_refuses(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Plan.read(path)


def test_shipped_plan_names_the_papers_controllers() -> None:
    plan = Plan.read(Path(__file__).parents[3] / "experiments" / "training" / "plan.toml")
    assert [config.seed for config in plan.configs] == [1120275774, 1346831933, 658990255]
    assert plan.milestones[-1] == 10_000_000
    assert {config.environment for config in plan.configs} == {"SafetyPointGoal2-v0"}


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
