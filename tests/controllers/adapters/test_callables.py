"""Controllers from functions: what they answer, what their digest covers and what they refuse."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
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


CELL = """import numpy as np
GAIN = 2.0
def policy(o):
    # inside
    return np.clip(GAIN * o[:2], -1.0, 1.0)
pair = [lambda o: np.clip(o[:2], 0.0, 1.0), lambda o: np.clip(o[:2], -1.0, 0.0)]
class Holder:
    @staticmethod
    def act(o):
        return np.tanh(o[:2])
policy
"""


def run_cell(text: str, name: str) -> dict[str, object]:
    """Run a cell as IPython does: its text is put into `linecache`, and its statements are compiled one by one."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, object] = {"__name__": "__main__"}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    *statements, last = compile(text, name, "exec", flags | ast.PyCF_ONLY_AST).body
    for node in statements:
        exec(compile(ast.Module([node], []), name, "exec", flags), namespace)
    exec(compile(ast.Interactive([last]), name, "single", flags), namespace)
    return namespace


def test_from_callable_works_in_notebook_cells(tmp_path: Path) -> None:
    cells = [
        run_cell(CELL, "/tmp/ipykernel_77/1234.py"),
        run_cell(CELL.replace("inside", "x"), "/tmp/ipykernel_77/5.py"),
    ]
    written = vars(loaded(tmp_path, CELL, "written"))
    for pick in (
        lambda names: names["policy"],
        lambda names: names["pair"][0],
        lambda names: names["pair"][1],
        lambda names: names["Holder"].act,
    ):
        first, again, filed = (from_callable(pick(names), "policy") for names in (*cells, written))
        assert first.digest == again.digest == filed.digest, "the same function, in a cell and in a file"
        assert first.center(ONES).tolist() == filed.center(ONES).tolist()
    assert_told_apart(*(from_callable(f, "p") for f in cells[0]["pair"]))
    whole = compile(CELL, "/tmp/ipykernel_77/1234.py", "exec")
    if sys.version_info >= (3, 11):  # what made cells a case of their own: the compiler sees the import in a file
        assert cells[0]["policy"].__code__ not in whole.co_consts
    changed = CELL.replace("GAIN * o", "-GAIN * o")
    linecache.cache["/tmp/ipykernel_77/1234.py"] = (len(changed), None, changed.splitlines(True), "x")
    with pytest.raises(ValueError, match="is not the code in"):
        from_callable(cells[0]["policy"], "policy")


def test_from_callable_hands_observations_on_in_their_own_precision() -> None:
    kinds = []

    def look(o):
        kinds.append(np.asarray(o).dtype)
        return o

    for dtype in (np.float32, np.float64, np.uint8):
        from_callable(look, "look", content=b"look").center(np.ones(2, dtype))
    assert kinds == [np.float32, np.float64, np.uint8]


class Device:
    """An array of another library, such as JAX, which numpy can read."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


def test_from_callable_takes_arrays_of_other_libraries() -> None:
    made = from_callable(lambda o: Device([0.5, 2.0]), "jax", content=b"parameters")
    assert made.center(ONES).tolist() == [0.5, 2.0]
    compiled = functools.partial(lambda scale, o: Device(scale * o), 2.0)  # as a compiled function, it has no source
    with pytest.raises(ValueError, match="`content` must be given for a partial: its behaviour cannot be read off it"):
        from_callable(compiled, "jax")
    first, second = (from_callable(compiled, "jax", content=content) for content in (b"first", b"second"))
    assert first.center(ONES).tolist() == [2.0, 2.0, 2.0]
    assert first.digest != second.digest
    batch = from_callable(lambda o: Device([[0.5, 2.0]]), "jax", content=b"parameters")
    with pytest.raises(ValueError, match=r"must return a vector, got shape \(1, 2\). Return its first row"):
        batch.center(ONES)


def test_from_callable_gives_a_dict_back_to_a_function_that_wants_one() -> None:
    space = spaces.Dict({"goal": spaces.Box(-1, 1, (2,)), "gear": spaces.Discrete(3)})

    def rule(o):
        return o["goal"] * (1.0 + o["gear"])

    made = from_callable(rule, "rule", observation_space=space, action_space=spaces.Box(-9, 9, (2,)))
    whole = {"goal": np.array([0.5, -1.0], np.float32), "gear": 2}
    assert made.center(spaces.flatten(space, whole)).tolist() == [1.5, -3.0]
    assert made.digest != from_callable(rule, "rule").digest
    with pytest.raises(ValueError, match=r"must return an action of shape \(2,\), got \(3,\)"):
        from_callable(lambda o: np.zeros(3), "three", action_space=spaces.Box(-9, 9, (2,))).center(ONES)


def test_from_callable_takes_scores_and_numbers_of_discrete_actions() -> None:
    def asked(answer, space):
        return from_callable(lambda o: answer, "x", content=b"x", action_space=space).center(ONES)

    one, several = spaces.Discrete(3), spaces.MultiDiscrete([2, 2])
    assert asked([0.1, -np.inf, 0.3], one).tolist() == [0.1, -np.inf, 0.3]
    assert asked(2, one).dtype == asked(np.array([1, 0]), several).dtype == np.int64
    assert (asked(2, one).tolist(), asked(np.array([1, 0]), several).tolist()) == (2, [1, 0])
    assert asked([1, 0, 0], one).dtype == np.float64
    for answer, space, words in (
        ([0.1, 0.2], one, "must return 3 scores, one per action, got 2"),
        ([0.1, 0.2, 0.3], several, "must return 4 scores, those of each choice in turn, got 3"),
        ([0.1, np.nan, 0.2], one, "must return finite numbers"),
        ([0.1, np.inf, 0.2], one, "must return finite numbers"),
    ):
        with pytest.raises(ValueError, match=words):
            asked(answer, space)
    with pytest.raises(ValueError, match="must return finite numbers"):
        from_callable(lambda o: [-np.inf], "x").center(ONES)


def test_from_callable_reads_over_modules_that_a_function_around_it_imports() -> None:
    import math

    assert from_callable(lambda o: [math.tanh(o[0])], "local").center(ONES).tolist() == [math.tanh(1.0)]


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
