"""Certify a policy while it is trained: what the hooks of two libraries share, and the hook for OmniSafe.

The callback for Stable-Baselines3 is in `ccfs.controllers.training.sb3_callback`, because its class needs that library.
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ccfs.certificates import checks
from ccfs.policy import Claim, certify_policy, check_policy
from ccfs.runs.store import PremiseError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ccfs.controllers.intake import Policy
    from ccfs.policy import EnvOrMaker
    from ccfs.results.certificate import RunCertificate

__all__ = ["Certified", "Certifying", "certify_omnisafe"]

KEYS: Final = ("rate", "p_lower", "budget")
"""What is logged: the observed rate of the event, the lower bound on its probability, and the certified budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """A certificate and how long the policy had been trained. It is None if the premises did not hold."""

    steps: int
    certificate: RunCertificate | None

    @property
    def logged(self) -> dict[str, float]:
        """The numbers for a log. A bound is rounded down, and the budget is left out if nothing is certified."""
        found = self.certificate
        if found is None:
            return {}
        numbers = {"rate": found.successes / found.trials, "p_lower": _shown(found.p_lower)}
        return numbers if found.budget is None else {**numbers, "budget": _shown(found.budget)}


class Certifying:
    """Certifies a policy a fixed number of times during one training. All certificates together share `delta`.

    The trials of each certificate have seeds of their own. So a certificate holds even if the training was steered by
    earlier ones, and whoever picks the best certificate still has the confidence of 1 - `delta`.
    """

    def __init__(self, env: EnvOrMaker, *, times: int, folder: str | Path | None, claim: Claim) -> None:
        self._env, self._times = env, checks.count("times", times, minimum=1)
        if "family" in claim:
            raise TypeError("`family` must not be given here: the certificates of one training are the family.")
        self._claim = claim
        self.folder = None if folder is None else Path(folder)
        self.certificates: list[Certified] = []

    def begin(self, policy: Policy) -> None:
        """Refuse a mistake in the claim before the training, and a second training."""
        if self.certificates:
            raise ValueError(
                "Each training must have a hook of its own, got one whose certificates are spent. Make another one, "
                "with its own `delta` and `seed`."
            )
        check_policy(self._env, policy, **self._claim, family=self._times)  # type: ignore[misc]

    def is_due(self, share: float) -> bool:
        """Say whether the next certificate is due after this share of the training."""
        number = len(self.certificates)
        return number < self._times and share * self._times >= number + 1

    def certify(self, policy: Policy, steps: int) -> Certified:
        """Certify the policy as it is now. A premise that does not hold is a warning, so that the training goes on."""
        number = len(self.certificates)
        claim = Claim(**{**self._claim, "family": self._times, "seed": self._claim["seed"] + number})
        run = None if self.folder is None else self.folder / f"steps-{steps}"
        certificate = None
        try:
            certificate = certify_policy(self._env, policy, **claim, run=run, progress=False)
        except PremiseError as error:
            warnings.warn(f"Nothing is certified at {steps} steps: {error}", stacklevel=2)
        self.certificates.append(Certified(steps=steps, certificate=certificate))
        return self.certificates[-1]


def certify_omnisafe(
    agent: Any,
    env: EnvOrMaker,
    *,
    times: int,
    folder: str | Path | None = None,
    name: str = "ccfs",
    **claim: Unpack[Claim],
) -> Certifying:
    """Have an agent of OmniSafe 0.5.0 certified while it learns. Call this before `agent.learn()`.

    The numbers go to OmniSafe's own logger, so they are in its table, in progress.csv, in TensorBoard and in W&B:
    `ccfs/rate`, `ccfs/p_lower` and `ccfs/budget`. A budget that is not certified is NaN. Between two certificates the
    last numbers are repeated. Each certificate is about the mean policy with its normaliser frozen at that epoch. The
    last one is about the policy at the end.

    Args:
        agent: an `omnisafe.Agent` with one process, whose actor is a Gaussian policy (PPO, TRPO, CPO and their kin).
        env: the environment to certify in, such as `ccfs.envs.make_repeatable("SafetyPointGoal1-v0")`, or a
            function that makes it.
        times: number of certificates, spread evenly over the epochs. They share `delta`.
        folder: keeps the run of each certificate, with its policy beside it. None keeps nothing.
        name: of the group of numbers in the log.
        claim: the other arguments of `ccfs.certify_policy`: `event`, `schedule`, `horizon`, `trials`, `target`,
            `delta`, `seed` and, if needed, `verifier`, `fallbacks`, `draws`, `resolution`.

    Returns:
        The hook. After the training its `certificates` are a list.
    """
    settings, logger = agent.cfgs, agent.agent.logger
    epochs, steps = int(settings.train_cfgs.epochs), int(settings.algo_cfgs.steps_per_epoch)
    _refuse(settings, times, epochs)
    hook = Certifying(env, times=times, folder=folder, claim=claim)
    shape = agent.agent._env.action_space.shape
    hook.begin(lambda _: np.zeros(shape))  # the normaliser has seen nothing yet, so the agent cannot be asked
    for key in KEYS:
        logger.register_key(f"{name}/{key}", window_length=1)
    dump = logger.dump_tabular

    def certified_and_dumped() -> None:
        epoch = int(logger.current_epoch) + 1
        if hook.is_due(epoch / epochs):
            with _saved(logger, epoch, steps, hook.folder) as policy:
                numbers = hook.certify(policy, epoch * steps).logged
            logger.store({f"{name}/{key}": numbers.get(key, math.nan) for key in KEYS})
        dump()

    logger.dump_tabular = certified_and_dumped
    return hook


def _refuse(settings: Any, times: int, epochs: int) -> None:
    """Refuse an agent that cannot be read, or that is trained in several processes."""
    if settings.model_cfgs.actor_type != "gaussian_learning":
        raise ValueError(
            f"`agent` must have an actor of type 'gaussian_learning', as on-policy algorithms have it, got "
            f"{settings.model_cfgs.actor_type!r}."
        )
    if settings.train_cfgs.parallel != 1:
        raise ValueError(f"`agent` must be trained in one process, got parallel={settings.train_cfgs.parallel}.")
    if not times <= epochs:
        raise ValueError(f"`times` must be at most the number of epochs, {epochs}, got {times}.")


@contextmanager
def _saved(logger: Any, epoch: int, steps: int, folder: Path | None) -> Iterator[Path]:
    """Save the agent as OmniSafe does, in a folder of its own, from which the intake reads it.

    OmniSafe itself saves an epoch only after its row of the log is written.
    """
    import torch

    with TemporaryDirectory(prefix="ccfs-") as scratch:
        place = Path(scratch) if folder is None else folder / f"policy-{epoch * steps}"
        (place / "torch_save").mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(logger.log_dir) / "config.json", place)
        parts = {key: part.state_dict() for key, part in logger._what_to_save.items()}
        torch.save(parts, place / "torch_save" / f"epoch-{epoch}.pt")
        yield place


def _shown(bound: float) -> float:
    """Return a bound as a log may show it: three digits, rounded down, in the single precision that TensorBoard keeps.

    >>> _shown(0.98765) <= 0.987 < 0.98765
    True
    """
    digits = float(Context(prec=3, rounding=ROUND_FLOOR).create_decimal(bound))
    single = np.float32(digits)
    return float(single if float(single) <= digits else np.nextafter(single, np.float32(-math.inf)))
