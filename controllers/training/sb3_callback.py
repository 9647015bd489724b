"""A callback of Stable-Baselines3 that certifies the policy while it learns, through the library's own logger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stable_baselines3.common.callbacks import BaseCallback

from ccfs.controllers.training.hooks import Certified, Certifying

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ccfs.policy import Claim, EnvOrMaker

__all__ = ["CertifyCallback"]


class CertifyCallback(BaseCallback):
    """Certifies a model a fixed number of times while it learns, the last time after its last update.

    The numbers go to the model's logger, so they are in its table, in TensorBoard and, synchronised, in W&B:
    `ccfs/rate` is the observed rate of the event, `ccfs/p_lower` the lower bound on its probability, and `ccfs/budget`
    the certified budget. The budget is left out where nothing is certified. Bounds are rounded down. The exact ones are
    in `certificates`.

    Each certificate is about the deterministic policy at that moment, with the statistics of `VecNormalize` frozen. The
    training itself is not changed: its weights are the same as without the callback.

    Args:
        env: the environment to certify in, or a function that makes it. It is not the one that the model learns in.
        times: number of certificates, spread evenly over the training. They share `delta`.
        folder: keeps the run of each certificate, with model.zip beside it. None keeps nothing.
        name: of the group of numbers in the log. Two callbacks for two events need two names.
        claim: the other arguments of `ccfs.certify_policy`: `event`, `schedule`, `horizon`, `trials`, `target`,
            `delta`, `seed` and, if needed, `verifier`, `fallbacks`, `draws`, `resolution`.
    """

    def __init__(
        self,
        env: EnvOrMaker,
        *,
        times: int,
        folder: str | Path | None = None,
        name: str = "ccfs",
        **claim: Unpack[Claim],
    ) -> None:
        super().__init__()
        self._hook, self._name = Certifying(env, times=times, folder=folder, claim=claim), name

    @property
    def certificates(self) -> list[Certified]:
        """The certificates so far, each with the steps of training before it."""
        return self._hook.certificates

    def _on_training_start(self) -> None:
        self._hook.begin(self.model)
        self._first, self._end = self.model.num_timesteps, int(self.locals["total_timesteps"])

    def _on_step(self) -> bool:
        done = self.num_timesteps - self._first
        # The last certificate waits for the last update of the weights.
        if self.num_timesteps < self._end and self._hook.is_due(done / (self._end - self._first)):
            self._certify()
        return True

    def _on_training_end(self) -> None:
        if self._hook.is_due(1.0):
            self._certify()

    def _certify(self) -> None:
        steps, folder = self.num_timesteps, self._hook.folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.model.save(folder / f"model-{steps}.zip")
            around = self.model.get_vec_normalize_env()
            if around is not None:
                around.save(str(folder / f"vecnormalize-{steps}.pkl"))
        for key, number in self._hook.certify(self.model, steps).logged.items():
            self.logger.record(f"{self._name}/{key}", number)
        self.logger.record("time/total_timesteps", steps, exclude="tensorboard")
        self.logger.dump(steps)
