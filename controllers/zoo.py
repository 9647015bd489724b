"""The trained controllers that ship with the package: an actor and a card each, bound by hashes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from ccfs.controllers.actor import NumpyActor
from ccfs.files.atomic import write_atomically
from ccfs.files.reading import RefusedFileError, read_bytes, read_json, read_text
from ccfs.files.terminal import printable

__all__ = ["FORMAT", "Card", "ZooEntry", "ZooError", "actor", "load", "names", "write"]

FORMAT: Final = "ccfs.zoo-card/1"
_SHIPPED = Path(__file__).parent / "zoo"

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


class ZooError(ValueError):
    """A zoo entry that does not match its own card, or is not one."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: object) -> bool:
    """Return whether a value is one line of text that shows all its characters, because people read cards."""
    return isinstance(value, str) and printable(value) == value


def _is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", value, re.ASCII) is not None


def _is_range(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_count, value)) and value[0] <= value[1]


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(map(_is_text, value))


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


_LISTS = ("training_reset_seeds", "versions")
_KINDS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "name": (_is_name, "a name of letters, digits, `.`, `_`, `-`, at most 80"),
    **dict.fromkeys(("algorithm", "environment", "command"), (_is_text, "a line of text")),
    **dict.fromkeys(("seed", "steps"), (_is_count, "a whole number, at least 0")),
    **dict.fromkeys(("config", "curve"), (lambda value: isinstance(value, Mapping), "a dictionary")),
    "training_reset_seeds": (_is_range, "a first and a last seed"),
    "versions": (_is_texts, "a list of strings"),
    **dict.fromkeys(("actor_sha256", "digest"), (_is_sha256, "64 hexadecimal digits")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Where a controller comes from.

    Args:
        steps: environment steps really trained, whatever was planned.
        curve: summary of the learning curve.
        training_reset_seeds: first and last reset seed that training may have used; evaluate outside of them.
        versions: packages that took part, as name==version.
        command: repeats the training.
        actor_sha256: of the file `actor.npz`.
        digest: content hash of the actor, as on certificates.
    """

    name: str
    algorithm: str
    environment: str
    seed: int
    steps: int
    config: Mapping[str, Json]
    curve: Mapping[str, Json]
    training_reset_seeds: tuple[int, int]
    versions: tuple[str, ...]
    command: str
    actor_sha256: str
    digest: str

    def __post_init__(self) -> None:
        for name, (is_one, meaning) in _KINDS.items():
            value = getattr(self, name)
            if not is_one(value):
                raise ZooError(f"`{name}` of a card must be {meaning}, got {value!r}.")

    def as_json(self) -> str:
        """Return the card as it stands in `card.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Inverse of `as_json`; another format or other keys are refused."""
        try:
            values = read_json(text.encode(), "a card")
        except RefusedFileError as error:
            raise ZooError(f"A card must be JSON, got {error}") from error
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise ZooError(f"A card must have format {FORMAT!r}.")
        expected = {field.name for field in fields(cls)}
        if values.keys() != expected:
            raise ZooError(f"A card must have the keys {sorted(expected)}, got {sorted(values)}.")
        lists = {name: tuple(values[name]) for name in _LISTS if isinstance(values[name], list)}
        return cls(**{**values, **lists})


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """A controller with its card."""

    actor: NumpyActor
    card: Card


def names() -> tuple[str, ...]:
    """Return the names of the shipped controllers."""
    return tuple(sorted(path.parent.name for path in _SHIPPED.glob("*/card.json")))


def load(name_or_folder: str | os.PathLike[str]) -> ZooEntry:
    """Return a shipped controller by name, or any other by its folder; one that does not match its card is refused.

    Nothing of the files is executed: JSON and plain arrays only.
    """
    shipped = isinstance(name_or_folder, str) and name_or_folder in names()
    folder = _SHIPPED / str(name_or_folder) if shipped else Path(name_or_folder)
    if not (folder / "card.json").is_file():
        raise ZooError(f"No controller {str(name_or_folder)!r}: neither a folder with a card nor one of {names()}.")
    try:
        card = Card.from_json(read_text(folder / "card.json"))
        written = read_bytes(folder / "actor.npz")
    except RefusedFileError as error:
        raise ZooError(str(error)) from None
    found = hashlib.sha256(written).hexdigest()
    if found != card.actor_sha256:
        raise ZooError(f"{folder.name}: actor.npz has SHA-256 {found}, its card says {card.actor_sha256}.")
    try:
        actor = NumpyActor.load(io.BytesIO(written))
    except (TypeError, ValueError) as error:
        raise ZooError(f"{folder.name}: actor.npz is no actor: {error}") from error
    if actor.digest != card.digest:
        raise ZooError(f"{folder.name}: the actor's digest is {actor.digest}, its card says {card.digest}.")
    return ZooEntry(actor=actor, card=card)


def actor(name: str) -> NumpyActor:
    """Return the actor of a shipped controller: what a protocol names as `zoo`."""
    return load(name).actor


def write(folder: Path, actor: NumpyActor, **card: object) -> Card:
    """Write an entry; the hashes are added here. Returns the card."""
    actor.save(folder / "actor.npz")
    sha256 = hashlib.sha256((folder / "actor.npz").read_bytes()).hexdigest()
    full = Card(**card, actor_sha256=sha256, digest=actor.digest)  # type: ignore[arg-type]
    write_atomically(folder / "card.json", full.as_json().encode())
    return full
