"""Export a training checkpoint: a zoo entry, a checkpoint to resume from, and the learning curve."""

from __future__ import annotations

from pathlib import Path

from ccfs.controllers import zoo
from ccfs.controllers.training.networks import ACTOR
from ccfs.controllers.training.runner import write_curve
from ccfs.controllers.training.seeds import TRAINING_SEED_HIGH, TRAINING_SEED_LOW
from ccfs.controllers.training.state import CURVE, TrainingState
from ccfs.files.reading import read_text

__all__ = ["ALGORITHMS", "export", "write_entry"]

ALGORITHMS = {
    "cpo": "Constrained Policy Optimization (settings of OmniSafe 0.5.0 CPO, step of the paper)",
    "ppolag": "PPO-Lagrangian (settings and update of OmniSafe 0.5.0 PPOLag)",
    "ppo-penalty": "PPO with a fixed price of cost (settings and update of OmniSafe 0.5.0 PPOLag, multiplier held)",
    "trpolag": "TRPO-Lagrangian (settings and update of OmniSafe 0.5.0 TRPOLag)",
}
"""What a card says about each algorithm."""
_SHOWN = ("steps", "return", "cost", "multiplier")


def export(checkpoint: Path, *, zoo_folder: Path, record: Path) -> zoo.Card:
    """Write the zoo entry under `zoo_folder` and the checkpoint and its curve under `record`. Return the card.

    The card's step count is the checkpoint's. An entry that was trained further is not replaced.
    """
    state = TrainingState.load(checkpoint)
    if state.steps == 0:
        raise ValueError(f"{checkpoint} must hold at least one epoch, got none.")
    name, target = state.config.name, zoo_folder / state.config.name
    if (target / "card.json").exists():
        reached = zoo.Card.from_json(read_text(target / "card.json")).steps
        if not state.steps >= reached:
            raise ValueError(f"{name} is in the zoo with {reached} steps. The checkpoint has only {state.steps}.")
    card = write_entry(state, target, command=_command(state))
    state.save(record / "checkpoints" / f"{name}.npz")
    (record / "curves").mkdir(parents=True, exist_ok=True)
    write_curve(state, record / "curves" / f"{name}.csv")
    return card


def write_entry(state: TrainingState, target: Path, *, command: str) -> zoo.Card:
    """Write the actor of a checkpoint and its card into a folder. The step count is the checkpoint's."""
    return zoo.write(
        target,
        state.actor(),
        name=state.config.name,
        algorithm=ALGORITHMS[state.config.algorithm],
        environment=state.config.environment,
        seed=state.config.seed,
        steps=state.steps,
        config=state.config.as_dict(),
        curve=_summary(state),
        training_reset_seeds=(TRAINING_SEED_LOW, TRAINING_SEED_HIGH),
        versions=tuple(sorted(state.versions)),
        command=command,
    )


def _command(state: TrainingState) -> str:
    config = state.config
    algo = {"ppolag": "", "trpolag": " --algo trpo-lag", "cpo": " --algo cpo"}.get(
        config.algorithm, f" --algo ppo-penalty --penalty {config.multiplier_init}"
    )
    return f"ccfs train{algo} --environment {config.environment} --seed {config.seed} --steps {state.steps}"


def _summary(state: TrainingState) -> dict[str, zoo.Json]:
    """Return the curve's last row, and one row per million steps."""
    rows = [{key: row[CURVE.index(key)] for key in _SHOWN} for row in state.curve]
    million = [row for row in rows if row["steps"] % 1_000_000 == 0]
    log_std = state.layout.views(state.parameters)[2][ACTOR]
    return {
        "episodes_in_mean": len(state.episodes),
        "last": _plain(rows[-1]),
        "each_million_steps": [_plain(row) for row in million],
        "action_log_std": [float(value) for value in log_std],
    }


def _plain(row: dict[str, float]) -> dict[str, zoo.Json]:
    return {key: int(value) if key == "steps" else round(value, 4) for key, value in row.items()}
