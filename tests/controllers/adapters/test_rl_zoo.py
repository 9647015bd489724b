"""Folders in the layout of the RL Zoo, made here: the library answers as the oracle, and nothing of them runs."""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest
from gymnasium import spaces
from supported import NEAR, Line

from ccfs.controllers import as_controller, from_rl_zoo

pytestmark = [pytest.mark.slow, pytest.mark.extras]
PLAIN, NORMALIZED = Line(model="PPO", note="gSDE", settings={"use_sde": True}), Line(model="PPO", wrap="VecNormalize")
ORDERED = "!!python/object/apply:collections.OrderedDict\n- - - n_envs\n    - 8\n"


def config(**settings):
    """Return settings as the RL Zoo writes them: an ordered dictionary of Python."""
    return ORDERED + "".join(f"  - - {key}\n    - {value}\n" for key, value in settings.items())


def folder(path, line, **settings):
    """Write an agent's folder. Return it and the model."""
    home = path / "Arm-v1_1"
    (home / "Arm-v1").mkdir(parents=True)
    model = line.make()
    model.save(home / "Arm-v1.zip")
    if line.wrap:
        model.get_vec_normalize_env().save(str(home / "Arm-v1" / "vecnormalize.pkl"))
    (home / "Arm-v1" / "config.yml").write_text(config(**{"policy": "MlpPolicy", **settings}))
    (home / "Arm-v1" / "args.yml").write_text(config(algo="ppo", env="Arm-v1"))
    return home, model


def compare(controller, model, line):
    around = model.get_vec_normalize_env()
    for seen in np.random.default_rng(2).normal(0.0, 5.0, size=(30, 3)).astype(np.float32):
        prepared = seen if around is None else around.normalize_obs(seen)
        expected, _ = model.predict(prepared, deterministic=True)
        found = np.clip(controller.center(seen), line.actions.low, line.actions.high)
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=NEAR)


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        (PLAIN, {}),
        (PLAIN, {"normalize": "false", "frame_stack": "1", "env_wrapper": "null"}),
        (NORMALIZED, {"normalize": "true"}),
        (NORMALIZED, {"normalize": "\"{'norm_obs': True, 'norm_reward': False}\""}),
        (NORMALIZED, {"normalize": "dict(norm_obs=True, norm_reward=True)"}),
    ],
)
def test_from_rl_zoo_answers_as_the_library_does(line, settings, tmp_path):
    home, model = folder(tmp_path, line, **settings)
    for path in (home, str(home), home / "Arm-v1.zip"):
        compare(as_controller(path, env=line.environment()), model, line)
    shutil.copy(home / "Arm-v1.zip", home / "best_model.zip")
    assert as_controller(home / "best_model.zip") == as_controller(home) == from_rl_zoo(home)


def test_from_rl_zoo_says_what_is_missing_or_cannot_be_known(tmp_path):
    home, model = folder(tmp_path, NORMALIZED, normalize="true")
    (home / "Arm-v1" / "vecnormalize.pkl").rename(tmp_path / "kept.pkl")
    with pytest.raises(
        ValueError, match=r"says `normalize: True`, but vecnormalize.pkl is missing. Pass `normalizer=`"
    ):
        as_controller(home)
    compare(as_controller(home, normalizer=tmp_path / "kept.pkl"), model, NORMALIZED)
    shutil.copy(tmp_path / "kept.pkl", home / "Arm-v1" / "vecnormalize.pkl")
    settings = home / "Arm-v1" / "config.yml"
    for written, words in (
        (config(), r"were not normalised, but vecnormalize.pkl is there"),
        (
            config(normalize="true", env_wrapper="mine.TimeFeature"),
            r"`env_wrapper: mine.TimeFeature`. Wrap your environ",
        ),
        (
            config(normalize="true", env_wrapper="\n      - mine.A\n      - mine.B"),
            r"env_wrapper: \['mine.A', 'mine.B'\]",
        ),
        (config(normalize="true", vec_env_wrapper="mine.V"), r"`vec_env_wrapper: mine.V`"),
        (config(normalize="true", frame_stack="some"), r"how many frames `frame_stack` puts together, got 'some'"),
        (config(normalize="true", frame_stack="4"), r"must be given for `frames` of a policy that reads"),
        (config(env_wrapper="mine.Atari", frame_stack="4"), r"from_sb3\('Arm-v1.zip', normalizer=..., frames=4\)"),
        ("- 1", r"must hold the settings of an agent, got list"),
        ("{", r"must be the YAML that the RL Zoo writes"),
        ("!!python/object/apply:collections.OrderedDict\n- 3\n", r"does not consist of pairs"),
    ):
        settings.write_text(written)
        with pytest.raises(ValueError, match=words):
            as_controller(home)
    (home / "Arm-v1.zip").rename(home / "rl_model_100_steps.zip")
    settings.write_text(config(normalize="true"))
    with pytest.raises(ValueError, match=r"must hold Arm-v1.zip, got rl_model_100_steps.zip. Pass the path"):
        as_controller(home)
    compare(as_controller(home / "rl_model_100_steps.zip"), model, NORMALIZED)
    with pytest.raises(ValueError, match=r"`path` must be a folder of the RL Zoo"):
        from_rl_zoo(tmp_path)


def test_a_file_beside_settings_of_others_is_no_agent_of_the_zoo(tmp_path):
    """Many projects have a config.yml. Only the folder of the file's own name, with args.yml, is the zoo's."""
    home, model = folder(tmp_path, PLAIN, normalize="true")
    shutil.copy(home / "Arm-v1.zip", home / "other.zip")
    compare(as_controller(home / "other.zip"), model, PLAIN)
    (home / "conf").mkdir()
    (home / "conf" / "config.yml").write_text("seed: 1")
    (home / "conf.zip").write_bytes((home / "Arm-v1.zip").read_bytes())
    compare(as_controller(home / "conf.zip"), model, PLAIN)


def test_from_rl_zoo_believes_settings_of_rewards_alone(tmp_path):
    home, model = folder(tmp_path, PLAIN, normalize="dict(norm_obs=False, norm_reward=True)")
    compare(as_controller(home), model, PLAIN)


def test_from_rl_zoo_makes_no_object_of_the_settings(tmp_path):
    home, model = folder(tmp_path, PLAIN)
    trap = f"  - - policy_kwargs\n    - !!python/object/apply:os.mkdir ['{tmp_path / 'sprung'}']\n"
    (home / "Arm-v1" / "config.yml").write_text(config() + trap)
    compare(as_controller(home), model, PLAIN)
    assert not (tmp_path / "sprung").exists()
    import yaml

    yaml.load((home / "Arm-v1" / "config.yml").read_bytes(), yaml.UnsafeLoader)
    assert (tmp_path / "sprung").exists(), "the trap itself must work, or this test shows nothing"


def test_from_rl_zoo_knows_that_an_off_policy_model_needs_no_statistics(tmp_path):
    """A file of SAC alone does not show it. The settings do, so there is nothing to warn of."""
    line = Line(model="SAC", settings={"learning_starts": 100})
    home, _ = folder(tmp_path, line)
    model = line.make()
    model.learn(6)
    model.save(home / "Arm-v1.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(as_controller(home), model, line)
    assert isinstance(line.actions, spaces.Box)


def test_a_folder_of_the_rl_zoo_with_frames_answers_as_the_live_model(tmp_path):
    line = Line(model="PPO", wrap="VecFrameStack")
    model, home = line.make(), tmp_path / "Arm-v1_1"
    (home / "Arm-v1").mkdir(parents=True)
    model.save(home / "Arm-v1.zip")
    (home / "Arm-v1" / "config.yml").write_text(config(frame_stack="3"))
    (home / "Arm-v1" / "args.yml").write_text(config(algo="ppo", env="Arm-v1"))
    live, found = as_controller(model, env=line.environment()), as_controller(home, env=line.environment())
    for seen in np.random.default_rng(3).normal(0.0, 4.0, (6, 3)).astype(np.float32):
        np.testing.assert_array_equal(found.center(seen), live.center(seen))
