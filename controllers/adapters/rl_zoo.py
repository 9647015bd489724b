"""Controllers from folders in the layout of the RL Zoo: model, statistics and settings, none of it run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ccfs.controllers.actor import NumpyActor
from ccfs.controllers.adapters.environments import Space
from ccfs.controllers.adapters.predict import PredictController
from ccfs.controllers.adapters.saved import LOST, RAW, Normalizer, as_normalizer
from ccfs.controllers.adapters.sb3 import from_sb3
from ccfs.files.reading import read_text

if TYPE_CHECKING:
    import yaml

__all__ = ["from_rl_zoo", "settings_folder"]

_ORDERED = "tag:yaml.org,2002:python/object/apply:collections.OrderedDict"
_WRAPPERS = ("env_wrapper", "vec_env_wrapper")


def from_rl_zoo(
    path: str | os.PathLike[str],
    normalizer: Normalizer = None,
    *,
    observation_space: Space | None = None,
    action_space: Space | None = None,
) -> NumpyActor | PredictController:
    """Return the policy of an agent that the RL Zoo saved, with its statistics if it was trained with `normalize`.

    `config.yml` says whether observations were normalised, and `vecnormalize.pkl` holds the statistics. Neither the
    pickle nor the model's file is run (see `from_sb3`).

    Args:
        path: the agent's folder, such as ppo/Pendulum-v1_1, with Pendulum-v1.zip and Pendulum-v1/config.yml in it. Or
            one of the .zip files in that folder.
        normalizer: statistics to use instead, if those of the folder are missing.
        observation_space: see `from_sb3`.
        action_space: see `from_sb3`.
    """
    given = Path(path)
    folder = settings_folder(given)
    if folder is None:
        raise ValueError(
            f"`path` must be a folder of the RL Zoo, with NAME.zip and NAME/config.yml in it, got {str(path)!r}."
        )
    model = given if given.is_file() else given / f"{folder.name}.zip"
    if not model.is_file():
        there = ", ".join(sorted(file.name for file in given.glob("*.zip"))) or "no .zip at all"
        raise ValueError(f"The folder must hold {model.name}, got {there}. Pass the path of the file that you mean.")
    config = _config(folder / "config.yml")
    _refuse_wrappers(config, model)
    own: Normalizer = as_normalizer(normalizer)
    if own is None:
        own = _own_normalizer(config.get("normalize", False), folder)
    return from_sb3(model, own, observation_space=observation_space, action_space=action_space, frames=_frames(config))


def settings_folder(path: Path) -> Path | None:
    """Return the folder with the settings of an agent, None if this is no agent of the RL Zoo.

    A file's settings are in the folder of its own name. The zoo also saves best_model.zip and rl_model_N_steps.zip.
    """
    home = path if path.is_dir() else path.parent
    found = [file.parent for file in home.glob("*/config.yml") if (file.parent / "args.yml").is_file()]
    if path.is_dir():
        named = [folder for folder in found if (home / f"{folder.name}.zip").is_file()]
    else:
        named = [folder for folder in found if folder.name == path.stem]
    is_other = path.is_dir() or path.name == "best_model.zip" or path.match("rl_model_*_steps.zip")
    candidates = named or (found if is_other else [])
    return candidates[0] if len(candidates) == 1 else None


def _own_normalizer(normalize: object, folder: Path) -> Normalizer:
    saved = folder / "vecnormalize.pkl"
    if not normalize:
        if saved.is_file():
            raise ValueError(
                f"config.yml says that observations were not normalised, but {saved.name} is there. Pass "
                f"`normalizer=`: the path of {saved.name}, or {RAW!r}."
            )
        return RAW
    if saved.is_file():
        return as_normalizer(saved)
    if isinstance(normalize, str) and re.search(r"norm_obs['\"]?\s*[:=]\s*False", normalize):
        return RAW
    raise ValueError(f"config.yml says `normalize: {normalize}`, but {saved.name} is missing. {LOST}")


def _refuse_wrappers(config: dict[str, object], model: Path) -> None:
    frames = f", frames={_frames(config)}" if _frames(config) > 1 else ""
    for name in _WRAPPERS:
        if config.get(name):
            raise ValueError(
                f"config.yml says `{name}: {config[name]}`. Wrap your environment in the same way, and use "
                f"from_sb3({model.name!r}, normalizer=...{frames}), which reads the model alone."
            )


def _frames(config: dict[str, object]) -> int:
    stacked = config.get("frame_stack") or 1
    if not isinstance(stacked, int) or isinstance(stacked, bool):
        raise ValueError(f"config.yml must say how many frames `frame_stack` puts together, got {stacked!r:.100}.")
    return stacked


def _config(path: Path) -> dict[str, object]:
    """Return the settings in a YAML file. The zoo writes them as an ordered dictionary of Python, which is not made."""
    try:
        import yaml
    except ImportError as error:
        raise ImportError("Folders of the RL Zoo need PyYAML. Install it: pip install 'ccfs-rl[sb3]'") from error

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads the pairs of an ordered dictionary, and leaves every other object of Python as its text."""

    Loader.add_constructor(_ORDERED, _pairs)
    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: f"!!python/{suffix}")
    try:
        found = yaml.load(read_text(path), Loader)  # a SafeLoader with two more tags
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name} must be the YAML that the RL Zoo writes, got {error}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} must hold the settings of an agent, got {type(found).__name__}.")
    return found


def _pairs(loader: yaml.SafeLoader, node: yaml.Node) -> dict[str, object]:
    import yaml

    made = loader.construct_sequence(cast("yaml.SequenceNode", node), deep=True)
    pairs = made[0] if len(made) == 1 else None
    if not (isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)):
        raise yaml.YAMLError("an ordered dictionary that does not consist of pairs")
    return {str(key): value for key, value in pairs}
