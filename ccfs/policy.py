"""The front door in Python: certify a policy in one call, and audit the run that the call left."""

from __future__ import annotations

import inspect
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

import gymnasium
import numpy as np

from ccfs.certificates import checks
from ccfs.certificates.schedule import ProposalSchedule, Schedule, as_schedule
from ccfs.certificates.trajectory import Bound, certify_event
from ccfs.files.terminal import error_text, progress_display
from ccfs.results.certificate import RunCertificate
from ccfs.results.certify import certify
from ccfs.results.verify import verify
from ccfs.runs.build import check_horizon
from ccfs.runs.counting import impossible
from ccfs.runs.events import Event
from ccfs.runs.objects import Claimed, Objects
from ccfs.runs.preflight import Names, try_step
from ccfs.runs.reader import RunReader
from ccfs.runs.repeats import spread
from ccfs.runs.run import run_objects
from ccfs.runs.store import Store
from ccfs.runs.trace import Trace
from ccfs.runtime.components import AcceptAll
from ccfs.runtime.flat import flattened
from ccfs.runtime.interfaces import Vector, Verifier
from ccfs.runtime.program import CausalProgram, FallbackEntry, fallback_entries
from ccfs.runtime.remade import remaker
from ccfs.runtime.wrapper import ProposalWrapper

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ccfs.audit.run import AuditReport
    from ccfs.controllers.intake import Policy

__all__ = ["Claim", "audit_policy", "certify_policy", "check_policy", "load_certificate"]


AnyEnv: TypeAlias = gymnasium.Env[Any, Any]
EnvOrMaker: TypeAlias = gymnasium.Env[Vector, Vector] | Callable[[], gymnasium.Env[Vector, Vector]]


class Claim(TypedDict, total=False):
    """The arguments of `certify_policy` that say what is claimed. All but the last five must be given."""

    event: Event | Callable[[Trace], bool]
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule]
    horizon: int
    trials: int
    target: float
    delta: float
    seed: int
    draws: tuple[int, int] | None
    verifier: Verifier | None
    fallbacks: Sequence[FallbackEntry]
    family: int
    resolution: float | None


def certify_policy(
    env: EnvOrMaker,
    policy: Policy | Callable[[], Policy],
    *,
    event: Event | Callable[[Trace], bool],
    schedule: Schedule | ProposalSchedule | Sequence[ProposalSchedule],
    horizon: int,
    trials: int,
    target: float,
    delta: float,
    seed: int,
    draws: tuple[int, int] | None = None,
    verifier: Verifier | None = None,
    fallbacks: Sequence[FallbackEntry] = (),
    family: int = 1,
    resolution: float | None = None,
    run: str | Path | None = None,
    progress: bool = True,
) -> RunCertificate:
    """Run `trials` nominal trials of a wrapped policy and certify the probability of an event under shifts.

    Each trial resets `env` with a fresh seed and draws fresh proposal noise. So the trials are independent draws from
    one law, and Clopper and Pearson's bound applies. Theorem 14 (thm:adaptive-trajectory) turns it into a budget.

    Afterwards some trials are run again: three with the same objects, and a tenth, but 16 to 64 of them, in
    environments made anew, with a policy made anew if a function was given for it. The event is asked about each trace
    four times more. Random generators that the objects hold are watched. A part with a memory across episodes or with
    random numbers of its own then shows, and the call is refused (docs/threat-model.md says what this cannot see).

    Assumes: everything here was fixed before the call, `seed` included. Whoever chooses among several calls by their
    results must let `family` count them all. A trial in which anything raises is a failure.

    Args:
        env: environment with five or six return values per step, or a function that makes one. An environment must tell
            how another one is made: by its spec, as those of `gymnasium.make` do, or by attributes that are called
            like the arguments of its class. Its action space is a Box of shape (d,), a Discrete or a MultiDiscrete.
            Dict observations are flattened for noise and trace, and the policy gets its dict back.
        policy: gives an action for an observation, or scores of discrete actions. A function, a model with `predict`, a
            torch module, a Controller, or the path of a saved model (`ccfs.controllers.as_controller`). A model of
            Stable-Baselines3 gets observations as its own environment prepares them, `VecNormalize` included. Or a
            function without arguments that makes one of these. It is then called again for the repeated trials.
        event: what counts as success, a function of the public trace alone.
        schedule: the blocks of each stage. One block for all steps, or one per step, are those of the action stage, or
            of the score stage if actions are discrete.
        horizon: greatest number of steps.
        trials: number of trials, fixed in advance.
        target: the probability to keep, in (0, 1).
        delta: failure probability over all `family` claims.
        seed: root of all random streams. The key of a trial's noise also has the numbers of the claim and the digests
            of policy, event, verifier and fallbacks, as far as these can be read. The same call draws the same noise
            again. After tuning, take another seed.
        draws: (pilot, main) if several trials shall start from each initial state. Then the stratified bound applies
            (docs/which-certificate.md says when it pays), and `trials` is a multiple of their sum. None starts every
            trial from an initial state of its own.
        verifier: says which actions may run. None accepts every finite action in the box.
        fallbacks: asked in order if no proposal is accepted. Without an accepted one the trial abstains and fails.
        family: number of claims that share `delta`.
        resolution: a power of two such as 2.0**-20. Observations are rounded to its multiples. None does not round.
        run: a new folder to keep the run in, with traces, certificate and report. None keeps nothing. The commands
            `ccfs report`, `table`, `verify` and `audit` read it. Only `audit_policy` can replay it.
        progress: show a bar on stderr, if that is a terminal.

    Raises:
        PremiseError: trials do not repeat. Nothing is certified.
    """
    objects, claim = _prepared(
        env,
        policy,
        Claim(
            event=event,
            schedule=schedule,
            horizon=horizon,
            trials=trials,
            target=target,
            delta=delta,
            seed=seed,
            draws=draws,
            verifier=verifier,
            fallbacks=fallbacks,
            family=family,
            resolution=resolution,
        ),
    )
    with TemporaryDirectory(prefix="ccfs-") as scratch:
        root = Path(scratch) / "run" if run is None else Path(run)
        total = claim.trials + objects.repeats(claim.trials)
        with _progress(objects.name, total, is_shown=progress) as advance:
            store = run_objects(objects, claim, root, advance=advance)
        (certificate,) = certify(store)
        if run is not None:
            from ccfs.report.page import write_report  # a page needs more than a certificate

            write_report(store)
    return certificate


def check_policy(env: EnvOrMaker, policy: Policy | Callable[[], Policy], **claim: Unpack[Claim]) -> None:
    """Raise what `certify_policy` would raise before its first trial. One step is tried, and nothing is certified."""
    inspect.signature(certify_policy).bind(env, policy, **claim)  # names the argument that is missing or unknown
    _prepared(env, policy, claim)


def _prepared(env: EnvOrMaker, policy: Policy | Callable[[], Policy], given: Claim) -> tuple[Objects, Claimed]:
    """Return the objects and the numbers of a claim.

    Mistakes must show before hours of trials: first in the numbers, then in the parts, by one step.
    """
    count, horizon = checks.count("trials", given["trials"], minimum=1), given["horizon"]
    verifier, fallbacks = given.get("verifier"), given.get("fallbacks", ())
    objects = _objects(env, policy, event=given["event"], verifier=verifier, fallbacks=fallbacks)
    program = CausalProgram.for_space(objects.env.action_space, verifier=objects.verifier, fallbacks=objects.fallbacks)
    claim = Claimed(
        schedule=as_schedule(given["schedule"], program.deciding),
        horizon=horizon,
        trials=count,
        target=given["target"],
        delta=given["delta"],
        family=given.get("family", 1),
        seed=given["seed"],
        resolution=given.get("resolution"),
        draws=_draws(given.get("draws"), count),
    )
    wrapped = objects.wrapped(claim)
    check_horizon(objects.env, horizon, name="env")
    certify_event(
        0,
        count,
        delta=claim.delta,
        family=claim.family,
        target=claim.target,
        schedule=claim.schedule,
        bound=Bound.CLOPPER_PEARSON,
    )
    missing = impossible(objects.protocol(claim))
    if missing is not None:
        raise ValueError(f"`trials` must be enough to certify `target`, but {missing}.")
    _try_one_step(objects, wrapped, claim.seed)
    return objects, claim


def _draws(draws: object, trials: int) -> tuple[int, int] | None:
    """Return the numbers of pilot and main draws at each initial state. Refuse others than `trials` is made of."""
    if draws is None:
        return None
    if not isinstance(draws, Sequence) or isinstance(draws, str) or len(draws) != 2:
        raise TypeError(f"`draws` must be a pair (pilot, main) of numbers of trials, got {draws!r}.")
    pilot, main = checks.count("draws[0]", draws[0]), checks.count("draws[1]", draws[1], minimum=1)
    if trials % (pilot + main):
        raise ValueError(
            f"`trials` must be a multiple of the {pilot + main} draws at each initial state, got {trials}."
        )
    return pilot, main


def audit_policy(
    run: str | Path,
    env: EnvOrMaker,
    policy: Policy | Callable[[], Policy],
    *,
    event: Event | Callable[[Trace], bool],
    verifier: Verifier | None = None,
    fallbacks: Sequence[FallbackEntry] = (),
    replay: int | None = None,
) -> AuditReport:
    """Audit a run that `certify_policy` left, and replay its trials with the same objects.

    Everything that `ccfs audit` checks is checked. Then the objects are compared with what the run recorded of them,
    and trials are run again, each in a new environment if one can be made. Every field and every verdict of the event
    must come out the same.

    Args:
        run: the folder of the run.
        env: as it was given to `certify_policy`, and so are the other objects.
        policy: the policy.
        event: the event.
        verifier: the verifier.
        fallbacks: the fallbacks.
        replay: how many trials to replay, spread evenly over the run. None replays all.
    """
    from ccfs.audit.run import audit

    store = Store(Path(run))
    report = audit(store)
    if not report.is_clean:
        return report
    protocol = store.protocol()
    objects = _objects(env, policy, event=event, verifier=verifier, fallbacks=fallbacks)
    claim = Claimed.of(protocol)
    here = objects.protocol(claim)
    faults = [
        f"protocol.json: `{key}` is {there} in the run, and {now} of these objects."
        for key, there, now in _differences(protocol.model_dump(mode="json"), here.model_dump(mode="json"))
    ]
    replayed = 0
    if not faults:
        reader = RunReader(store, protocol)
        homes = {trial: batch for batch in reader.batches(protocol.arms[0], None) for trial in batch.trials}
        chosen = list(homes) if replay is None else spread(len(homes), checks.count("replay", replay))
        for trial in chosen:
            used = objects.wrapped(claim, objects.make())
            found = objects.difference(reader, protocol, homes[trial], trial, used)
            used.close()
            if found is not None:
                faults.append(f"{homes[trial].traces}: trial {trial} does not replay: {found}")
        replayed = 0 if faults else len(chosen)
    return report.model_copy(update={"faults": tuple(faults), "unchecked": (), "replayed": replayed})


def load_certificate(path: str | Path) -> RunCertificate:
    """Read a certificate of a run and recompute its numbers. Raise CertificateError if one does not follow."""
    return verify(Path(path), None)


def _differences(there: object, here: object, key: str = "") -> Iterator[tuple[str, object, object]]:
    """Yield the places where two protocols differ, each with both values."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({*there, *here}):
            yield from _differences(there.get(name), here.get(name), f"{key}.{name}".lstrip("."))
    elif isinstance(there, (list, tuple)) and isinstance(here, (list, tuple)) and len(there) == len(here):
        for number, (before, now) in enumerate(zip(there, here, strict=True)):
            yield from _differences(before, now, f"{key}.{number}")
    elif there != here:
        yield key, there, here


def _objects(
    env: object,
    policy: Policy | Callable[[], Policy],
    *,
    event: Event | Callable[[Trace], bool],
    verifier: Verifier | None,
    fallbacks: Sequence[FallbackEntry],
) -> Objects:
    """Return what the user gave, in the form in which it runs."""
    from ccfs.controllers.intake import as_controller

    success = _event(event)
    entries = fallback_entries(fallbacks)
    made = _made(env)
    makes = cast("Callable[[], Policy] | None", policy if _makes_a_policy(policy) else None)
    given = cast("Policy", policy) if makes is None else makes()
    controller = as_controller(given, env=made)
    make = remaker(made) if made is env else partial(_made, env)
    return Objects(
        env=flattened(made),
        make=lambda: flattened(make()),
        controller=controller,
        remake=None if makes is None else lambda: as_controller(makes(), env=made),
        source=controller if isinstance(given, (str, os.PathLike)) else given,
        verifier=AcceptAll() if verifier is None else verifier,  # an empty container of rules is a verifier too
        fallbacks=tuple(replace(entry, name=_written(entry.name)) for entry in entries),
        event=success,
        judge=event,
        name=_name(event),
    )


def _makes_a_policy(policy: object) -> bool:
    """Say whether this is a function without arguments, or a class that needs none. A policy takes an observation."""
    if not callable(policy) or isinstance(policy, (str, os.PathLike)):
        return False
    try:
        parameters = inspect.signature(policy).parameters.values()
    except (TypeError, ValueError):  # nobody can tell what it takes
        return False
    if isinstance(policy, type):
        return all(part.default is not part.empty or part.kind in _MANY for part in parameters)
    return not parameters


_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _made(env: object) -> AnyEnv:
    """Return an environment as it was given, or as a function makes one."""
    _refuse_what_is_no_environment(env)
    made = env() if callable(env) and not isinstance(env, gymnasium.Env) else env
    if not isinstance(made, gymnasium.Env):
        raise TypeError(f"`env` must be an environment or a function that makes one, got {made!r} from it.")
    return made


_VECTORS = ("gymnasium.vector.", "stable_baselines3.common.vec_env.", "gymnasium.experimental.vector.")


def _refuse_what_is_no_environment(env: object) -> None:
    kinds = [f"{kind.__module__}." for kind in type(env).__mro__]
    if any(kind.startswith(_VECTORS) for kind in kinds):
        raise TypeError(
            f"`env` must be a single environment, got {type(env).__name__}, which steps several at once. Trials are "
            "counted one by one: pass one environment, as you made it before it was vectorised."
        )
    if isinstance(env, gymnasium.Env) or (callable(env) and not isinstance(env, str)):
        return
    advice = ""
    if isinstance(env, str):
        advice = f" Make it first: gymnasium.make({env!r})."
    elif any(kind.startswith("gym.") for kind in kinds):
        advice = " It is one of the old `gym`. Make it with gymnasium, or wrap it with shimmy."
    elif hasattr(env, "possible_agents"):
        advice = " It has several agents. Wrap it so that one policy acts for one of them."
    raise TypeError(f"`env` must be a Gymnasium environment, or a function that makes one, got {env!r}.{advice}")


@contextmanager
def _progress(name: str, total: int, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr if that is a terminal. Gives the function that moves it on."""
    if not is_shown:
        yield lambda trials: None
        return
    from rich.console import Console

    with progress_display(Console(stderr=True)) as display:
        task = display.add_task(name, total=total, note="trials")
        yield lambda trials: display.update(task, advance=trials)


class _Event:
    def __init__(self, function: Callable[[Trace], bool]) -> None:
        self._function = function

    def holds(self, trace: Trace) -> bool:
        try:
            verdict: object = self._function(trace)
        except Exception as error:
            raise ValueError(f"`event` must answer a trace, but it raised {error_text(error)}.") from error
        if not isinstance(verdict, (bool, np.bool_)):
            name = getattr(self._function, "__name__", type(self._function).__name__)
            raise TypeError(
                f"`event` must return True or False, got {reprlib.repr(verdict)} ({type(verdict).__name__}) from "
                f"{name}. Return a comparison of numbers, or `.all()` or `.any()` of an array."
            )
        return bool(verdict)


def _event(event: Event | Callable[[Trace], bool]) -> Event:
    if isinstance(event, type):
        raise TypeError(
            f"`event` must be made first, got the class {event.__name__}. "
            "Call it with its arguments, as in GoalBeforeCost(horizon=200)."
        )
    if isinstance(event, Event):
        return event
    if not callable(event):
        raise TypeError(f"`event` must be an event or a function of a trace, got {event!r}. See `ccfs.runs.events`.")
    return _Event(event)


def _name(event: Event | Callable[[Trace], bool]) -> str:
    name = str(getattr(event, "__name__", type(event).__name__)).lstrip("_")
    return name[:80] if name.isidentifier() and name.isascii() else "event"


def _written(name: str) -> str:
    """Return a name as a protocol can hold it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip("._-")[:80] or "fallback"


def _try_one_step(objects: Objects, wrapped: ProposalWrapper, seed: int) -> None:
    """Raise if a part makes a mistake. In a trial the mistake would only count as a failure."""
    verifier, controller = type(objects.verifier).__name__, objects.controller
    names = Names(
        environment="`env`",
        controller="`policy`",
        verifier=f"`verifier` {verifier}",
        cost="cost",
        advice="Have it reported there, or choose an event that needs none.",
    )

    def ask(observation: Vector) -> Vector:
        controller.reset()
        try:
            return controller.center(observation)
        except (TypeError, ValueError):  # an adapter's own words, or a message that names what is wrong
            raise
        except Exception as error:
            raise ValueError(f"`policy` must answer an observation, but it raised {error_text(error)}.") from error

    events = {objects.name: objects.event}
    try_step(wrapped, ask, schedules=[wrapped.schedule], root=seed, taken=(), events=events, names=names)
