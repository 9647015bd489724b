from __future__ import annotations

import itertools

import numpy as np
import pytest

from ccfs.runtime.streams import Purpose, Streams

ONE = Streams(protocol="hash", root=0, arm="a", trial=0, reset_seed=5)


def test_streams_are_reproducible_and_fresh_each_time():
    first = ONE.generator(Purpose.PROPOSAL).standard_normal(8)
    np.testing.assert_array_equal(first, ONE.generator(Purpose.PROPOSAL).standard_normal(8))


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        # Oracle: coreutils, `printf '14:ccfs-streams-24:hash1:01:a1:01:58:proposal' | sha256sum | cut -c1-32`.
        (Purpose.PROPOSAL, "b94a21d54790a041f0a40b43753e2963"),
        # Oracle: the same of '14:ccfs-streams-24:hash1:01:a1:04:none10:transition': this key has no reset seed.
        (Purpose.TRANSITION, "7e52f916ec35a667cf2b0649520c3f3c"),
    ],
)
def test_streams_numbers_are_pinned(purpose, expected):
    # A change here means that old traces no longer replay, so give the derivation a new name.
    assert ONE.key(purpose) == int.from_bytes(bytes.fromhex(expected), "little")


@pytest.mark.parametrize("purpose", list(Purpose))
def test_streams_generator_is_philox_with_the_key(purpose):
    # Oracle: numpy's own way to give Philox a key.
    expected = np.random.Philox(key=ONE.key(purpose))
    made = ONE.generator(purpose)
    assert repr(made.bit_generator.state) == repr(expected.state)
    np.testing.assert_array_equal(made.standard_normal(64), np.random.Generator(expected).standard_normal(64))


def test_streams_generator_spawns_nothing():
    """Others made from it would not have a key of their own."""
    with pytest.raises(TypeError, match="spawn"):
        ONE.generator(Purpose.SHIFT).spawn(1)


def test_streams_keys_differ_in_every_field():
    # Besides the values, texts that would collide if the fields were only put after one another.
    fields = itertools.product(("h", "h1"), (1, 11), ("a", "a1", "1a"), (1, 11), (1, 11, None))
    keys = [
        Streams(protocol=protocol, root=root, arm=arm, trial=trial, reset_seed=seed).key(purpose)
        for protocol, root, arm, trial, seed in fields
        for purpose in (Purpose.PROPOSAL, Purpose.SHIFT, Purpose.CONTROLLER)
    ]
    assert len(set(keys)) == len(keys)


def test_streams_draw_the_reset_seed_before_they_know_it():
    unknown = Streams(protocol="hash", root=0, arm="a", trial=0)
    drawn = unknown.drawn()
    assert drawn.drawn() == drawn
    assert ONE.drawn().reset_seed == drawn.reset_seed != ONE.reset_seed
    assert drawn.key(Purpose.PROPOSAL) != unknown.key(Purpose.PROPOSAL)


def test_streams_reset_seed_is_below_two_to_the_32():
    seeds = {Streams(protocol="hash", root=0, arm="a", trial=trial).drawn().reset_seed for trial in range(200)}
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert len(seeds) == 200
    # Every one of the 32 bits is drawn: each is set in some of 200 seeds and not in others.
    assert all(0 < sum(seed >> bit & 1 for seed in seeds) < 200 for bit in range(32))


@pytest.mark.parametrize(
    "changes", [{"root": -1}, {"root": 1.0}, {"trial": True}, {"arm": 3}, {"protocol": None}, {"reset_seed": -1}]
)
def test_streams_refuse_wrong_keys(changes):
    with pytest.raises((TypeError, ValueError), match=f"`{next(iter(changes))}`"):
        Streams(**{"protocol": "hash", "root": 0, "arm": "a", "trial": 0, **changes})
