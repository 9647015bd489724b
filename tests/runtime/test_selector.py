from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.runtime.components import AcceptAll, BoxVerifier, CenterFallback, FixedFallback
from ccfs.runtime.history import Source
from ccfs.runtime.program import CausalProgram, FallbackEntry
from ccfs.runtime.selector import Selector

LOW, HIGH = np.array([-1.0, -1.0]), np.array([1.0, 1.0])
OBSERVATION = np.zeros(3)


def program(**changes):
    return CausalProgram(**{"low": LOW, "high": HIGH, "verifier": AcceptAll(), **changes})


class Answering:
    """A verifier that answers with whatever a function of the actions gives."""

    def __init__(self, answer):
        self.answer = answer

    def accepts(self, observation, actions):
        return self.answer(observation, actions)


class Acting:
    def __init__(self, answer):
        self.answer = answer

    def action(self, observation, center):
        return self.answer(observation, center)


class Liar(np.ndarray):
    """An ndarray subclass whose `any` and indexing claim acceptance."""

    def any(self, *args, **kwargs):
        return True


def _raise(*_):
    raise RuntimeError("no")


def _mutate(observation, actions):
    actions[:] = 99.0
    observation[:] = np.nan
    return np.zeros(len(actions), dtype=bool)


HOSTILE = {
    "raises": _raise,
    "recursion": lambda o, a: HOSTILE["recursion"](o, a),
    "none": lambda o, a: None,
    "nan": lambda o, a: np.full(len(a), np.nan),
    "ints": lambda o, a: np.ones(len(a), dtype=int),
    "floats": lambda o, a: np.ones(len(a)),
    "objects": lambda o, a: np.array([True] * len(a), dtype=object),
    "list": lambda o, a: [True] * len(a),
    "scalar": lambda o, a: True,
    "long": lambda o, a: np.ones(len(a) + 1, dtype=bool),
    "square": lambda o, a: np.ones((len(a), 1), dtype=bool),
    "matrix": lambda o, a: np.ones((len(a), a.shape[1]), dtype=bool),
    "empty": lambda o, a: np.ones(0, dtype=bool),
    "subclass": lambda o, a: np.ones(len(a), dtype=bool).view(Liar),
    "mutates": _mutate,
    "string": lambda o, a: np.array(["yes"] * len(a)),
    "masked": lambda o, a: np.ma.masked_array(np.ones(len(a), dtype=bool)),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_selector_hostile_verifier_never_lets_anything_run(name):
    entries = (FallbackEntry(name="stop", fallback=FixedFallback((0.0, 0.0))),)
    selector = Selector(program(verifier=Answering(HOSTILE[name]), fallbacks=entries))
    selection = selector.select(OBSERVATION.copy(), np.zeros(2), np.ones((4, 2)))
    assert selection.source is Source.ABSTAIN
    assert selection.action is None
    assert selection.index == -1


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_selector_hostile_verifier_leaves_declared_unverified_fallback(name):
    entries = (
        FallbackEntry(name="stop", fallback=FixedFallback((0.0, 0.0))),
        FallbackEntry(name="center", fallback=CenterFallback(), unverified=True),
    )
    selector = Selector(program(verifier=Answering(HOSTILE[name]), fallbacks=entries))
    selection = selector.select(OBSERVATION.copy(), np.array([0.3, 0.4]), np.ones((4, 2)))
    assert (selection.source, selection.index) == (Source.FALLBACK, 1)
    np.testing.assert_array_equal(selection.action, [0.3, 0.4])


numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
blocks = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5).map(lambda rows: np.array(rows))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    block=blocks,
    answers=st.lists(
        st.one_of(
            st.lists(st.booleans(), max_size=6).map(lambda f: np.array(f, dtype=bool)), st.sampled_from(sorted(HOSTILE))
        ),
        min_size=1,
        max_size=4,
    ),
    fallback=st.one_of(st.tuples(numbers, numbers), st.just("raise"), st.just(None), st.just((1.0,))),
    unverified=st.booleans(),
    clip=st.booleans(),
)
def test_selector_runs_only_what_was_accepted_or_declared(block, answers, fallback, unverified, clip):
    allowed = []
    remaining = list(answers)

    def answer(observation, actions):
        reply = remaining.pop(0) if remaining else np.zeros(len(actions), dtype=bool)
        if isinstance(reply, str):
            return HOSTILE[reply](observation, actions)
        if reply.shape == (len(actions),):
            allowed.extend(action.tobytes() for action, flag in zip(actions, reply, strict=True) if flag)
        return reply

    def act(observation, center):
        if fallback == "raise":
            raise ValueError("broken")
        return fallback if fallback is None else np.array(fallback)

    entry = FallbackEntry(name="own", fallback=Acting(act), unverified=unverified)
    made = program(
        verifier=Answering(answer), fallbacks=(entry,), candidate_map=None if clip else lambda proposals: proposals
    )
    selection = Selector(made).select(OBSERVATION.copy(), np.zeros(2), block)
    if selection.source is Source.ABSTAIN:
        assert selection.action is None
        return
    assert made.can_run(selection.action)
    if not (selection.source is Source.FALLBACK and unverified):
        assert selection.action.tobytes() in allowed


def test_selector_takes_first_accepted_proposal_in_index_order():
    block = np.array([[0.9, 0.0], [0.1, 0.0], [0.2, 0.0]])
    selector = Selector(program(verifier=BoxVerifier(low=(-0.5, -0.5), high=(0.5, 0.5))))
    selection = selector.select(OBSERVATION, np.zeros(2), block)
    assert (selection.source, selection.index) == (Source.PROPOSAL, 1)
    np.testing.assert_array_equal(selection.action, [0.1, 0.0])


@pytest.mark.parametrize(
    "answer",
    [
        _raise,
        lambda o, c: np.array([np.nan, 0.0]),
        lambda o, c: np.array([np.inf, 0.0]),
        lambda o, c: np.array([1.0]),
        lambda o, c: np.array([1j, 0]),
        lambda o, c: "left",
        lambda o, c: np.array([True, False]),
        lambda o, c: [[1.0], [2.0, 3.0]],
    ],
)
def test_selector_skips_and_records_a_broken_fallback(answer):
    candidate_map = lambda proposals: proposals  # noqa: E731
    entries = (
        FallbackEntry(name="broken", fallback=Acting(answer), unverified=True),
        FallbackEntry(name="stop", fallback=FixedFallback((0.0, 0.0)), unverified=True),
    )
    made = program(
        verifier=BoxVerifier(low=(5.0, 5.0), high=(6.0, 6.0)), fallbacks=entries, candidate_map=candidate_map
    )
    selection = Selector(made).select(OBSERVATION, np.zeros(2), np.zeros((2, 2)))
    assert (selection.source, selection.index, selection.skipped) == (Source.FALLBACK, 1, ("broken",))


def test_selector_infinite_fallback_is_refused_even_when_clipping_would_hide_nan():
    entry = FallbackEntry(name="nan", fallback=Acting(lambda o, c: np.array([np.nan, 0.0])), unverified=True)
    selection = Selector(program(verifier=Answering(_raise), fallbacks=(entry,))).select(
        OBSERVATION, np.zeros(2), np.zeros((1, 2))
    )
    assert selection.source is Source.ABSTAIN
    assert selection.skipped == ("nan",)


@pytest.mark.parametrize(
    "candidate_map", [_raise, lambda b: b[:1], lambda b: b.astype(np.float32), lambda b: None, lambda b: b.tolist()]
)
def test_selector_broken_candidate_map_rejects_every_proposal(candidate_map):
    selection = Selector(program(candidate_map=candidate_map)).select(OBSERVATION, np.zeros(2), np.zeros((3, 2)))
    assert selection.source is Source.ABSTAIN


def test_selector_nan_center_abstains_without_fallback():
    made = program()
    center = made.center([np.nan, 0.0])
    assert Selector(made).select(OBSERVATION, center, center + np.zeros((2, 2))).source is Source.ABSTAIN


def test_selector_verifier_cannot_touch_what_runs_nor_the_observation():
    observation = np.zeros(3)

    def answer(seen, actions):
        flags = np.ones(len(actions), dtype=bool)
        actions[:] = 0.77
        seen[:] = 5.0
        return flags

    selection = Selector(program(verifier=Answering(answer))).select(observation, np.zeros(2), np.full((2, 2), 0.25))
    np.testing.assert_array_equal(selection.action, [0.25, 0.25])
    np.testing.assert_array_equal(observation, np.zeros(3))


class Remembering:
    """Verifier and fallback with one memory; breaks when told to."""

    def __init__(self):
        self.seen, self.resets, self.breaks = [], 0, False

    def reset(self):
        self.seen, self.resets = [], self.resets + 1

    def observe(self, observation):
        if self.breaks:
            raise RuntimeError("sensor lost")
        self.seen.append(observation)

    def accepts(self, observation, actions):
        return np.zeros(len(actions), dtype=bool) if len(self.seen) == 2 else np.ones(len(actions), dtype=bool)

    def action(self, observation, center):
        return np.zeros(2)


def test_selector_shows_each_observation_once_to_a_shared_component():
    part = Remembering()
    selector = Selector(program(verifier=part, fallbacks=(FallbackEntry(name="own", fallback=part, unverified=True),)))
    selector.reset()
    selector.observe(OBSERVATION)
    assert len(part.seen) == 1
    assert selector.select(OBSERVATION, np.zeros(2), np.zeros((1, 2))).source is Source.PROPOSAL
    selector.observe(OBSERVATION)
    assert selector.select(OBSERVATION, np.zeros(2), np.zeros((1, 2))).source is Source.FALLBACK


def test_selector_broken_memory_rejects_until_reset():
    part = Remembering()
    selector = Selector(program(verifier=part, fallbacks=(FallbackEntry(name="own", fallback=part, unverified=True),)))
    selector.reset()
    part.breaks = True
    selector.observe(OBSERVATION)
    part.breaks = False
    selector.observe(OBSERVATION)
    selection = selector.select(OBSERVATION, np.zeros(2), np.zeros((1, 2)))
    assert (selection.source, selection.skipped) == (Source.ABSTAIN, ("own",))
    selector.reset()
    selector.observe(OBSERVATION)
    assert selector.select(OBSERVATION, np.zeros(2), np.zeros((1, 2))).source is Source.PROPOSAL


def test_selector_never_runs_an_action_outside_of_the_box():
    outside = lambda proposals: proposals * 100.0 + 50.0  # noqa: E731
    entry = FallbackEntry(name="center", fallback=CenterFallback(), unverified=True)
    made = program(verifier=AcceptAll(), fallbacks=(entry,), candidate_map=outside)
    selection = Selector(made).select(OBSERVATION, np.zeros(2), np.zeros((3, 2)))
    assert (selection.source, selection.skipped) == (Source.ABSTAIN, ("center",))


DISCRETE = CausalProgram.for_space(Discrete(3), verifier=AcceptAll())
SCORES = np.array([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 3.0]])


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(HOSTILE)))
def test_selector_runs_no_discrete_action_that_a_hostile_verifier_did_not_accept(name):
    made = CausalProgram.for_space(Discrete(3), verifier=Answering(HOSTILE[name]))
    selection = Selector(made).select(OBSERVATION, SCORES[0], SCORES)
    honest = np.asarray([True] * 3)
    if selection.action is not None:
        flags = made.verifier.accepts(OBSERVATION.copy(), np.array([1, 0, 2]))
        assert type(flags) is np.ndarray
        assert flags.dtype == honest.dtype
        assert flags[selection.index]


def test_selector_takes_the_first_accepted_discrete_action():
    made = CausalProgram.for_space(Discrete(3), verifier=Answering(lambda o, a: a != 1))
    selection = Selector(made).select(OBSERVATION, SCORES[0], SCORES)
    assert (selection.source, selection.index, selection.action.tolist()) == (Source.PROPOSAL, 1, [0])


def test_selector_rejects_rows_of_scores_without_a_greatest_one():
    block = SCORES.copy()
    block[0, 2] = np.nan
    selection = Selector(DISCRETE).select(OBSERVATION, SCORES[0], block)
    assert (selection.index, selection.action.tolist()) == (1, [0])


def test_selector_maps_scores_before_it_takes_the_greatest_and_survives_a_map_that_fails():
    turned = CausalProgram.for_space(Discrete(3), verifier=AcceptAll(), candidate_map=lambda block: -block)
    assert Selector(turned).select(OBSERVATION, SCORES[0], SCORES).action.tolist() == [0]
    for failing in (_raise, lambda block: block[:, :2], lambda block: None, lambda block: block.astype(np.float32)):
        broken = CausalProgram.for_space(Discrete(3), verifier=AcceptAll(), candidate_map=failing)
        assert Selector(broken).select(OBSERVATION, SCORES[0], SCORES).source is Source.ABSTAIN


def test_selector_verifies_a_discrete_fallback_by_its_number():
    entries = [FallbackEntry(name=str(n), fallback=Acting(lambda o, c, n=n: n)) for n in (0, 1, 2)]
    verifier = Answering(lambda o, a: (a == 2) & (len(a) == 1))
    made = CausalProgram.for_space(Discrete(3), verifier=verifier, fallbacks=entries)
    selection = Selector(made).select(OBSERVATION, SCORES[0], SCORES)
    assert (selection.source, selection.index, selection.action.tolist()) == (Source.FALLBACK, 2, [2])
