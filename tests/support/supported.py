"""Which policies become controllers, and how near to their own library: the tests run each line, the docs show them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from gymnasium import Env, spaces

EXACT = 0.0
REFUSED = None
FRAMES = 3
# A network in single precision is within 2e-6 of ours in double precision, and a box at most doubles that.
NEAR = 5e-6
# The activations of this one reach 40, because nothing bounds them before the last layer.
FARTHER = 5e-5

NUMBERS = spaces.Box(-np.inf, np.inf, (3,), dtype=np.float32)
PARTS = spaces.Dict({"speed": spaces.Box(-50, 50, (2,), dtype=np.float32), "gear": spaces.Discrete(3), "aim": NUMBERS})
PICTURE = spaces.Box(0, 255, (36, 40, 3), dtype=np.uint8)
# Another range for each coordinate, and none of them symmetric.
BOX = spaces.Box(np.array([-2.0, -0.5], np.float32), np.array([1.0, 2.5], np.float32))
CHOICE = spaces.Discrete(4)
CHOICES = spaces.MultiDiscrete([2, 3, 2])


class Shown(Env):
    """Shows numbers far from zero and of unequal size. Every episode of one seed is the same, whatever the action."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space
        self.episodes = []

    def _look(self):
        self.episodes[-1].append(self._drawn(self.observation_space))
        return self.episodes[-1][-1]

    def _drawn(self, space):
        if isinstance(space, spaces.Dict):
            return {key: self._drawn(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Discrete):
            return np.int64(self.np_random.integers(space.n))
        if space.dtype == np.uint8:
            return self.np_random.integers(0, 256, space.shape, dtype=np.uint8)
        places = np.arange(1, 1 + np.prod(space.shape)).reshape(space.shape)
        return (places + 3.0 * places * self.np_random.normal(size=space.shape)).astype(space.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes.append([])
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One kind of model, what it chooses, and how near its controllers are: from the live model, and from its file."""

    model: str
    policy: str = "MlpPolicy"
    note: str = ""
    actions: spaces.Space = field(default_factory=lambda: BOX)
    observations: spaces.Space = field(default_factory=lambda: NUMBERS)
    settings: dict[str, object] = field(default_factory=dict)
    wrap: str = ""
    live: float | None = EXACT
    saved: float | None = NEAR

    @property
    def name(self) -> str:
        """What the table shows."""
        return f"{self.model}, `{self.policy}`{self.note and f', {self.note}'}"

    def make(self):
        """Return the model, in its own environment, with weights that answer observations differently."""
        import torch

        torch.manual_seed(7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its libraries warn at import, and of a CNN on the processor
            import sb3_contrib
            import stable_baselines3

            home = stable_baselines3 if hasattr(stable_baselines3, self.model) else sb3_contrib
            venv = WRAPPERS[self.wrap](self.environment)
            settings = SETTINGS.get(self.model, {}) | self.settings
            if isinstance(settings.get("policy_kwargs", {}).get("activation_fn"), str):
                kwargs = settings["policy_kwargs"]
                settings |= {"policy_kwargs": kwargs | {"activation_fn": getattr(torch.nn, kwargs["activation_fn"])}}
            settings = SETTINGS.get(self.model, {}) | self.settings
            kwargs = dict(settings.get("policy_kwargs", {}))
            if "activation_fn" in kwargs:
                kwargs["activation_fn"] = getattr(torch.nn, kwargs["activation_fn"])
            model = getattr(home, self.model)(self.policy, venv, seed=3, **settings | {"policy_kwargs": kwargs})
        with torch.no_grad():
            for name, parameter in model.policy.named_parameters():
                # A fresh policy answers nearly zero to everything, which would hide what it was asked.
                loudness = 0.05 if parameter.ndim == 1 else 0.5 if "action_net" in name else 0.1
                parameter.add_(loudness * torch.randn_like(parameter))
        return model

    def environment(self):
        """Return a new environment of the model."""
        return Shown(self.observations, self.actions)


def _normalized(make):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv = VecNormalize(DummyVecEnv([make]), clip_obs=1.5, epsilon=1e-3)
    venv.seed(5)
    venv.reset()
    for _ in range(40):
        venv.step(np.array([venv.action_space.low]))
    venv.training = False
    return venv


def _stacked(make):
    from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

    return VecFrameStack(DummyVecEnv([make]), FRAMES)


def _plain(make):
    from stable_baselines3.common.vec_env import DummyVecEnv

    return DummyVecEnv([make])


WRAPPERS: dict[str, Callable] = {"": _plain, "VecNormalize": _normalized, "VecFrameStack": _stacked}
_ROLLOUT = {"n_steps": 8, "batch_size": 8}
_BUFFER = {"buffer_size": 20}
SETTINGS: dict[str, dict[str, object]] = {
    "PPO": _ROLLOUT,
    "TRPO": _ROLLOUT,
    "RecurrentPPO": _ROLLOUT | {"policy_kwargs": {"lstm_hidden_size": 8, "n_lstm_layers": 2}},
    "MaskablePPO": _ROLLOUT,
    **dict.fromkeys(("SAC", "TD3", "DDPG", "TQC", "DQN", "QRDQN"), _BUFFER),
}
_SDE = {"use_sde": True}
SUPPORTED = [
    Line(model="PPO"),
    Line(model="PPO", note="ReLU", settings={"policy_kwargs": {"activation_fn": "ReLU", "net_arch": [16, 8]}}),
    Line(model="PPO", note="gSDE", settings=_SDE),
    Line(model="PPO", note="gSDE, squashed", settings=_SDE | {"policy_kwargs": {"squash_output": True}}),
    Line(model="A2C"),
    Line(model="A2C", note="gSDE", settings=_SDE),
    Line(model="SAC"),
    Line(model="SAC", note="gSDE", settings=_SDE),
    Line(model="TD3"),
    Line(model="DDPG"),
    Line(model="TQC"),
    Line(model="TQC", note="gSDE", settings=_SDE),
    Line(model="TRPO"),
    Line(model="ARS", saved=FARTHER),
    Line(model="ARS", policy="LinearPolicy"),
    Line(model="RecurrentPPO", policy="MlpLstmPolicy", saved=EXACT),
    Line(model="PPO", note="under `VecNormalize`", wrap="VecNormalize"),
    Line(model="SAC", note="under `VecNormalize`", wrap="VecNormalize"),
    Line(model="RecurrentPPO", policy="MlpLstmPolicy", note="under `VecNormalize`", wrap="VecNormalize", saved=EXACT),
    Line(model="PPO", note="under `VecFrameStack`", wrap="VecFrameStack", saved=EXACT),
    Line(model="PPO", policy="CnnPolicy", observations=PICTURE, saved=EXACT),
    Line(model="RecurrentPPO", policy="MultiInputLstmPolicy", observations=PARTS, saved=EXACT),
    Line(model="PPO", policy="MultiInputPolicy", observations=PARTS),
    Line(model="SAC", policy="MultiInputPolicy", observations=PARTS),
    Line(model="PPO", actions=CHOICE),
    Line(model="A2C", actions=CHOICE),
    Line(model="TRPO", actions=CHOICE),
    Line(model="ARS", actions=CHOICE),
    Line(model="DQN", actions=CHOICE),
    Line(model="DQN", policy="MultiInputPolicy", observations=PARTS, actions=CHOICE),
    Line(model="DQN", note="Discrete observations", observations=spaces.Discrete(5), actions=CHOICE),
    Line(
        model="DQN",
        policy="CnnPolicy",
        note="under `VecFrameStack`",
        observations=PICTURE,
        actions=CHOICE,
        wrap="VecFrameStack",
        saved=EXACT,
    ),
    Line(model="QRDQN", actions=CHOICE, settings={"policy_kwargs": {"n_quantiles": 7}}),
    Line(model="RecurrentPPO", policy="MlpLstmPolicy", actions=CHOICE, saved=EXACT),
    Line(model="PPO", actions=CHOICES),
    Line(model="A2C", policy="MultiInputPolicy", observations=PARTS, actions=CHOICES),
    Line(model="MaskablePPO", actions=CHOICE, live=REFUSED, saved=REFUSED),
]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Another way in, with the test that compares it with its own library."""

    given: str
    becomes: str
    near: str
    digest: str
    test: str


SOURCES = [
    Source(
        given="folder of the RL Zoo",
        becomes="`NumpyActor`",
        near=f"within {NEAR:g}",
        digest="weights, statistics",
        test="test_rl_zoo.py::test_from_rl_zoo_answers_as_the_library_does",
    ),
    Source(
        given="SB3 `.zip` made under old gym",
        becomes="`NumpyActor`",
        near=f"within {NEAR:g}",
        digest="weights, statistics",
        test="test_sb3.py::test_from_sb3_reads_a_file_made_under_old_gym",
    ),
    Source(
        given="policy without its model (`model.policy`), with `normalizer=`",
        becomes="the live policy",
        near="bit for bit",
        digest="its tensors and plain attributes, statistics",
        test="test_predict.py::test_a_policy_without_its_model_needs_a_normalizer",
    ),
    Source(
        given="other model with `predict`",
        becomes="the live model, its state carried",
        near="itself",
        digest="none",
        test="test_predict.py::test_from_predict_carries_the_state_of_any_model",
    ),
    Source(
        given="run of OmniSafe",
        becomes="`NumpyActor`",
        near="within 5e-07",
        digest="weights, statistics",
        test="test_omnisafe.py::test_from_omnisafe_equals_omnisafe",
    ),
    Source(
        given="torch module, a plain MLP",
        becomes="`NumpyActor`",
        near="on the grid of 2^-22",
        digest="weights, statistics",
        test="test_torch.py::test_from_torch_turns_an_mlp_into_numpy",
    ),
    Source(
        given="other torch module",
        becomes="a frozen float64 copy",
        near="on the grid of 2^-22",
        digest="tensors, plain attributes, source",
        test="test_torch.py::test_from_torch_runs_anything_else_frozen",
    ),
    Source(
        given="TorchScript file or module",
        becomes="the program in torch",
        near="bit for bit",
        digest="bytes of the file",
        test="test_programs.py::test_from_torchscript_answers_as_torch_does",
    ),
    Source(
        given="ONNX file",
        becomes="the program in onnxruntime",
        near="bit for bit",
        digest="bytes of the file",
        test="test_programs.py::test_from_onnx_answers_as_onnxruntime_does",
    ),
    Source(
        given="function, in a file or in a notebook cell",
        becomes="itself, over copies of what it closes over",
        near="itself",
        digest="source, defaults, what it closes over and reads",
        test="test_callables.py::test_from_callable_works_in_notebook_cells",
    ),
    Source(
        given="function of JAX arrays, with `content=`",
        becomes="itself",
        near="itself",
        digest="the bytes that you give",
        test="test_callables.py::test_from_callable_takes_arrays_of_other_libraries",
    ),
]


def models_table() -> str:
    """Return the models as a table for the docs."""
    rows = ["| model | actions | live model | saved file |", "|---|---|---|---|"]
    for line in SUPPORTED:
        kind = type(line.actions).__name__
        rows.append(f"| {line.name} | {kind} | {_shown(line.live, kind)} | {_shown(line.saved, kind)} |")
    return "\n".join(rows) + "\n"


def sources_table() -> str:
    """Return the other ways in as a table for the docs."""
    rows = ["| you pass | it becomes | how near | the digest covers |", "|---|---|---|---|"]
    rows += [f"| {source.given} | {source.becomes} | {source.near} | {source.digest} |" for source in SOURCES]
    return "\n".join(rows) + "\n"


TABLES: dict[str, Callable[[], str]] = {"models": models_table, "sources": sources_table}


def _shown(distance: float | None, kind: str) -> str:
    if distance is REFUSED:
        return "refused"
    if kind != "Box":
        return "same action"
    return "bit for bit" if distance == EXACT else f"within {distance:g}"
