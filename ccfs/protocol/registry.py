"""List the short names of the shipped parts, with the module that each one is imported from when it is needed.

A protocol's hash must survive a move of our code from one module to another. So a protocol names our parts by these
names, and "module:callable" is for code of the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = [
    "ALL_OF",
    "IN_MEMORY",
    "PARTS",
    "ShippedPart",
    "accepted",
    "is_safe",
    "shipped_as",
    "short_name",
    "target",
]

ALL_OF = "all-of"
"""The event that is made of other events."""
IN_MEMORY = "in-memory"
"""Stands for an object of the Python program that made a run, in the protocol that `certify_policy` writes."""
_OBJECTS = ("environment", "controller", "verifier", "fallback", "event")


Opens = Callable[[Mapping[str, object]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShippedPart:
    """One part of ours: where it is, which arguments a protocol may give it, and what it does.

    `opens` says whether it would open a file, a folder or a module that these arguments name.
    """

    target: str
    arguments: tuple[str, ...]
    does: str
    opens: Opens


def _nothing(arguments: Mapping[str, object]) -> bool:
    return False


def _a_file(arguments: Mapping[str, object]) -> bool:
    return True


def _a_folder(arguments: Mapping[str, object]) -> bool:
    """Return whether the name is none of a network that ships with the package."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(arguments.get("name")), re.ASCII) is None


def _a_module(arguments: Mapping[str, object]) -> bool:
    """Return whether an id of Gymnasium names a module to import, as "module:Id-v0" does."""
    return ":" in str(arguments.get("id"))


def _part(target: str, arguments: str, does: str, opens: Opens = _nothing) -> ShippedPart:
    return ShippedPart(target=target, arguments=tuple(arguments.split()), does=does, opens=opens)


PARTS: Mapping[str, Mapping[str, ShippedPart]] = {
    "environment": {
        "safety-gymnasium": _part(
            "ccfs.envs:make_repeatable",
            "env_id fast max_episode_steps",
            "A Safety-Gymnasium task with the bits of a stock one that was just made, several times faster.",
        ),
        "gymnasium": _part(
            "gymnasium:make",
            "id max_episode_steps",
            "An environment of Gymnasium, with the arguments of its own.",
            _a_module,
        ),
        "gymnasium-anew": _part(
            "ccfs.runtime.remade:make_anew",
            "id max_episode_steps",
            "The same, made anew at each reset, for simulators that remember earlier episodes, such as Box2D's.",
            _a_module,
        ),
        "corridor": _part(
            "ccfs.envs.toys.corridor:make",
            "horizon post start",
            "A cart in a corridor with a post at its end, whose worst attack is known exactly.",
        ),
        "chain": _part("ccfs.envs.toys.chain:make", "", "A walk on a few states that is solved exactly."),
    },
    "controller": {
        "zoo": _part("ccfs.controllers.zoo:actor", "name", "An agent that ships with the package.", _a_folder),
        "policy": _part(
            "ccfs.controllers:as_controller",
            "policy normalizer",
            "A saved policy by its path: of Stable-Baselines3, the RL Zoo, OmniSafe, ONNX or TorchScript.",
            _a_file,
        ),
        "sb3": _part(
            "ccfs.controllers:from_sb3",
            "path_or_model normalizer frames",
            "A model that Stable-Baselines3 saved, without its noise.",
            _a_file,
        ),
        "omnisafe": _part(
            "ccfs.controllers:from_omnisafe",
            "run_dir epoch",
            "The mean policy of a run folder of OmniSafe.",
            _a_file,
        ),
        "numpy-actor": _part(
            "ccfs.controllers:NumpyActor.load",
            "path",
            "A network of plain arrays (.npz). Reading it runs no code.",
            _a_file,
        ),
        "navigator": _part(
            "ccfs.controllers.navigator:Navigator",
            "sigma sensor",
            "SafetyPointGoal2: draws a map from the lidars and plans on it.",
        ),
        "steering": _part(
            "ccfs.envs.toys.corridor:make_steering", "gain", "Steers the cart of the corridor to the middle."
        ),
        "chain": _part("ccfs.envs.toys.chain:make_controller", "", "Walks on the chain."),
    },
    "verifier": {
        "accept-all": _part("ccfs.runtime.components:AcceptAll", "", "Accepts every finite action."),
        "box": _part(
            "ccfs.runtime.components:BoxVerifier",
            "low high",
            "Accepts the actions in a fixed box, one number per coordinate.",
        ),
        "lidar-box": _part(
            "ccfs.envs.safety.lidar_box:LidarBox",
            "keep_away reach",
            "SafetyPointGoal2: accepts the actions in a box that it reads off the lidars.",
        ),
        "map-guard": _part(
            "ccfs.controllers.navigator:MapGuard",
            "margin room caution share reserve horizon sensor",
            "SafetyPointGoal2: accepts an action if the robot can still stop after it.",
        ),
    },
    "fallback": {
        "center": _part("ccfs.runtime.components:CenterFallback", "", "Acts as the controller's own, clipped center."),
        "fixed": _part("ccfs.runtime.components:FixedFallback", "values", "Always the same action: a stop, a brake."),
        "navigator": _part(
            "ccfs.controllers.navigator:NavigatorFallback",
            "margin room caution share reserve horizon sensor",
            "SafetyPointGoal2: acts as the navigator, without noise.",
        ),
        "brake": _part("ccfs.controllers.navigator:BrakeFallback", "", "SafetyPointGoal2: brakes along the heading."),
        "stop": _part("ccfs.controllers.navigator:StopFallback", "", "SafetyPointGoal2: neither thrust nor turn."),
    },
    "candidate map": {
        "average": _part("ccfs.envs.toys.corridor:average", "", "Every candidate is the mean of the block."),
    },
    "attack": {
        "none": _part("ccfs.attacks.rules:NoShift", "", "Never shifts."),
        "opposed": _part("ccfs.attacks.rules:OpposedShift", "norm", "Pushes against the center."),
        "constant": _part("ccfs.attacks.rules:ConstantShift", "direction norm", "Pushes in one direction."),
        "random": _part("ccfs.attacks.rules:RandomShift", "norm", "Pushes in a new random direction at every step."),
        "burst": _part(
            "ccfs.attacks.rules:BurstShift",
            "step direction",
            "Spends everything at one step, against the center or in a direction.",
        ),
        "scripted": _part(
            "ccfs.attacks.rules:ScriptedShift",
            "shifts",
            "Plays given shifts back, one list per step. It may not overspend.",
        ),
        "danger-burst": _part(
            "ccfs.attacks.learned:DangerBurstShift",
            "threshold sigma steps",
            "SafetyPointGoal2: waits for a dangerous moment, then spends everything.",
        ),
        "critic-greedy": _part(
            "ccfs.attacks.learned:critic_greedy",
            "name digest probes reach norm",
            "SafetyPointGoal2: pushes to where a trained critic expects most cost.",
            _a_folder,
        ),
        "critic-sensitivity": _part(
            "ccfs.attacks.learned:critic_sensitivity",
            "name digest gain reach",
            "SafetyPointGoal2: pushes along the slope of a trained critic, and more where it is steep.",
            _a_folder,
        ),
        "learned": _part(
            "ccfs.attacks.learned:learned",
            "name digest",
            "SafetyPointGoal2: a network that was trained to attack.",
            _a_folder,
        ),
        "corridor-worst": _part(
            "ccfs.envs.toys.corridor:WorstShift",
            "gain action sensor",
            "Corridor: the strongest causal attack that there is.",
        ),
    },
    "features": {
        "constant": _part(
            "ccfs.runs.weights:constant", "", "A bias that is the same at every step. Theta is its size."
        ),
        "center": _part(
            "ccfs.runs.weights:center", "", "An error of the gain. With theta = 0.1 the center is 10% too large."
        ),
        "lag": _part(
            "ccfs.runs.weights:lag", "", "A delay. With theta = 1 every command comes one step late, with 0.2 a fifth."
        ),
    },
    "event": {
        "no-cost-until-goal": _part(
            "ccfs.runs.events:NoCostUntilGoal",
            "horizon",
            "No positive cost up to and including the first goal or, without a goal, at any step.",
        ),
        "goal-before-cost": _part(
            "ccfs.runs.events:GoalBeforeCost", "horizon", "A goal, and no positive cost up to and including its step."
        ),
        "cost-at-most": _part("ccfs.runs.events:CostAtMost", "limit horizon", "The total cost is at most `limit`."),
        "return-at-least": _part(
            "ccfs.runs.events:ReturnAtLeast",
            "value horizon",
            "The total reward is at least `value`. An episode that the environment terminated has its whole return.",
        ),
        "terminated": _part(
            "ccfs.runs.events:Terminated",
            "horizon",
            "The environment terminated the episode, as at MountainCar's flag.",
        ),
        "not-terminated": _part(
            "ccfs.runs.events:NotTerminated",
            "horizon",
            "The environment did not terminate the episode, as when CartPole's pole stays up.",
        ),
        "no-abstention": _part("ccfs.runs.events:NoAbstention", "horizon", "An action was found at every step."),
        ALL_OF: _part("ccfs.runs.events:AllOf", "", "All of the listed `events` hold."),
    },
}
"""Each kind of part, with every name that a protocol may use for it."""

_OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


def accepted(kind: str, name: str) -> str:
    """Return `name` if it names a part of this kind or code of the user's own. Otherwise raise ValueError."""
    if name in PARTS[kind] or (name == IN_MEMORY and kind in _OBJECTS):
        return name
    names = ", ".join(PARTS[kind])
    if ":" not in name:
        dashed = name.replace("_", "-")
        advice = f" Names have dashes: write {dashed!r}" if dashed in PARTS[kind] else ""
        raise ValueError(f'must be one of {names}, or "module:callable" of your own, got {name!r}.{advice}')
    if not _OWN_CODE.fullmatch(name):
        raise ValueError(f'must be one of {names}, or "module:callable" of your own, got {name!r}')
    if name.partition(":")[0].partition(".")[0] == "ccfs":
        short = short_name(kind, name)
        advice = f"write {short!r}" if short else f"the names here are {names}"
        raise ValueError(f"must name a part of ccfs by its short name, got {name!r}: {advice}")
    return name


def is_safe(kind: str, name: str, arguments: Mapping[str, object]) -> bool:
    """Return whether making a part runs our own code only, and opens nothing that the protocol names.

    Arguments that are not listed would go to code of others, such as the class of an environment.
    """
    part = PARTS[kind].get(name)
    return part is not None and set(arguments) <= set(part.arguments) and not part.opens(arguments)


def shipped_as(kind: str, made: object) -> str | None:
    """Return the short name under which the class of an object ships, or None."""
    path = f"{type(made).__module__}:{type(made).__qualname__}"
    return next((name for name, part in PARTS[kind].items() if part.target == path), None)


def target(kind: str, name: str) -> str:
    """Return the "module:callable" behind a name. A name of the user's own code is returned as it is."""
    part = PARTS[kind].get(name)
    return name if part is None else part.target


def short_name(kind: str, path: str) -> str | None:
    """Return the short name of the part at a path of ours, or None. It is enough that the last word is right."""
    table = PARTS[kind]
    exact = [name for name, found in table.items() if found.target == path]
    similar = [name for name, found in table.items() if found.target.rpartition(":")[2] == path.rpartition(":")[2]]
    return exact[0] if exact else similar[0] if len(similar) == 1 else None
