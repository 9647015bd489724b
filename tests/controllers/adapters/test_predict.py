"""Live models against their own library: its `predict`, asked inside its own wrapped environment, is the oracle."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from gymnasium import Env, ObservationWrapper, RewardWrapper
from gymnasium.spaces import Box, Discrete, flatten
from gymnasium.spaces import Dict as DictSpace
from gymnasium.wrappers import RescaleAction, TimeLimit

import ccfs
from ccfs.controllers import Controller, FrozenNormalizer, as_controller, from_predict, from_sb3, normalizer_from_sb3

pytestmark = [pytest.mark.slow, pytest.mark.extras]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sb3_contrib import RecurrentPPO
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.vec_env import (
        DummyVecEnv,
        SubprocVecEnv,
        VecCheckNan,
        VecEnvWrapper,
        VecFrameStack,
        VecMonitor,
        VecNormalize,
        VecTransposeImage,
    )

STEPS = 6
SMALL = {"n_steps": 8, "batch_size": 8, "seed": 3}


class Drift(Env):
    """Three numbers far from zero and of unequal size; every episode of one seed is the same, whatever the action."""

    observation_space = Box(-np.inf, np.inf, (3,), dtype=np.float32)
    action_space = Box(-1.0, 1.0, (2,), dtype=np.float32)

    def __init__(self):
        self.episodes = []

    def _look(self):
        seen = np.array([40.0, -3.0, 0.5]) + np.array([9.0, 2.0, 0.1]) * self.np_random.normal(size=3)
        self.episodes[-1].append(seen.astype(np.float32))
        return self.episodes[-1][-1].copy()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes.append([])
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {"cost": 0.0}


class Picture(Drift):
    """An image, channels last, as a camera gives it."""

    observation_space = Box(0, 255, (36, 40, 3), dtype=np.uint8)

    def _look(self):
        self.episodes[-1].append(self.np_random.integers(0, 256, (36, 40, 3), dtype=np.uint8))
        return self.episodes[-1][-1].copy()


class Halved(VecEnvWrapper):
    """A wrapper of a user's own that changes observations without changing their shape."""

    def reset(self):
        return self.venv.reset() / 2.0

    def step_wait(self):
        observation, *rest = self.venv.step_wait()
        return observation / 2.0, *rest


class OwnNormalize(VecNormalize):
    """A subclass may compute anything."""


def plain(venv):
    return venv


def normalized(venv):
    return VecNormalize(venv, clip_obs=1.5, epsilon=1e-3)


WRAPPED = {
    "nothing": plain,
    "normalize": normalized,
    "normalize rewards only": lambda venv: VecNormalize(venv, norm_obs=False),
    "monitor over normalize": lambda venv: VecMonitor(VecCheckNan(normalized(venv))),
    "stack": lambda venv: VecFrameStack(venv, 3),
    "stack over normalize": lambda venv: VecFrameStack(normalized(venv), 2),
    "normalize over stack": lambda venv: normalized(VecFrameStack(venv, 2)),
    "normalize twice": lambda venv: normalized(normalized(venv)),
}
NORMALIZED = {name for name in WRAPPED if "normalize" in name and "rewards" not in name}
MODELS = {
    "PPO": lambda venv: louder(PPO("MlpPolicy", venv, **SMALL)),
    "SAC": lambda venv: SAC("MlpPolicy", venv, seed=3, buffer_size=50),
    "RecurrentPPO": lambda venv: louder(
        RecurrentPPO("MlpLstmPolicy", venv, policy_kwargs={"lstm_hidden_size": 8, "n_lstm_layers": 2}, **SMALL)
    ),
}


def louder(model):
    """A fresh policy answers nearly zero to everything, which would hide what it was asked."""
    model.policy.action_net.weight.data.mul_(30.0)
    return model


def bottom(venv):
    while hasattr(venv, "venv"):
        venv = venv.venv
    return venv


def learn_statistics(venv, steps=60):
    """Let every `VecNormalize` of the chain see observations, then freeze it for the oracle."""
    venv.seed(5)
    venv.reset()
    for _ in range(steps):
        venv.step(np.zeros((venv.num_envs, 2), np.float32))
    while hasattr(venv, "venv"):
        venv.training = False
        venv = venv.venv


def by_the_library(model, venv, seed, steps=STEPS):
    """Return the raw observations and the library's own answers in one episode of its own environment."""
    venv.seed(seed)
    observation, state, start = venv.reset(), None, np.ones(1, dtype=bool)
    answers = []
    for _ in range(steps):
        action, state = model.predict(observation, state=state, episode_start=start, deterministic=True)
        answers.append(action[0])
        start = np.zeros(1, dtype=bool)
        observation, *_ = venv.step(action)
    return bottom(venv).envs[0].unwrapped.episodes[-1][:steps], np.array(answers)


@pytest.mark.parametrize("wrapped", WRAPPED)
@pytest.mark.parametrize("name", MODELS)
def test_from_predict_answers_as_the_library_does(name, wrapped):
    venv = WRAPPED[wrapped](DummyVecEnv([Drift]))
    model = MODELS[name](venv)
    learn_statistics(venv)
    controller = from_predict(model)
    assert isinstance(controller, Controller)
    for seed in (1, 2):  # the second episode shows that a reset forgets the first
        seen, expected = by_the_library(model, venv, seed)
        controller.reset()
        found = np.array([controller.center(observation) for observation in seen])
        # The same program on the same numbers: nothing is left to rounding.
        np.testing.assert_array_equal(found, expected.astype(np.float64))
        if (name, wrapped) == ("RecurrentPPO", "nothing") or wrapped in NORMALIZED:
            forgetful = [model.predict(np.resize(o, venv.observation_space.shape), deterministic=True)[0] for o in seen]
            assert np.abs(found - forgetful).max() > 1e-3  # a model asked wrongly would answer otherwise


@pytest.mark.parametrize("wrap", [plain, lambda venv: VecFrameStack(venv, 2), lambda venv: VecFrameStack(VecTransposeImage(venv), 2)])  # fmt: skip  # noqa: E501
def test_from_predict_gives_images_as_the_library_does(wrap):
    model = PPO("CnnPolicy", wrap(DummyVecEnv([Picture])), **SMALL)
    venv = model.get_env()  # the library puts VecTransposeImage around by itself
    seen, expected = by_the_library(model, venv, 1, steps=4)
    controller = from_predict(model)
    np.testing.assert_array_equal([controller.center(observation) for observation in seen], expected.astype(np.float64))


def test_from_predict_casts_as_the_environment_of_the_model_does():
    """A VecEnv stores float64 observations in its space's float32, before they are normalised."""
    venv = normalized(DummyVecEnv([Drift]))
    model = MODELS["PPO"](venv)
    venv.obs_rms.mean[:], venv.obs_rms.var[:] = 1000.0, 1e-6
    seen = np.array([1000.0 + 1e-5, 1000.0 - 1e-5, 1000.0])
    expected, _ = model.predict(venv.normalize_obs(seen.astype(np.float32)), deterministic=True)
    np.testing.assert_array_equal(from_predict(model).center(seen), expected)
    assert np.abs(model.predict(venv.normalize_obs(seen), deterministic=True)[0] - expected).max() > 1e-6


def test_from_predict_freezes_statistics_and_its_digest_covers_them():
    venv = normalized(DummyVecEnv([Drift]))
    model = MODELS["PPO"](venv)
    learn_statistics(venv)
    controller = from_predict(model)
    digest, seen = controller.digest, np.array([31.0, -2.0, 0.4], np.float32)
    answer = controller.center(seen)
    assert from_predict(model).digest == digest
    assert len(digest) == 64
    venv.obs_rms.update(np.zeros((50, 3)))
    np.testing.assert_array_equal(controller.center(seen), answer)
    assert controller.digest == digest
    changed = from_predict(model)
    assert changed.digest != digest
    assert np.abs(changed.center(seen) - answer).max() > 1e-3


@pytest.mark.parametrize(
    "change",
    [
        lambda model, venv: setattr(venv, "clip_obs", 2.0),
        lambda model, venv: setattr(venv, "epsilon", 2e-3),
        lambda model, venv: setattr(venv, "norm_obs", False),
        lambda model, venv: venv.obs_rms.var.__imul__(1.5),
        lambda model, venv: model.policy.action_net.bias.data.add_(0.5),
    ],
)
def test_from_predict_digest_follows_what_decides_the_answers(change):
    venv = normalized(DummyVecEnv([Drift]))
    model = MODELS["PPO"](venv)
    before = from_predict(model).digest
    change(model, venv)
    assert from_predict(model).digest != before


@pytest.mark.parametrize("wrapper", [Halved, OwnNormalize])
@pytest.mark.parametrize("adapt", [from_predict, from_sb3])
def test_adapters_refuse_a_wrapper_they_do_not_know(adapt, wrapper):
    model = MODELS["PPO"](VecMonitor(wrapper(DummyVecEnv([Drift]))))
    with pytest.raises(ValueError, match=rf"not known to keep observations, got {wrapper.__name__}. If it keeps them"):
        adapt(model)


@pytest.mark.parametrize("wrapped", ["stack", "stack over normalize", "normalize over stack", "normalize twice"])
@pytest.mark.parametrize("normalizer", [None, FrozenNormalizer(mean=np.zeros(3), std=np.ones(3), clip=np.ones(3))])
def test_from_sb3_refuses_what_one_normalizer_cannot_say(wrapped, normalizer):
    model = MODELS["PPO"](WRAPPED[wrapped](DummyVecEnv([Drift])))
    with pytest.raises(ValueError, match=r"by one `VecNormalize` at most, got .*Use `from_predict`"):
        from_sb3(model, normalizer)


def test_from_sb3_refuses_a_recurrent_model_and_says_where_to_go():
    with pytest.raises(
        ValueError, match=r"must be an MLP policy of SB3, got Recurrent.* of sb3_contrib.*Use `as_controller`"
    ):
        from_sb3(MODELS["RecurrentPPO"](DummyVecEnv([Drift])))


def test_from_predict_refuses_other_observations_and_what_is_no_model():
    controller = from_predict(MODELS["PPO"](DummyVecEnv([Drift])))
    with pytest.raises(ValueError, match=r"`env` must give observations of shape \(3,\).*got \(4,\)"):
        controller.center(np.zeros(4))
    with pytest.raises(TypeError, match="`model` must have `predict`, got int"):
        from_predict(3)


class Forgotten:
    """Returns a state that nobody can hand in again."""

    def predict(self, observation, *, deterministic):
        return np.zeros(2, np.float32), (np.ones(3),)


class Counting:
    """Memory in the state alone: the action counts the steps since the state was None."""

    def predict(self, observation, state=None, *, deterministic):
        now = 0 if state is None else state
        return np.full(2, 0.01 * now, np.float32), now + 1


def test_from_predict_carries_the_state_of_any_model():
    controller = from_predict(Counting())
    for _ in range(2):
        controller.reset()
        steps = [controller.center(np.zeros(3))[0] for _ in range(4)]
        np.testing.assert_allclose(steps, [0.0, 0.01, 0.02, 0.03], atol=1e-9)
    assert controller.digest == ""


CLAIM = {
    "schedule": ccfs.ProposalSchedule(count=2, rho=0.3, sigma=0.1),
    "horizon": STEPS,
    "trials": 7,
    "target": 0.5,
    "delta": 0.01,
    "seed": 3,
}


@pytest.mark.parametrize("wrapped", ["normalize", "stack over normalize"])
@pytest.mark.parametrize("name", ["PPO", "RecurrentPPO"])
def test_certify_policy_asks_the_model_as_the_library_does(name, wrapped):
    """Oracle: the library's answers in its own environment, started with the seeds that the trials were reset with."""
    venv = WRAPPED[wrapped](DummyVecEnv([Drift]))
    model = MODELS[name](venv)
    learn_statistics(venv)
    centers, env = [], Drift()

    def record(trace):
        centers.append(trace.centers)
        return True

    made = ccfs.certify_policy(env, model, event=record, **CLAIM)
    assert made.successes == 7
    trials = env.episodes[-10:-3]  # before them stand the resets of the preflight, after them three that run again
    for found, episode in zip(centers[:7], trials, strict=True):
        oracle = DummyVecEnv([lambda episode=episode: Told(episode)])
        layers, layer = [], venv
        while hasattr(layer, "venv"):
            layers.insert(0, layer)
            layer = layer.venv
        for layer in layers:
            if isinstance(layer, VecNormalize):
                oracle = VecNormalize(oracle, training=False, clip_obs=layer.clip_obs, epsilon=layer.epsilon)
                oracle.obs_rms = layer.obs_rms
            else:
                oracle = VecFrameStack(oracle, layer.stacked_obs.n_stack)
        _, expected = by_the_library(model, oracle, 0)
        np.testing.assert_array_equal(found, expected.astype(np.float64))


class Told(Drift):
    """Repeat the observations of a recorded episode."""

    def __init__(self, script):
        super().__init__()
        self.script = script

    def _look(self):
        self.episodes[-1].append(self.script[len(self.episodes[-1])])
        return self.episodes[-1][-1].copy()


@pytest.mark.parametrize(
    ("policy", "error", "words"),
    [
        (Forgotten(), TypeError, "`predict` must take `state` when it returns one"),
        (lambda: MODELS["PPO"](Halved(DummyVecEnv([Drift]))), ValueError, "got Halved"),
        (lambda: MODELS["PPO"](DummyVecEnv([Picture])), ValueError, r"got a policy for Box\(0, 255, \(36, 40, 3\)"),
    ],
)
def test_certify_policy_refuses_a_model_it_would_ask_wrongly(policy, error, words):
    model = policy() if callable(policy) else policy
    with pytest.raises(error, match=words):
        ccfs.certify_policy(Drift(), model, event=ccfs.NoAbstention(horizon=STEPS), **CLAIM)


class OwnBottom(DummyVecEnv):
    """A subclass at the bottom may do anything to observations."""

    def reset(self):
        return super().reset() / 2.0


class Doubled(ObservationWrapper):
    """A wrapper inside of the vector environment, which keeps the shape."""

    def observation(self, observation):
        return 2.0 * observation


class Cheaper(RewardWrapper):
    """Changes rewards alone."""

    def reward(self, reward):
        return reward - 1.0


class Shaped(RewardWrapper):
    """Calls itself a wrapper of rewards and changes observations."""

    def reward(self, reward):
        return reward

    def step(self, action):
        observation, *rest = super().step(action)
        return -observation, *rest


def inside(*wrappers):
    def make():
        env = Drift()
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return make


@pytest.mark.parametrize("adapt", [from_predict, from_sb3, as_controller])
def test_adapters_refuse_an_own_vector_environment(adapt):
    with pytest.raises(
        ValueError, match=r"must be a DummyVecEnv or a SubprocVecEnv .*, got OwnBottom, which may change"
    ):
        adapt(MODELS["PPO"](normalized(OwnBottom([Drift]))))


@pytest.mark.parametrize("bottom_kind", [DummyVecEnv, SubprocVecEnv])
def test_from_predict_notices_wrappers_that_the_environment_lacks(bottom_kind):
    made = inside(Doubled, Cheaper, lambda env: TimeLimit(env, 50))
    venv = bottom_kind([made])
    try:
        model = MODELS["PPO"](venv)
        known = "Doubled" if bottom_kind is DummyVecEnv else "Cheaper, Doubled"  # by name alone, Cheaper is unknown
        with pytest.raises(ValueError, match=rf"may change observations or actions: {known}\. Pass `env=`"):
            from_predict(model)
        with pytest.raises(ValueError, match=r"is missing or in another order. Wrap `env` in the same way"):
            from_predict(model, env=Drift())
        env = made()
        controller = from_predict(model, env=env)
        observation, _ = env.reset(seed=4)
        np.testing.assert_array_equal(controller.center(observation), model.predict(observation, deterministic=True)[0])
        from_predict(model, env=TimeLimit(env, 9))  # more wrappers are the user's choice
    finally:
        venv.close()


def test_from_predict_compares_the_order_and_the_arguments_of_wrappers():
    def scaled(low):
        return lambda env: RescaleAction(env, np.full(2, low, np.float32), np.ones(2, np.float32))

    model = MODELS["PPO"](DummyVecEnv([inside(Doubled, scaled(-0.5))]))
    from_predict(model, env=inside(Doubled, scaled(-0.5))())
    with pytest.raises(ValueError, match="is missing or in another order"):
        from_predict(model, env=inside(scaled(-0.5), Doubled)())
    with pytest.raises(
        ValueError, match=r"RescaleAction with the same arguments as in training, got `min_action` array"
    ):
        from_predict(model, env=inside(Doubled, scaled(-0.2))())
    with pytest.raises(ValueError, match="Shaped is missing"):
        from_predict(MODELS["PPO"](DummyVecEnv([inside(Shaped)])), env=Drift())
    from_predict(MODELS["PPO"](DummyVecEnv([inside(Cheaper)])), env=Drift())


def test_from_predict_refuses_another_action_box():
    model = MODELS["PPO"](DummyVecEnv([Drift]))
    env = Drift()
    env.action_space = Box(-0.5, 0.5, (2,))
    with pytest.raises(ValueError, match=r"`policy` must have the action space of the environment, Box\(-0\.5, 0\.5"):
        from_predict(model, env=env)


def test_a_policy_without_its_model_needs_a_normalizer():
    venv = normalized(DummyVecEnv([Drift]))
    for name in ("PPO", "RecurrentPPO"):
        model = MODELS[name](venv)
        learn_statistics(venv)
        seen, expected = by_the_library(model, venv, 3)
        with pytest.raises(ValueError, match=r"A policy without its model does not show.*Pass `normalizer=`"):
            as_controller(model.policy, env=Drift())
        for given in (venv, normalizer_from_sb3(venv)):
            controller = as_controller(model.policy, env=Drift(), normalizer=given)
            found = np.array([controller.center(observation) for observation in seen])
            np.testing.assert_array_equal(found, expected.astype(np.float64))
        raw = as_controller(model.policy, normalizer="none")
        assert np.abs(np.array([raw.center(observation) for observation in seen]) - expected).max() > 1e-3
        assert len({controller.digest, raw.digest}) == 2


@pytest.mark.parametrize("name", ["PPO", "SAC"])
def test_from_predict_says_that_statistics_are_lost(name, tmp_path):
    venv = normalized(DummyVecEnv([Drift]))
    model = MODELS[name](venv)
    model.learn(8)
    venv.training = False
    model.save(tmp_path / "model.zip")
    seen, expected = by_the_library(model, venv, 3)
    lost = type(model).load(tmp_path / "model.zip")
    if name == "PPO":
        with pytest.raises(ValueError, match=r"was trained under `VecNormalize`, but its environment has none now"):
            from_predict(lost)
        with pytest.raises(ValueError, match=r"was trained under `VecNormalize`, but its environment has none now"):
            from_predict(type(model).load(tmp_path / "model.zip", env=DummyVecEnv([Drift])))
    else:
        with pytest.warns(UserWarning, match=r"does not show whether it was trained under `VecNormalize`"):
            from_predict(lost)
    controller = from_predict(lost, normalizer=venv)
    found = np.array([controller.center(observation) for observation in seen])
    np.testing.assert_array_equal(found, expected.astype(np.float64))
    with pytest.raises(
        ValueError, match="`normalizer` must be None for a model whose environment has a `VecNormalize`"
    ):
        from_predict(model, normalizer=venv)


class Parted(Drift):
    """Parts of different kinds, of which some are normalised and all are stacked."""

    observation_space = DictSpace(
        {"far": Box(-900.0, 900.0, (2,), dtype=np.float64), "near": Box(-1.0, 1.0, (2, 2), dtype=np.float32)}
    )

    def _look(self):
        self.episodes[-1].append(
            {
                "far": 300.0 + 9.0 * self.np_random.normal(size=2),
                "near": self.np_random.normal(size=(2, 2)).astype("f4"),
            }
        )
        return self.episodes[-1][-1]


@pytest.mark.parametrize("is_stacked", [False, True])
def test_from_predict_prepares_the_parts_of_a_dict(is_stacked):
    def wrapped():
        venv = VecNormalize(DummyVecEnv([Parted]), norm_obs_keys=["far"], clip_obs=2.0)
        return VecFrameStack(venv, 2) if is_stacked else venv

    venv = wrapped()
    model = louder(PPO("MultiInputPolicy", venv, **SMALL))
    learn_statistics(venv)
    controller = as_controller(model, env=Parted())
    for seed in (1, 2):
        seen, expected = by_the_library(model, venv, seed)
        controller.reset()
        flat = [flatten(Parted.observation_space, observation) for observation in seen]
        found = np.array([controller.center(observation) for observation in flat])
        np.testing.assert_array_equal(found, expected.astype(np.float64))
    if not is_stacked:
        bare = as_controller(model.policy, env=Parted(), normalizer=venv)
        found = np.array([bare.center(observation) for observation in flat])
        np.testing.assert_array_equal(found, expected.astype(np.float64))
    with pytest.raises(ValueError, match=r"as one flat vector of 6 numbers, got shape \(5,\)"):
        controller.center(np.zeros(5))


class Coin:
    """Answers without being told to be deterministic."""

    def predict(self, observation):
        return np.zeros(2)


def test_from_predict_refuses_a_predict_that_cannot_be_deterministic():
    with pytest.raises(TypeError, match=r"`predict` of Coin must take `deterministic`.*Pass a function"):
        from_predict(Coin())


def test_from_predict_refuses_scores_that_do_not_decide():
    env = Drift()
    env.action_space = Discrete(3)
    model = PPO("MlpPolicy", DummyVecEnv([lambda: env]), **SMALL)
    controller = from_predict(model, env=env)
    observation, _ = env.reset(seed=1)
    controller.center(observation)
    chosen, _ = model.predict(observation, deterministic=True)
    model.predict = lambda *args, **kwargs: (PPO.predict(model, *args, **kwargs)[0] * 0 + (chosen + 1) % 3, None)
    with pytest.raises(ValueError, match="must choose the action with the greatest score, got another one"):
        from_predict(model, env=env).center(observation)
