"""docs/architecture.md leads to files that exist and lists the rooms in the order that the imports keep."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = "ccfs|certificates|controllers|envs|experiments|tests"


def rooms() -> list[str]:
    """The rooms in the order of tests/test_dependency_direction.py, which holds every file to it."""
    tree = ast.parse((ROOT / "tests" / "test_dependency_direction.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOMS":
            return [room.removeprefix("ccfs.") for room in ast.literal_eval(node.value)]
    raise AssertionError("tests/test_dependency_direction.py has no ROOMS")


def test_page_names_files_and_folders_that_exist() -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]*)`", PAGE)
    assert len(named) > 60
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_page_lists_the_rooms_in_the_order_of_imports() -> None:
    (line,) = re.findall(r"^`certificates`.*$", PAGE, re.M)
    assert re.findall(r"`(\w+)`", line) == rooms()


def test_page_gives_every_room_its_job() -> None:
    listed = re.findall(r"^\| `([\w/]+)/` \| ", PAGE, re.M)
    inside = [room if room == "certificates" else f"ccfs/{room}" for room in rooms()]
    assert listed == [*inside, "controllers", "envs", "experiments", "tests"]


def test_picture_shows_every_room() -> None:
    picture = (ROOT / "docs" / "pictures" / "layers.svg").read_text(encoding="utf-8")
    shown = re.findall(r'font-weight="[67]00">([\w/ ]+)<', picture)
    assert {room if room != "certificates" else "certificates/" for room in rooms()} <= set(shown)
