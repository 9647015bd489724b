"""Train an agent by an algorithm of stock OmniSafe on our environments: CPO, PCPO, FOCOPS, CUP and its others.

OmniSafe cannot go on with an interrupted training. It begins anew.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccfs.controllers import zoo
from ccfs.controllers.adapters.omnisafe import from_omnisafe
from ccfs.controllers.training.runner import versions

__all__ = ["PREFIX", "train"]

PREFIX = "omnisafe-"
"""What the name of such an algorithm begins with in rows.toml."""
_COPIES = 10
_SHOWN = {"return": "Metrics/EpRet", "cost": "Metrics/EpCost", "length": "Metrics/EpLen"}


def train(
    algorithm: str, task: str, target: Path, *, seed: int, steps: int, settings: Mapping[str, Any], runs: Path,
    command: str,
) -> zoo.Card:  # fmt: skip
    """Train and write the last policy and its card into `target`.

    `algorithm` is spelled as in OmniSafe, and `settings` are those of the algorithm (`algo_cfgs`). What OmniSafe writes
    goes to `runs`.
    """
    made = _trained(algorithm, task, runs, seed=seed, steps=steps, settings=settings)
    with (made / "progress.csv").open(encoding="utf-8", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    config = json.loads((made / "config.json").read_text(encoding="utf-8"))
    return zoo.write(
        target,
        from_omnisafe(made),
        name=f"{PREFIX}{algorithm}-{task}-{seed}".lower(),
        algorithm=f"{algorithm} of OmniSafe",
        environment=task,
        seed=seed,
        steps=round(float(last["TotalEnvSteps"])),  # as counted by OmniSafe, whatever was asked for
        config={part: config[part] for part in ("train_cfgs", "algo_cfgs", "model_cfgs")},
        curve={name: _number(last[column]) for name, column in _SHOWN.items()},
        # The first layouts. The others come from the random streams of these.
        training_reset_seeds=(seed, seed + _COPIES - 1),
        versions=tuple(sorted(versions("omnisafe", "torch"))),
        command=command,
    )


def _trained(algorithm: str, task: str, folder: Path, *, seed: int, steps: int, settings: Mapping[str, Any]) -> Path:
    """Train, and return the folder that OmniSafe wrote."""
    from ccfs.envs.safety import omnisafe as ours  # first, because OmniSafe alone does not import on Python 3.11

    import omnisafe  # isort: skip

    shutil.rmtree(folder, ignore_errors=True)  # left by an interruption
    settings_of_parts = {
        "seed": seed,
        "train_cfgs": {"total_steps": steps, "vector_env_nums": _COPIES, "torch_threads": 1},
        "algo_cfgs": dict(settings),
        "logger_cfgs": {"log_dir": str(folder), "use_wandb": False, "use_tensorboard": False},
    }
    agent = omnisafe.Agent(algorithm, ours.PREFIX + task, custom_cfgs=settings_of_parts)
    agent.learn()
    return Path(agent.agent.logger.log_dir)


def _number(text: str) -> float | None:
    """Return a mean over episodes, None if none ended."""
    found = float(text)
    return None if math.isnan(found) else round(found, 4)
