"""Pilots: shared or not, their answers are a function of the observations alone."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

from ccfs.controllers.navigator import (
    MapGuard,
    NavigatorFallback,
    PilotSettings,
)
from ccfs.controllers.navigator import pilot as pilot_module

pytestmark = pytest.mark.slow
NOTHING = np.zeros(2)


def answers(parts, seen, *, is_reset=True):
    """What guard and fallback say along given observations, as bytes."""
    guard, fallback = parts
    rng = np.random.default_rng(5)
    said = []
    if is_reset:
        guard.reset()
        fallback.reset()
    for observation in seen:
        for part in parts:
            part.observe(observation)
        said.append(guard.accepts(observation, rng.uniform(-1, 1, (6, 2))).tobytes())
        said.append(fallback.action(observation, NOTHING).tobytes())
    return said


def test_guard_and_fallback_repeat_themselves_after_reset_and_from_scratch(seen):
    parts = MapGuard(), NavigatorFallback()
    first = answers(parts, seen)
    assert answers(parts, seen[::-1]) != first
    assert answers(parts, seen) == first
    pilot_module._pool().clear()
    assert answers((MapGuard(), NavigatorFallback()), seen, is_reset=False) == first


def test_asking_is_no_part_of_the_history(seen):
    """Fallbacks are asked only now and then: that must not change what they say later."""
    asked = answers((MapGuard(), NavigatorFallback()), seen)[-1]
    pilot_module._pool().clear()
    silent = NavigatorFallback()
    for observation in seen:
        silent.observe(observation)
    assert silent.action(seen[-1], NOTHING).tobytes() == asked


def test_shared_pilots_answer_as_lonely_ones_do(seen, monkeypatch):
    """Clients that are told different things, in turns, never see each other's map, even when pilots are evicted."""
    other = [observation + 1e-9 for observation in seen[::-1]]
    alone = answers((MapGuard(), NavigatorFallback()), seen[:12])
    monkeypatch.setattr(pilot_module, "_MOST_PILOTS", 1)
    pilot_module._pool().clear()
    mine, theirs = (MapGuard(), NavigatorFallback()), (MapGuard(), NavigatorFallback())
    rng = np.random.default_rng(5)
    said = []
    for own, foreign in zip(seen[:12], other[:12], strict=True):
        for part in mine:
            part.observe(own)
        for part in theirs:
            part.observe(foreign)
        said.append(mine[0].accepts(own, rng.uniform(-1, 1, (6, 2))).tobytes())
        said.append(mine[1].action(own, NOTHING).tobytes())
    assert said == alone


def test_guard_and_fallback_of_one_program_draw_one_map(seen, monkeypatch):
    made = []
    honest = pilot_module.Pilot
    monkeypatch.setattr(pilot_module, "Pilot", lambda settings: made.append(settings) or honest(settings))
    answers((MapGuard(), NavigatorFallback()), seen[:5])
    assert len(made) == 1
    answers((MapGuard(margin=0.02), NavigatorFallback()), seen[:5])
    assert len(made) == 3


def test_pilots_of_threads_are_apart(seen):
    answers((MapGuard(), NavigatorFallback()), seen[:3])
    sizes = []
    thread = threading.Thread(target=lambda: sizes.append(len(pilot_module._pool())))
    thread.start()
    thread.join()
    assert sizes == [0]
    assert len(pilot_module._pool()) == 1


@pytest.mark.parametrize("name", ["margin", "caution", "share", "reserve", "horizon"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -0.01])
def test_pilot_settings_refuse(name, value):
    for make_it in (PilotSettings, MapGuard, NavigatorFallback):
        with pytest.raises(ValueError, match=f"`{name}` must be finite and at least 0"):
            make_it(**{name: value})


def test_pilot_settings_refuse_fractions_of_steps():
    with pytest.raises(ValueError, match="`reserve` must be a whole number"):
        PilotSettings(reserve=0.5)
