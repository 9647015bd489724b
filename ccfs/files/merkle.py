"""The Merkle tree of RFC 6962 (Certificate Transparency): one hash that fixes a long list, and a draw from the list."""

from __future__ import annotations

import hashlib

__all__ = ["MerkleTree", "drawn", "least_exposed"]


class MerkleTree:
    """The root of a list that grows. It keeps one hash per level and no leaf.

    >>> tree = MerkleTree()
    >>> tree.add(b"")
    >>> tree.root
    '6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d'
    """

    def __init__(self) -> None:
        self._whole: list[tuple[int, bytes]] = []  # roots of whole subtrees, the largest first, each with its height

    def add(self, leaf: bytes) -> None:
        """Add a leaf at the end."""
        height, node = 0, hashlib.sha256(b"\0" + leaf).digest()
        while self._whole and self._whole[-1][0] == height:
            node = _joined(self._whole.pop()[1], node)
            height += 1
        self._whole.append((height, node))

    @property
    def root(self) -> str:
        """The root over all leaves so far, in hexadecimal digits. That of no leaves is the hash of nothing."""
        if not self._whole:
            return hashlib.sha256().hexdigest()
        node = self._whole[-1][1]
        for _, left in reversed(self._whole[:-1]):
            node = _joined(left, node)
        return node.hex()


def _joined(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def drawn(total: int, count: int, *, seed: str, fixed: str) -> list[int]:
    """Return `count` different numbers below `total`, ascending, as a seed and a hash give them.

    Number i of the draw is SHA-256 of `fixed`, `seed` and i, each in its own line, modulo `total`. One that was drawn
    before is drawn again. The numbers look random to whoever fixed the list before knowing the seed. They do not to
    somebody who knows the seed first: who can try many lists finds one whose draw is harmless. So no draw follows from
    the hash of the list alone.

    >>> drawn(1000, 3, seed="an auditor's own", fixed="the root")
    [13, 28, 926]
    """
    if not 0 <= count <= total:
        raise ValueError(f"`count` must be in [0, {total}], got {count}.")
    if count == total:
        return list(range(total))
    found: set[int] = set()
    number = 0
    while len(found) < count:
        digest = hashlib.sha256(f"{fixed}\n{seed}\n{number}".encode()).digest()
        found.add(int.from_bytes(digest, "big") % total)
        number += 1
    return sorted(found)


def least_exposed(total: int, count: int, *, per_cent: int) -> int:
    """Return the least number of forged members that a draw of `count` meets with at least this probability.

    A draw without repetition misses all of f forged members with probability at most (1 - f / total) ** count, because
    every further number avoids them less likely. The comparison is exact, in integers.

    >>> least_exposed(1_000_000, 300, per_cent=95), least_exposed(1_000_000, 1_000_000, per_cent=99)
    (9937, 1)
    """
    if not (0 < count <= total and 0 < per_cent < 100):
        raise ValueError(f"`count` must be in [1, {total}] and `per_cent` in [1, 99], got {count} and {per_cent}.")
    if count == total:
        return 1
    few, many = 0, total  # `few` is missed too often, `many` is not
    while many - few > 1:
        middle = (few + many) // 2
        is_met = 100 * (total - middle) ** count <= (100 - per_cent) * total**count
        few, many = (few, middle) if is_met else (middle, many)
    return many
