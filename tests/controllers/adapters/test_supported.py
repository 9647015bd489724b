"""Every line of the table of supported policies, against the library's own answers in its own environment."""

from __future__ import annotations

import functools
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import supported
from gymnasium import spaces
from supported import REFUSED, SUPPORTED

from ccfs.controllers import Controller, NumpyActor, as_controller, from_sb3
from ccfs.controllers.adapters.predict import PredictController

pytestmark = [pytest.mark.slow, pytest.mark.extras]
STEPS = 12
ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def made(place):
    """Return the model of a line. No test trains it."""
    return SUPPORTED[place].make()


def model_of(line):
    return made(SUPPORTED.index(line))


def line_id(line):
    return f"{line.name} {type(line.actions).__name__}".replace("`", "")


def bottom(venv):
    while hasattr(venv, "venv"):
        venv = venv.venv
    return venv


def by_the_library(model, seed):
    """Return the observations of one episode of the model's own environment, and the model's own answers to them."""
    venv = model.get_env()
    venv.seed(seed)
    observation, state, start, answers = venv.reset(), None, np.ones(1, dtype=bool), []
    for _ in range(STEPS):
        action, state = model.predict(observation, state=state, episode_start=start, deterministic=True)
        answers.append(action[0])
        start = np.zeros(1, dtype=bool)
        observation, *_ = venv.step(action)
    return bottom(venv).envs[0].unwrapped.episodes[-1][:STEPS], np.array(answers)


def flat(space, observation):
    return observation if isinstance(space, spaces.Box) else spaces.flatten(space, observation)


def answers(controller, line, seen):
    controller.reset()
    return np.array([controller.center(flat(line.observations, observation)) for observation in seen])


def compare(found, expected, line, distance):
    assert np.isfinite(found).all()
    if isinstance(line.actions, spaces.Box):
        if distance != supported.EXACT:  # an actor leaves the clipping to the program
            found = np.clip(found, line.actions.low, line.actions.high)
        # Nothing is left to rounding where the distance is 0: it is the same program on the same numbers.
        np.testing.assert_allclose(found, expected.astype(np.float64), rtol=0.0, atol=distance)
        return
    sizes = [line.actions.n] if isinstance(line.actions, spaces.Discrete) else line.actions.nvec
    groups = np.split(found, np.cumsum(sizes)[:-1], axis=1)
    chosen = np.stack([group.argmax(axis=1) for group in groups], axis=1)
    np.testing.assert_array_equal(chosen, expected.reshape(len(found), -1))


@pytest.mark.parametrize("line", SUPPORTED, ids=line_id)
def test_as_controller_answers_as_the_live_model_does(line):
    model = model_of(line)
    if line.live is REFUSED:
        with pytest.raises(ValueError, match="must not need action masks"):
            as_controller(model, env=line.environment())
        return
    controller = as_controller(model, env=line.environment())
    assert isinstance(controller, Controller)
    assert len(controller.digest) == 64
    varied = []
    for seed in (1, 2):  # the second episode shows that a reset forgets the first
        seen, expected = by_the_library(model, seed)
        compare(answers(controller, line, seen), expected, line, line.live)
        varied.extend(expected.reshape(STEPS, -1).tolist())
    assert len({tuple(answer) for answer in varied}) > 1, "the case itself must show what was asked"


@pytest.mark.parametrize("line", SUPPORTED, ids=line_id)
def test_the_file_is_read_as_the_library_does(line, tmp_path):
    model = model_of(line)
    model.save(tmp_path / "model.zip")
    read, given = as_controller, {}
    if line.wrap == "VecNormalize":
        model.get_vec_normalize_env().save(str(tmp_path / "vecnormalize.pkl"))
        given["normalizer"] = tmp_path / "vecnormalize.pkl"
    if line.wrap == "VecFrameStack":
        with pytest.raises(ValueError, match=r"must read the observations of the environment.*frames="):
            as_controller(tmp_path / "model.zip", env=line.environment())
        read, given = from_sb3, {"frames": supported.FRAMES}
    if line.saved is REFUSED:
        with pytest.raises(ValueError, match="Use `as_controller` with the live model itself"):
            read(tmp_path / "model.zip", env=line.environment(), **given)
        return
    controller = read(str(tmp_path / "model.zip"), env=line.environment(), **given)
    assert isinstance(controller, PredictController if line.saved == supported.EXACT else NumpyActor)
    assert len(controller.digest) == 64
    for seed in (1, 2):  # the second episode shows that a reset forgets the first
        seen, expected = by_the_library(model, seed)
        compare(answers(controller, line, seen), expected, line, line.saved)
    assert controller.digest == read(tmp_path / "model", env=line.environment(), **given).digest


@pytest.mark.parametrize("line", [line for line in SUPPORTED if not isinstance(line.actions, spaces.Box)], ids=line_id)
def test_scores_are_the_librarys_own(line, tmp_path):
    import torch

    if line.saved in (REFUSED, supported.EXACT):
        return  # the first has none, and the others are the library's own program: their actions are compared above
    model = model_of(line)
    model.save(tmp_path / "model.zip")
    seen, _ = by_the_library(model, 4)
    live = answers(as_controller(model, env=line.environment()), line, seen)
    saved = answers(as_controller(tmp_path / "model.zip"), line, seen)
    policy = model.policy
    for row, near, observation in zip(live, saved, seen, strict=True):
        tensor, _ = policy.obs_to_tensor(observation)
        with torch.no_grad():
            if line.model == "DQN":
                expected = policy.q_net(tensor)[0]
            elif line.model == "QRDQN":
                expected = policy.quantile_net(tensor).mean(dim=1)[0]
            elif line.model == "ARS":
                expected = policy.action_net(policy.extract_features(tensor, policy.features_extractor))[0]
            else:
                parts = policy.get_distribution(tensor).distribution
                parts = parts if isinstance(parts, list) else [parts]
                expected = torch.cat([part.logits[0] for part in parts])
                # The library's distribution subtracts a constant from the logits of each choice.
                row, near = (shifted(values, [part.logits.shape[1] for part in parts]) for values in (row, near))
        is_exact = line.model in ("DQN", "QRDQN", "ARS")
        np.testing.assert_allclose(row, expected.numpy().astype(np.float64), rtol=0.0, atol=0.0 if is_exact else 2e-6)
        # Scores of observations up to 12 are up to 100, and single precision has 7 digits.
        np.testing.assert_allclose(near, expected.numpy(), rtol=2e-6, atol=2e-5)


def shifted(scores, sizes):
    groups = np.split(scores, np.cumsum(sizes)[:-1])
    return np.concatenate([group - np.log(np.exp(group - group.max()).sum()) - group.max() for group in groups])


def test_page_shows_what_the_tests_run():
    spec = spec_from_file_location("tables", ROOT / "docs/tables.py")
    tables = module_from_spec(spec)
    spec.loader.exec_module(tables)
    text = tables.CONTROLLERS.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run `make tables`"
    for name, made in supported.TABLES.items():
        assert f"<!-- supported: {name} -->\n{made()}<!-- end -->" in text


@pytest.mark.parametrize("source", supported.SOURCES, ids=lambda source: source.given)
def test_every_other_way_in_has_the_test_that_it_names(source):
    file, _, name = source.test.partition("::")
    assert f"def {name}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")
