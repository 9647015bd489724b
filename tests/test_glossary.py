"""The glossary is sorted and complete, and every link with an anchor in the project's pages leads to a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"
DECISIONS = ROOT / "docs" / "decisions"
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
PARTS = ["Context", "Decision", "Reasons", "Consequences"]
# The least that the glossary must explain.
NEEDED = """
stage block schedule arm attack nominal trial trace event claim family budget limit cohort law stratum provenance
controller center proposal candidate verifier fallback abstain energy ledger chain journal manifest audit replay
fresh guard zoo preflight lower upper delta target kappa rho multiplier
"""


def prose(path: Path) -> str:
    """The text of a page without its code blocks: a `#` in them is a comment."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def headings(path: Path, level: str = "#{1,6}") -> list[str]:
    return re.findall(rf"^{level} (.+)$", prose(path), re.M)


def anchor(heading: str) -> str:
    """The anchor that a forge gives to a heading: lower case, hyphens for spaces, no other punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken(path: Path, text: str) -> list[str]:
    """The links of a page's text whose file or anchor does not exist."""
    faults = []
    for name, fragment in re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)", text):
        if name.startswith("https://"):
            continue
        target = path.parent / name if name else path
        if not target.exists() or (fragment and fragment not in map(anchor, headings(target))):
            faults.append(f"{name}#{fragment}")
    return faults


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_page_links_lead_to_files_and_headings(path: Path) -> None:
    assert broken(path, prose(path)) == []


def test_broken_finds_missing_files_and_anchors() -> None:
    text = "[a](glossary.md#arm) [b](glossary.md#leg) [c](nowhere.md) [d](#nothing) [e](https://example.org/#x)"
    assert broken(ROOT / "docs" / "quickstart.md", text) == ["glossary.md#leg", "nowhere.md#", "#nothing"]


def test_glossary_is_sorted_and_names_no_word_twice() -> None:
    words = [word.casefold() for word in headings(GLOSSARY, "###")]
    assert words == sorted(set(words))


def test_glossary_has_the_words_of_the_project() -> None:
    assert sorted(set(NEEDED.split()) - set(headings(GLOSSARY, "###"))) == []


def test_glossary_explains_each_word() -> None:
    entries = re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", GLOSSARY.read_text(encoding="utf-8"), re.M)
    assert [word for word, text in entries if len(text.split()) < 5] == []
    assert len(entries) == len(headings(GLOSSARY, "###"))


def test_avoided_words_are_sorted_and_have_no_entry() -> None:
    table = prose(GLOSSARY).partition("## Words we do not use")[2]
    avoided = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(avoided) >= 10
    assert [word.casefold() for word in avoided] == sorted(word.casefold() for word in avoided)
    assert set(avoided) & set(headings(GLOSSARY, "###")) == set()


def test_decisions_are_all_listed_in_order_and_have_four_parts() -> None:
    pages = sorted(path.name for path in DECISIONS.glob("*.md") if path.name != "README.md")
    rows = re.findall(r"^\| \[(.+?)\]\((.+?)\)", prose(DECISIONS / "README.md"), re.M)
    assert sorted(name for _, name in rows) == pages
    titles = [title.casefold() for title, _ in rows]
    assert titles == sorted(titles)
    for title, name in rows:
        assert headings(DECISIONS / name) == [title, *PARTS], name
