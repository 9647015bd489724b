"""What a report shows of replayed trajectories: maps of layouts, where fallbacks acted, a picture, what was refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ccfs.drawings import SCENES
from ccfs.executors import Engine
from ccfs.protocol import NOMINAL, Protocol
from ccfs.report_figures import Figure
from ccfs.report_maps import Drawn, fallback_figure, fallback_map, map_figure
from ccfs.report_outcomes import Ending, Key, Trial
from ccfs.report_picture import Picture, picture
from ccfs.report_plan import ARMS, Replays, first_replayed, layouts, replays, stored_trial
from ccfs.store import Store

__all__ = ["ArmMaps", "Replayed", "replayed"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ArmMaps:
    """The maps of one arm; `endings` are those that occur on them."""

    arm: str
    figures: tuple[Figure, ...]
    endings: tuple[Ending, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replayed:
    """What a report shows of replayed trajectories, or why nothing was replayed."""

    missing: str = ""
    made: Replays | None = None
    maps: tuple[ArmMaps, ...] = ()
    fallbacks: tuple[Figure, ...] = ()
    without_fallbacks: tuple[str, ...] = ()
    picture: Picture | None = None
    picture_words: str = ""

    @property
    def causes(self) -> dict[Key, str]:
        """What replayed costs came from."""
        return {} if self.made is None else self.made.causes


def replayed(
    store: Store, protocol: Protocol, trials: Sequence[Trial], attack: str | None, *, most_steps: int, engine: Engine
) -> Replayed | None:
    """Replay what the page shows, beside `attack`; None if nothing is to be, or no shipped scene fits."""
    if not most_steps or protocol.environment.make not in SCENES:
        return None
    try:
        made = replays(store, protocol, trials, attack, most_steps=most_steps, engine=engine)
    except ImportError as error:
        return Replayed(missing=f"the environment is not installed here: {error}")
    if made is None:
        return None
    by_key = {trial.key: trial for trial in trials}
    maps = [
        _arm_maps(by_key, arm.name, layouts(trials, arm.name, attack), attack, made) for arm in protocol.arms[:ARMS]
    ]
    heat, without = [], []
    for arm in protocol.arms[:ARMS]:
        counts = fallback_map(first_replayed(trials, arm.name, made))
        fell, steps = counts.totals
        if fell:
            label = f"{arm.name}: share of fallback steps by the place of the nearest obstacle"
            words = f"First {counts.trajectories} trials: {fell} of {steps} steps by a fallback. "
            words += f"Beyond the map: {counts.far[0]} of {counts.far[1]} steps."
            heat.append(Figure(title=arm.name, figure=fallback_figure(counts, label), caption=words))
        elif counts.trajectories:
            without.append(arm.name)
    shown = _to_picture(protocol, trials, attack, made)
    image, words = (None, "") if shown is None else _picture(store, protocol, by_key[shown])
    return Replayed(
        made=made,
        maps=tuple(item for item in maps if item.figures),
        fallbacks=tuple(heat),
        without_fallbacks=tuple(without),
        picture=image,
        picture_words=words,
    )


def _arm_maps(
    by_key: Mapping[Key, Trial], arm: str, chosen: Sequence[int], attack: str | None, made: Replays
) -> ArmMaps:
    figures, endings = [], []
    for number in chosen:
        kinds = [(NOMINAL, "s0")] if attack is None else [(NOMINAL, "s0"), (attack, "s1")]
        drawn, words = [], []
        for kind, style in kinds:
            key = (arm, kind, number)
            trial = by_key.get(key)
            if trial is not None and key in made.told:
                item = Drawn(style=style, name=kind, retold=made.told[key], ending=trial.ending, at=trial.at)
                drawn.append(item)
                words.append(f"{kind}: {item.words} at step {trial.at}")
                endings.append(trial.ending)
            elif any(refused == key for refused, _ in made.refused):
                words.append(f"{kind}: refused, it does not replay")
        if drawn:
            title = f"trial {number}, reset seed {by_key[arm, NOMINAL, number].reset_seed}"
            figure = map_figure(drawn, f"{arm}, {title}: {'; '.join(words)}")
            figures.append(Figure(title=title, figure=figure, caption=". ".join(words) + "."))
    return ArmMaps(arm=arm, figures=tuple(figures), endings=tuple(dict.fromkeys(endings)))


def _to_picture(protocol: Protocol, trials: Sequence[Trial], attack: str | None, made: Replays) -> Key | None:
    """Return a nominal trial on the maps, one that ended in cost if there is any."""
    keys = [(arm.name, NOMINAL, i) for arm in protocol.arms[:ARMS] for i in layouts(trials, arm.name, attack)]
    shown = [key for key in keys if key in made.told]
    return next((key for key in shown if made.told[key].causes), shown[0] if shown else None)


def _picture(store: Store, protocol: Protocol, trial: Trial) -> tuple[Picture, str]:
    row, steps = stored_trial(store, protocol, trial.key)
    count = trial.at if trial.ending is Ending.COST else max(1, trial.steps // 2)
    image = picture(protocol, row, steps[:count])
    moment = "at the moment of its cost" if trial.ending is Ending.COST else f"after step {count}"
    return image, f"{trial.arm}, nominal trial {trial.trial} (reset seed {trial.reset_seed}) {moment}."
