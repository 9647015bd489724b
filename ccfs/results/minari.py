"""Export trials of a run as a Minari dataset. Observations come from a replay that must meet the stored hashes.

With a sensor stage the observations are the environment's own, and `infos` also has what was read of them. So the
environment that a dataset recovers is the plain one: an episode's seed and actions give its observations again.
"""

from __future__ import annotations

import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import DTypeLike, NDArray

from ccfs.files.reading import entries
from ccfs.protocol.model import NOMINAL, Arm, AttackSpec, Protocol
from ccfs.protocol.tables import EnvironmentSpec
from ccfs.runs.batches import plan
from ccfs.runs.build import build_arm, build_environment
from ccfs.runs.host import ChildHost
from ccfs.runs.manifest import manifest_faults
from ccfs.runs.reader import RunReader
from ccfs.runs.record import StepRow, TrajectoryRow
from ccfs.runs.store import RunError, Store, Trust
from ccfs.runs.trial import StopRule, TrialRecorder, run_trial
from ccfs.runs.trust import foreign_parts, places_of, untrusted
from ccfs.runtime.environment import Signals, inner_step
from ccfs.runtime.grid import Grid
from ccfs.runtime.interfaces import Controller, Vector
from ccfs.runtime.program import CausalProgram
from ccfs.runtime.wrapper import ProposalWrapper

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer

__all__ = ["Exported", "export_minari"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was exported. `left_out` are the trials that ended before any step was executed."""

    dataset_id: str
    episodes: int
    steps: int
    left_out: tuple[int, ...]


class _Listening:
    """A controller that keeps what it reads in a trial."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.read: list[Vector] = []

    @property
    def digest(self) -> str:
        return self._controller.digest

    def reset(self) -> None:
        self.read = []
        self._controller.reset()

    def center(self, observation: Vector) -> Vector:
        self.read.append(observation.copy())
        return self._controller.center(observation)


class _Tap(gymnasium.Wrapper[Vector, Vector, Vector, Vector]):
    """Keeps the environment's own observations of a trial, rounded to the protocol's grid."""

    def __init__(self, env: gymnasium.Env[Vector, Vector], seen: Callable[[Vector], Vector]) -> None:
        super().__init__(env)
        self._seen_as = seen
        self.seen: list[Vector] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Vector, dict[str, object]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self.seen = [self._seen_as(observation)]
        return observation, info

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, object]]:
        returned = self.env.step(action)
        self.seen.append(self._seen_as(returned[0]))
        return returned  # type: ignore[return-value]  # five values or six, as the environment has it


class Recovered(gymnasium.Wrapper[Vector, Vector, Vector, Vector]):
    """The environment of an exported dataset: without noise, with rounded observations and five results per step."""

    def __init__(self, env: gymnasium.Env[Vector, Vector], spec: EnvironmentSpec) -> None:
        super().__init__(env)
        self._grid, self._signals = Grid(spec.grid), Signals(cost=spec.cost, goal=spec.goal)

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[Vector, dict[str, object]]:
        """Begin an episode. The seed of an episode of the dataset gives its first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._grid(observation), info

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, object]]:
        """Step the environment. Its cost, if it has one, is `info["cost"]`."""
        found = inner_step(self.env, action, self._signals)
        info = found.info if found.cost is None else {**found.info, "cost": found.cost}
        return self._grid(found.observation), found.reward, found.terminated, found.truncated, info


def recovered(environment: dict[str, object]) -> Recovered:
    """Return the environment of a dataset. Minari's `recover_environment` calls this with what the dataset says."""
    spec = EnvironmentSpec.model_validate(environment)
    return Recovered(build_environment(spec), spec)


def _spec(protocol: Protocol) -> EnvSpec:
    """Return what Minari needs to make the environment again. Our own checks replace Gymnasium's checker."""
    return EnvSpec(
        id=f"ccfs/{protocol.name}-v0",
        entry_point=f"{__name__}:recovered",
        disable_env_checker=True,
        kwargs={"environment": protocol.environment.model_dump(mode="json")},
    )


def export_minari(store: Store, dataset_id: str, *, arm: str | None = None, attack: str | None = None) -> Exported:
    """Write the trials of one arm, nominal or under one attack, as a Minari dataset on this machine.

    A trial that does not replay to its stored hash is refused. A step in which the program abstained has no action, so
    it is not exported, and its episode ends truncated. Code that the protocol names runs only as far as the run is
    trusted (`Store.trust`).

    Args:
        store: a finished run.
        dataset_id: Minari's name for it, such as "demo/steering-v0".
        arm: "controller/schedule". It may be left out if the run has one arm.
        attack: name of an attack. None exports the nominal trials.
    """
    try:
        from minari import create_dataset_from_buffers
        from minari.dataset.minari_dataset import parse_dataset_id
        from minari.storage import get_dataset_path
    except ImportError as error:
        raise ImportError("Exporting to Minari needs Minari. Install it: pip install 'ccfs-rl[minari]'") from error
    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`dataset_id` (`--minari`) must be a name with a version, such as demo/steering-v0, got {dataset_id!r}."
        ) from error
    if get_dataset_path(dataset_id).exists():
        raise ValueError(
            f"`dataset_id` must be new, got {dataset_id!r}. Delete it with `minari delete`, or choose another."
        )
    faults = manifest_faults(store)
    if faults:
        raise RunError(f"{store.root}: {faults[0]} Audit this run before exporting it.")
    protocol = store.protocol()
    chosen, shift = _choose_arm(protocol, arm), _choose_attack(protocol, attack)
    first = next(plan(protocol, chosen, shift))
    parts = foreign_parts(protocol, places_of(protocol, first))
    if parts and store.trust is Trust.NONE:
        raise untrusted(store.root, "exporting", parts)
    if parts and store.trust is Trust.CONFINED:
        return _export_confined(store, protocol, dataset_id, arm, attack, get_dataset_path(dataset_id))
    wrapped, made = build_arm(protocol, chosen, shift)
    controller = _Listening(made)
    tap = _Tap(wrapped.env, wrapped.seen)
    wrapped.env = tap
    try:
        buffers, metadata, left_out = [], [], []
        for row, recorder in _replayed(store, protocol, chosen, shift, wrapped, controller):
            if row.steps == 0:
                left_out.append(row.trial)
                continue
            readings = controller.read if wrapped.schedule.sensor is not None else None
            buffers.append(_episode(row, recorder.steps, tap.seen, readings, wrapped.program, tap.action_space.dtype))
            metadata.append({"trial": row.trial, "reset_seed": row.reset_seed, "outcome": row.outcome})
        if not buffers:
            raise RunError(f"{store.root}: holds no trial with a step to export.")
        with warnings.catch_warnings():
            # Minari warns that author, link and environment for evaluation are missing. Only the user could know them.
            warnings.filterwarnings("ignore", category=UserWarning, module="minari")
            dataset = create_dataset_from_buffers(
                dataset_id=dataset_id,
                buffer=buffers,
                env=_spec(protocol),
                requirements=[f"ccfs-rl>={version('ccfs-rl')}"],
                observation_space=tap.observation_space,
                action_space=tap.action_space,
                algorithm_name=f"ccfs {chosen.name}",
                description=_description(protocol, chosen, shift, left_out),
                data_format="arrow",
            )
        dataset.storage.update_episode_metadata(metadata)
    finally:
        wrapped.close()
    return Exported(
        dataset_id=dataset_id,
        episodes=int(dataset.total_episodes),
        steps=int(dataset.total_steps),
        left_out=tuple(left_out),
    )


def _export_confined(
    store: Store, protocol: Protocol, dataset_id: str, arm: str | None, attack: str | None, place: Path
) -> Exported:
    """Export in the child process, which may write to its scratch folder only, and move the dataset from there."""
    host = ChildHost(store, protocol)
    try:
        told = host.call(f"{__name__}:exported", dataset_id=dataset_id, arm=arm, attack=attack)
        made = host.scratch / "minari" / dataset_id
        if not all(stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode) for _, status in entries(made)):
            raise RunError(f"{dataset_id}: must hold plain files only.")
        shutil.copytree(made, place)
    finally:
        host.close()
    counts = told if isinstance(told, dict) else {}
    return Exported(
        dataset_id=dataset_id,
        episodes=int(counts["episodes"]),
        steps=int(counts["steps"]),
        left_out=tuple(int(trial) for trial in counts["left_out"]),
    )


def exported(store: Store, dataset_id: str, arm: str | None, attack: str | None) -> dict[str, object]:
    """Export as `export_minari`, and return the result as JSON has it. The child process calls this."""
    return asdict(export_minari(store, dataset_id, arm=arm, attack=attack))


def _replayed(
    store: Store,
    protocol: Protocol,
    arm: Arm,
    attack: AttackSpec | None,
    wrapped: ProposalWrapper,
    controller: Controller,
) -> Iterator[tuple[TrajectoryRow, TrialRecorder]]:
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    reader = RunReader(store, protocol)
    for batch in reader.batches(arm, attack):
        for stored in reader.trajectories(batch):
            recorder, row = run_trial(
                wrapped,
                controller,
                horizon=protocol.horizon,
                stop=stop,
                streams=protocol.streams(arm, stored.trial),
            )
            if (row.chain, row.outcome, row.error) != (stored.chain, stored.outcome, stored.error):
                raise RunError(
                    f"{store.path(batch.trajectories)}: trial {stored.trial} does not replay to its stored hash. "
                    "Use the versions that `ccfs audit` names."
                )
            yield row, recorder


def _episode(
    row: TrajectoryRow,
    steps: list[StepRow],
    seen: list[Vector],
    readings: list[Vector] | None,
    program: CausalProgram,
    dtype: DTypeLike,
) -> EpisodeBuffer:
    from minari.data_collector import EpisodeBuffer

    done = [step for step in steps if step.action is not None]
    is_cut = not (done[-1].terminated or done[-1].truncated)
    return EpisodeBuffer(
        id=None,
        seed=row.reset_seed,
        observations=seen[: len(done) + 1],
        actions=[_action(step, program, dtype) for step in done],
        rewards=[step.reward for step in done],
        terminations=[step.terminated for step in done],
        truncations=[step.truncated or (is_cut and step is done[-1]) for step in done],
        infos={
            "cost": _column([0.0, *(np.nan if step.cost is None else step.cost for step in done)]),
            "goal": _column([False, *(step.goal for step in done)]),
            "is_fallback": _column([False, *(step.source == "fallback" for step in done)]),
            "index": _column([-1, *(step.index for step in done)]),
            # What each decision was based on. Nobody decides on the last observation, so it is there as it is.
            **({} if readings is None else {"reading": np.array([*readings[: len(done)], seen[len(done)]])}),
        },
    )


def _action(step: StepRow, program: CausalProgram, dtype: DTypeLike) -> NDArray[np.generic]:
    action = np.array(step.action, dtype=dtype)
    is_number = program.choices is not None and program.choices.is_single
    return action.reshape(()) if is_number else action


def _column(values: list[float] | list[bool] | list[int]) -> NDArray[np.generic]:
    """Return a column with one entry per row. Minari 0.5 writes plain vectors in `infos` but cannot read them back."""
    return np.array(values)[:, None]


def _choose_arm(protocol: Protocol, name: str | None) -> Arm:
    names = [arm.name for arm in protocol.arms]
    if name is None and len(names) == 1:
        return protocol.arms[0]
    if name not in names:
        raise ValueError(f"`arm` must be one of {', '.join(names)}, got {name}.")
    return protocol.arms[names.index(name)]


def _choose_attack(protocol: Protocol, name: str | None) -> AttackSpec | None:
    if name is None or name == NOMINAL:
        return None
    for spec in protocol.attacks:
        if spec.name == name:
            return spec
    accepted = ", ".join([NOMINAL, *(spec.name for spec in protocol.attacks)])
    raise ValueError(f"`attack` must be one of {accepted}, got {name}.")


def _description(protocol: Protocol, arm: Arm, attack: AttackSpec | None, left_out: list[int]) -> str:
    how = "nominal" if attack is None else f"under the attack {attack.name}"
    words = f"Trials of {arm.name}, {how}, of the CCFS run {protocol.name} (protocol {protocol.hash})."
    missing = f" Trials without any executed step are left out: {left_out}." if left_out else ""
    return words + missing
