"""The attacked arms and what the training scripts share: constants, normaliser, export."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ccfs.attacks.attack import Attack
from ccfs.attacks.ledger import energy_limit
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.controllers import zoo
from ccfs.controllers.actor import FrozenNormalizer, NumpyActor
from ccfs.controllers.navigator import Navigator
from ccfs.protocol.model import load_protocol
from ccfs.runs.build import build_program
from ccfs.runtime.interfaces import Controller, ShiftRule
from ccfs.runtime.wrapper import ProposalWrapper

if TYPE_CHECKING:
    import torch

TASK, HORIZON = "SafetyPointGoal2-v0", 500
DEVELOPMENT = range(3_000_000_000, 3_001_000_000)
SIGMA = 0.2 / math.sqrt(1.05)
NAVIGATOR_SIGMA = 1.0
STUDY = Path(__file__).resolve().parents[1]
SHIPPED = Path(__file__).resolve().parents[3] / "ccfs" / "attacks" / "networks"


def controller_of(arm: str) -> tuple[Controller, ProposalSchedule]:
    """Return controller and schedule of an arm: "navigator", or the name of a shipped agent."""
    if arm == "navigator":
        return Navigator(NAVIGATOR_SIGMA), ProposalSchedule(count=1, sigma=NAVIGATOR_SIGMA)
    return zoo.load(arm).actor, ProposalSchedule(count=1, sigma=SIGMA)


def wrapped(arm: str, rule: ShiftRule, budget: float, *, seed: int) -> ProposalWrapper:
    """Return the wrapped task of an arm, with verifier and fallbacks of the protocol in which it is attacked."""
    from ccfs.envs.registration import make_gymnasium

    env, (_, schedule) = make_gymnasium(TASK), controller_of(arm)
    protocol = load_protocol(STUDY / ("navigator.toml" if arm == "navigator" else "attacks.toml"))
    return ProposalWrapper(
        env,
        program=build_program(protocol, env),
        schedule=schedule,
        seed=seed,
        horizon=HORIZON,
        attack=Attack(rule=rule, limit=energy_limit(budget, schedule), schedule=schedule),
    )


def normalizer_of(rows: NDArray[np.float64], *, plain: int) -> FrozenNormalizer:
    """Return the normaliser of these rows; the last `plain` columns are left as they are."""
    mean, std = rows.mean(axis=0), np.maximum(rows.std(axis=0), 0.01)
    mean[-plain:], std[-plain:] = 0.0, 1.0
    return FrozenNormalizer(mean=mean, std=std, clip=np.float32(5.0))  # type: ignore[arg-type]


def as_actor(
    layers: Sequence[torch.nn.Linear], normalizer: FrozenNormalizer, *, output: str = "identity"
) -> NumpyActor:
    """Return torch layers with tanh between them as a numpy network."""
    return NumpyActor(
        weights=tuple(layer.weight.detach().numpy() for layer in layers),
        biases=tuple(layer.bias.detach().numpy() for layer in layers),
        activation="tanh",
        output_activation=output,
        normalizer=normalizer,
    )


def ship(name: str, actor: NumpyActor, **card: object) -> None:
    """Write the network and its card into the package."""
    versions = tuple(f"{part}=={version(part)}" for part in ("ccfs", "numpy", "stable-baselines3", "torch"))
    written = zoo.write(SHIPPED / name, actor, name=name, environment=TASK, versions=versions, **card)
    print(f"{name}: digest {written.digest}")
