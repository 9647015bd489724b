"""The Merkle tree of RFC 6962, the draw from it, and what the draw exposes."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from itertools import combinations
from math import comb

import pytest

from ccfs.files.merkle import MerkleTree, drawn, least_exposed

# The leaves and roots of the reference implementation of Certificate Transparency.
LEAVES = ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def recursive(leaves):
    """The definition of RFC 6962, section 2.1, as it stands there."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    split = 1
    while 2 * split < len(leaves):
        split *= 2
    return hashlib.sha256(b"\x01" + recursive(leaves[:split]) + recursive(leaves[split:])).digest()


def root(leaves):
    tree = MerkleTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree.root


def test_merkle_roots_are_those_of_certificate_transparency():
    leaves = [bytes.fromhex(leaf) for leaf in LEAVES]
    assert tuple(root(leaves[:count]) for count in range(9)) == ROOTS


@pytest.mark.parametrize("count", [9, 15, 16, 17, 100, 1023])
def test_merkle_root_is_that_of_the_definition(count):
    leaves = [str(i).encode() for i in range(count)]
    assert root(leaves) == recursive(leaves).hex()


def test_merkle_root_changes_with_every_leaf_and_with_their_order():
    leaves = [str(i).encode() for i in range(13)]
    seen = {root(leaves)}
    for place in range(13):
        seen.add(root([*leaves[:place], b"forged", *leaves[place + 1 :]]))
        seen.add(root([*leaves[:place], *leaves[place + 1 :]]))
    seen.add(root([*leaves[1:], leaves[0]]))
    assert len(seen) == 28


def test_drawn_numbers_are_different_ascending_and_repeat():
    found = drawn(1000, 50, seed="s", fixed="f")
    assert found == sorted(set(found)) == drawn(1000, 50, seed="s", fixed="f")
    assert len(found) == 50
    assert 0 <= found[0] <= found[-1] < 1000
    assert found != drawn(1000, 50, seed="t", fixed="f")
    assert found != drawn(1000, 50, seed="s", fixed="g")
    assert drawn(7, 7, seed="s", fixed="f") == list(range(7))
    assert drawn(7, 0, seed="s", fixed="f") == []
    assert len(drawn(100, 99, seed="s", fixed="f")) == 99
    for count in (-1, 8):
        with pytest.raises(ValueError, match="`count` must be in"):
            drawn(7, count, seed="s", fixed="f")


def test_drawn_numbers_are_uniform():
    """Each of 20 numbers is in a draw of 5 with probability 1/4.

    Over 4,000 seeds each count is binomial with mean 1,000 and deviation 27.4. A band of 6 deviations around it has a
    false-alarm rate below 1e-7 for all 20 together.
    """
    counts = [0] * 20
    for seed in range(4000):
        for number in drawn(20, 5, seed=str(seed), fixed="root"):
            counts[number] += 1
    assert all(abs(count - 1000) < 6 * 27.4 for count in counts)


@pytest.mark.parametrize(("total", "count"), [(10, 1), (10, 3), (12, 6), (30, 10), (9, 8)])
@pytest.mark.parametrize("per_cent", [50, 95, 99])
def test_least_exposed_never_promises_more_than_the_draw_gives(total, count, per_cent):
    """Oracle: the exact probability that a draw without repetition meets one of the forged ones, as a fraction."""
    forged = least_exposed(total, count, per_cent=per_cent)
    missed = Fraction(comb(total - forged, count), comb(total, count))
    assert 1 - missed >= Fraction(per_cent, 100)
    assert forged == total or Fraction(total - forged + 1, total) ** count > 1 - Fraction(per_cent, 100)


def test_least_exposed_agrees_with_counting_every_draw():
    forged = least_exposed(8, 3, per_cent=50)
    draws = list(combinations(range(8), 3))
    met = sum(any(member < forged for member in draw) for draw in draws)
    assert 2 * met >= len(draws)


def test_least_exposed_of_a_whole_replay_is_one_and_bad_arguments_are_refused():
    assert least_exposed(5, 5, per_cent=99) == 1
    for arguments in ((5, 0, 95), (5, 6, 95), (5, 1, 0), (5, 1, 100)):
        with pytest.raises(ValueError, match="must be in"):
            least_exposed(arguments[0], arguments[1], per_cent=arguments[2])
