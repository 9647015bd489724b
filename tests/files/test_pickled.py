"""Pickles read without running them: Python's own unpickling of files that we write is the oracle."""

from __future__ import annotations

import contextlib
import pickle
from collections import OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfs.files.pickled import Built, Named, PickleError, array, dtype, followed

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
PLAIN = [None, True, 0, -7, 2**40, 2**70, 1.5, "naïve", b"\x00\xff", (1, (2, 3), ()), [1, ["x"]], {"a": {"b": [None]}}]
ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array([np.inf, -np.inf, np.nan]),
    np.array([True, False]),
    np.array(3.5),
    np.zeros((0,), np.int64),
    np.array([1, 2], dtype=">i4"),
    np.float32(0.1),
    np.int64(5),
]


class Thing:
    """An ordinary object."""

    def __init__(self):
        self.values = np.arange(3.0)
        self.name = "thing"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_followed_reads_plain_values(protocol):
    content = pickle.dumps(PLAIN, protocol=protocol)
    read = followed(content)
    if protocol < 3:  # bytes stand there as text to be encoded
        assert read[8].name == "_codecs.encode"
        read[8] = PLAIN[8]
    assert read == pickle.loads(content)
    assert followed(pickle.dumps([PLAIN[0]] * 3000, protocol=protocol)) == [None] * 3000


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", range(len(ARRAYS)))
def test_array_restores_what_numpy_pickled(protocol, place):
    given = ARRAYS[place]
    if protocol == 2 and not given.size:
        protocol = 3  # no bytes at all are written in yet another way
    found = array(followed(pickle.dumps(given, protocol=protocol)))
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert found.tobytes() == np.asarray(given).tobytes()
    assert dtype(followed(pickle.dumps(given.dtype, protocol=protocol))) == given.dtype


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_followed_shows_an_object_by_name_and_state(protocol):
    made = followed(pickle.dumps(Thing(), protocol=protocol))
    assert isinstance(made, Built)
    assert made.name == f"{Thing.__module__}.Thing"
    assert made.state["name"] == "thing"
    assert array(made.state["values"]).tolist() == [0.0, 1.0, 2.0]
    ordered = followed(pickle.dumps(OrderedDict(a=1, b=2), protocol=protocol))
    assert (ordered.name, ordered.items) == ("collections.OrderedDict", [("a", 1), ("b", 2)])
    for several in (deque([1, 2]), {1, 2}):
        assert sorted(value for _, value in followed(pickle.dumps(several, protocol=4)).items) == [1, 2]
    assert followed(pickle.dumps(frozenset([3]), protocol=4)).arguments == (3,)
    assert followed(pickle.dumps(np.float32, protocol=protocol)) == Named("numpy", "float32")
    assert dtype(Named("numpy", "float32")) == np.float32


def test_followed_runs_nothing(tmp_path: Path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    for protocol in PROTOCOLS:
        content = pickle.dumps({"low": Trap(), "shape": (2,)}, protocol=protocol)
        said = followed(content)
        assert said["shape"] == (2,)
        assert isinstance(said["low"], Built)
        with pytest.raises(PickleError, match="must be an array of numbers"):
            array(said["low"])
    for direct in (b"cos\nsystem\n(S'true'\ntR.", b"(S'true'\nios\nsystem\n.", b"(cos\nsystem\nS'true'\no."):
        with pytest.raises(PickleError):  # Python 2's strings, and the opcodes INST and OBJ
            followed(direct)
    assert not (tmp_path / "sprung").exists()
    pickle.loads(content)
    assert (tmp_path / "sprung").exists(), "the trap itself must work, or this test shows nothing"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "must be whole"),
        (b"N", "must be whole"),
        (b".", "too few values"),
        (b"(.", "too few values"),
        (b"h\x05.", "must be whole"),
        (b"P1\n.", "got the opcode PERSID"),
        (b"\x82\x01.", "got the opcode EXT1"),
        (b"NN\x86}s.", "must be whole|Only a dictionary"),
        (b"NNa.", "Only a list"),
        (b"NNNs.", "Only a dictionary"),
        (b"NNb.", "must get its state once"),
        (b"}NNs.", "must be text or numbers"),
    ],
)
def test_followed_refuses_what_it_cannot_explain(content, words):
    with pytest.raises(PickleError, match=words):
        followed(content)


def test_followed_does_not_hash_towers_of_tuples():
    """The hash of such a key would take 2^60 steps."""
    tower = b"\x80\x04})" + b"q\x00h\x00\x86" * 60 + b"Ns."
    with pytest.raises(PickleError, match="must be text or numbers"):
        followed(tower)


@pytest.mark.parametrize(
    "change",
    [
        lambda made: setattr(made, "arguments", (Named("os", "system"), (0,), b"b")),
        lambda made: setattr(made, "state", (1, (3,), made.state[2], False, b"1234")),
        lambda made: setattr(made, "state", (1, (-1,), made.state[2], False, b"")),
        lambda made: setattr(made, "state", (1, (2**62, 2**62), made.state[2], False, b"")),
        lambda made: setattr(made, "state", (1, (3,), Named("builtins", "object"), False, made.state[4])),
        lambda made: setattr(made, "state", (1, (3,), made.state[2], False, "text")),
        lambda made: setattr(made, "state", (2, (3,), made.state[2], False, made.state[4])),
        lambda made: setattr(made, "state", None),
        lambda made: setattr(made, "maker", Named("numpy.core.multiarray", "other")),
        lambda made: made.items.append((1, 2)),
        lambda made: setattr(made.state[2], "arguments", ("O8", False, True)),
        lambda made: setattr(made.state[2], "arguments", ("f4, f4", False, True)),
    ],
)
def test_array_refuses_every_other_layout(change):
    made = followed(pickle.dumps(np.arange(3.0), protocol=4))
    assert array(made).tolist() == [0.0, 1.0, 2.0]
    change(made)
    with pytest.raises(PickleError):
        array(made)
    for other in (None, "text", [1.0], np.arange(3)):
        with pytest.raises(PickleError, match="must be an array of numbers"):
            array(other)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_followed_reads_or_refuses_damaged_pickles(data):
    whole = pickle.dumps({"mean": np.arange(3.0), "of": Thing()}, protocol=data.draw(st.sampled_from(list(PROTOCOLS))))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(PickleError):
        followed(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
