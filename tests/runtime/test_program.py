from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete

from ccfs.certificates.schedule import Stage
from ccfs.runtime.components import AcceptAll, BoxVerifier, CenterFallback, FixedFallback
from ccfs.runtime.program import CausalProgram, Choices, FallbackEntry

LOW, HIGH = np.array([-1.0, -1.0]), np.array([1.0, 1.0])


def program(**changes):
    return CausalProgram(**{"low": LOW, "high": HIGH, "verifier": AcceptAll(), **changes})


def test_program_clips_center_unless_declared():
    np.testing.assert_array_equal(program().center([3.0, -0.5]), [1.0, -0.5])
    np.testing.assert_array_equal(program(clip_center=False).center([3.0, -0.5]), [3.0, -0.5])


class Watching(AcceptAll):
    def observe(self, observation):
        """Remember it, for ever: there is no reset."""


class Forgetting(CenterFallback):
    def reset(self):
        """Forget what nobody told."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low": HIGH, "high": LOW}, "`low` must be below `high`"),
        ({"low": np.array([np.nan, 0.0])}, "`low` must be below `high`"),
        ({"low": np.zeros((1, 2))}, r"`low` must have shape \(d,\)"),
        ({"verifier": object()}, "`verifier` must have `accepts"),
        ({"fallbacks": (FixedFallback((0.0, 0.0)),)}, "`fallbacks` must hold FallbackEntry values, got FixedFallback"),
        ({"fallbacks": FixedFallback((0.0, 0.0))}, "`fallbacks` .* got FixedFallback.* Give a list with names"),
        ({"fallbacks": (FallbackEntry(name="a", fallback=CenterFallback()),) * 2}, "different names"),
        ({"clip_center": 1}, "`clip_center` must be True or False"),
        ({"candidate_map": 3}, "`candidate_map` must be callable"),
        ({"verifier": Watching()}, "must have both `observe` and `reset`, or neither, got observe only"),
        (
            {"fallbacks": (FallbackEntry(name="a", fallback=Forgetting()),)},
            "must have both `observe` and `reset`, or neither, got reset only",
        ),
    ],
)
def test_program_refuses(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        program(**changes)


@pytest.mark.parametrize("bad", [[0.0], [0.0, 0.0, 0.0], [[0.0, 0.0]]])
def test_program_center_of_wrong_shape_raises(bad):
    with pytest.raises(ValueError, match="`center` must have shape"):
        program().center(bad)


def test_fallback_entry_refuses_wrong_kinds():
    with pytest.raises(TypeError, match="`name`"):
        FallbackEntry(name="", fallback=CenterFallback())
    with pytest.raises(TypeError, match="`fallback`"):
        FallbackEntry(name="a", fallback=object())
    with pytest.raises(TypeError, match="`unverified`"):
        FallbackEntry(name="a", fallback=CenterFallback(), unverified="yes")


def test_choices_take_the_greatest_score_of_each_group_and_the_lowest_on_ties():
    choices = Choices(counts=(2, 3), starts=(0, 5), is_single=False)
    scores = np.array([[1.0, 1.0, 0.0, 2.0, 2.0], [0.0, 3.0, -np.inf, -np.inf, 0.0]])
    actions, usable = choices.greatest(scores)
    assert actions.tolist() == [[0, 6], [1, 7]]
    assert actions.dtype == np.int64
    assert usable.tolist() == [True, True]
    bad = np.array([[np.nan, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -np.inf, -np.inf, -np.inf], [0.0, 0.0, np.inf, 0.0, 0.0]])
    assert choices.greatest(bad)[1].tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("space", "counts", "starts", "is_single"),
    [
        (Discrete(4), (4,), (0,), True),
        (Discrete(2, start=-1), (2,), (-1,), True),
        (MultiDiscrete([2, 5]), (2, 5), (0, 0), False),
    ],
)
def test_program_for_a_discrete_space_has_one_center_coordinate_per_score(space, counts, starts, is_single):
    made = CausalProgram.for_space(space, verifier=AcceptAll())
    assert made.choices == Choices(counts=counts, starts=starts, is_single=is_single)
    assert (made.dimension, made.action_size, made.deciding) == (sum(counts), len(counts), Stage.SCORE)
    for _ in range(20):
        action = space.sample()
        numbers = made.choices.numbers(action)
        assert made.can_run(numbers)
        assert space.contains(made.executed(numbers))
        (decided,), (usable,) = made.choices.greatest(made.noiseless_center(action)[None])
        assert usable
        assert decided.tolist() == np.atleast_1d(action).tolist()
    assert not made.can_run(numbers + 100)
    assert program().deciding is Stage.ACTION


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([2, 2])])
def test_program_for_a_discrete_space_takes_its_own_fixed_fallback(space):
    size = 1 if isinstance(space, Discrete) else 2
    entry = FallbackEntry(name="f", fallback=FixedFallback((1.0,) * size))
    CausalProgram.for_space(space, verifier=AcceptAll(), fallbacks=[entry])
    wrong = FallbackEntry(name="f", fallback=FixedFallback((1.0,) * (size + 1)))
    with pytest.raises(ValueError, match=f"`fallbacks` must have the action's dimension, {size}"):
        CausalProgram.for_space(space, verifier=AcceptAll(), fallbacks=[wrong])


def test_program_refuses_choices_that_do_not_fit():
    with pytest.raises(ValueError, match="one entry for each of 3 scores"):
        program(choices=Choices(counts=(3,), starts=(0,), is_single=True))
    with pytest.raises(ValueError, match="one entry per group"):
        Choices(counts=(3, 2), starts=(0,), is_single=False)
    with pytest.raises(ValueError, match="`counts` must be at least 1"):
        Choices(counts=(0,), starts=(0,), is_single=True)
    with pytest.raises(ValueError, match="`verifier` must accept action numbers"):
        CausalProgram.for_space(Discrete(2), verifier=BoxVerifier(low=(0.0,), high=(1.0,)))
