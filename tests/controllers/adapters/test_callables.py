"""Controllers from functions: what they answer, what their digest covers and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from told_apart import ONES, assert_told_apart, loaded

from ccfs.controllers import (
    Controller,
    from_callable,
)

GAIN = np.array([1.0, 2.0])
SCALE = 1.0
ANYTHING = object()


def test_from_callable_answers_and_hashes() -> None:
    gain = np.array([[1.0, 2.0], [0.0, -1.0]])
    made = from_callable(lambda observation: gain @ observation, "linear")
    assert isinstance(made, Controller)
    made.reset()
    assert made.center(np.array([1.0, 1.0], np.float32)).tolist() == [3.0, -1.0]
    digests = set()
    for factor in (1.0, 2.0):
        other = factor * gain
        digests.add(from_callable(lambda observation, other=other: other @ observation, "linear").digest)
    digests.add(from_callable(lambda observation: gain @ observation, "renamed").digest)
    digests.add(from_callable(np.tanh, "tanh", content=b"numpy.tanh").digest)
    assert len(digests | {made.digest}) == 5
    again = from_callable(np.tanh, "tanh", content=b"numpy.tanh")
    assert again.digest in digests


def test_from_callable_hands_out_a_copy() -> None:
    def spoil(observation):
        observation[:] = 0.0
        return observation

    given = np.ones(2)
    from_callable(spoil, "spoil").center(given)
    assert given.tolist() == [1.0, 1.0]


def test_from_callable_refuses() -> None:
    helper = object()
    with pytest.raises(TypeError, match="`f` must be callable"):
        from_callable(3, "three")
    with pytest.raises(ValueError, match="`name` must be a non-empty string"):
        from_callable(lambda o: o, "")
    with pytest.raises(ValueError, match="`content` must be given for a ufunc"):
        from_callable(np.tanh, "tanh")
    with pytest.raises(ValueError, match="`content` must be given: 'helper' is of type object"):
        from_callable(lambda o: (helper, o)[1], "closed")
    with pytest.raises(ValueError, match="must return finite numbers"):
        from_callable(lambda o: o * np.nan, "nan").center([1.0])
    with pytest.raises(ValueError, match="must return a vector"):
        from_callable(lambda o: 1.0, "scalar").center([1.0])


def test_from_callable_tells_two_functions_on_one_line_apart() -> None:
    first, second = from_callable(lambda o: o[:2], "x"), from_callable(lambda o: -o[:2], "x")
    assert_told_apart(first, second)
    pair = [lambda o: o[:2] * 0.0, lambda o: o[:2] * False, lambda o: o[:2] * -0.0]
    assert len({from_callable(f, "x").digest for f in pair}) == 3
    with pytest.raises(AssertionError, match="the case itself"):
        assert_told_apart(first, first)


def test_from_callable_keeps_its_own_copy_of_arrays() -> None:
    gain, pair = np.ones(2), (np.ones(2), 1.0)

    def rule(o, scale=gain, *, last=gain):
        return gain * scale * last * pair[0] * o[:2]

    made = from_callable(rule, "rule")
    before, digest = made.center(ONES), made.digest
    gain[:], pair[0][:] = -3.0, 5.0
    made.reset()
    assert made.center(ONES).tobytes() == before.tobytes()
    assert made.digest == digest
    assert_told_apart(made, from_callable(rule, "rule"))

    def writes(o):
        gain[:] = o[:2]
        return gain

    with pytest.raises(ValueError, match="read-only"):
        from_callable(writes, "writes").center(ONES)


def test_from_callable_hashes_the_globals_it_reads_and_refuses_when_they_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rule(o):
        return SCALE * GAIN * np.tanh(o[:2])

    made = from_callable(rule, "rule")
    made.reset()
    monkeypatch.setitem(rule.__globals__, "SCALE", 2.0)
    with pytest.raises(ValueError, match="a value it reads has changed"):
        made.reset()
    assert from_callable(rule, "rule").digest != made.digest
    monkeypatch.setitem(rule.__globals__, "SCALE", 1.0)
    assert from_callable(rule, "rule").digest == made.digest
    made.reset()
    with pytest.raises(ValueError, match="'global ANYTHING' is of type object"):
        from_callable(lambda o: (ANYTHING, o)[1], "global object")


def test_from_callable_refuses_a_function_that_counts() -> None:
    calls = 0

    def counts(o):
        nonlocal calls
        calls += 1
        return o / calls

    def writes_global(o):
        global SCALE
        SCALE = SCALE + 1.0
        return o * SCALE

    for f in (counts, writes_global):
        with pytest.raises(ValueError, match="outside of it"):
            from_callable(f, "memory")


def test_from_callable_refuses_a_source_that_is_not_what_runs(tmp_path: Path) -> None:
    module = loaded(tmp_path, "def rule(o):\n    return o[:2]\n", "edited")
    first = from_callable(module.rule, "rule")
    (tmp_path / "edited.py").write_text("def rule(o):\n    return -o[:2] # changed while loaded\n")
    with pytest.raises(ValueError, match="is not the code in"):
        from_callable(module.rule, "rule")
    assert first.digest != from_callable(loaded(tmp_path, "def rule(o):\n    return -o[:2]\n", "b").rule, "rule").digest


def test_from_callable_digest_leaves_out_comments_docstrings_and_layout(tmp_path: Path) -> None:
    plain = "def rule(o):\n    return 0.5 * o[:2]\n"
    told = (
        "# mended\n\ndef other(o): return o\n\n"
        'def rule(o):\n    """Halve it."""\n    # why\n    return (\n        0.5\n        * o[:2]\n    )\n'
    )
    reads = told.replace("0.5", "len(rule.__doc__)")
    texts = [plain, told, plain.replace("0.5", "0.6"), reads, reads.replace("Halve", "Half")]
    first, same, *others = (from_callable(loaded(tmp_path, text, f"m{i}").rule, "rule") for i, text in enumerate(texts))
    assert first.digest == same.digest
    assert len({first.digest, *(other.digest for other in others)}) == 4
    lines = ["pick = (lambda o: o[:2], lambda o: -o[:2])", "pick = (lambda o: o[:2],  # first\n    lambda o: -o[:2])"]
    one, two = (loaded(tmp_path, line + "\n", f"p{i}").pick for i, line in enumerate(lines))
    assert from_callable(one[0], "p").digest != from_callable(one[1], "p").digest
    assert from_callable(two[0], "p").digest != from_callable(two[1], "p").digest


def test_from_callable_refuses_other_kinds() -> None:
    class Tuned(float):
        pass

    tuned, masked, listed = Tuned(1.0), np.ma.array([1.0, 2.0], mask=[True, False]), [1.0]
    for f, kind in ((lambda o: tuned * o, "Tuned"), (lambda o: masked * o, "MaskedArray"), (lambda o: listed, "list")):
        with pytest.raises(ValueError, match=f"is of type {kind}"):
            from_callable(f, "kind")
    with pytest.raises(TypeError, match="`content` must be bytes"):
        from_callable(np.tanh, "tanh", content="numpy.tanh")
    for answer in (lambda o: o * 1j, lambda o: ["1", "2"], lambda o: [None, 1.0]):
        with pytest.raises(TypeError, match="must return real numbers"):
            from_callable(answer, "kind").center(ONES)
