"""Training plans: what a file must say, and the plan that is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_training import SMALL, config_with

from ccfs.controllers.training.config import TrainingConfig
from ccfs.controllers.training.plan import Plan


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
