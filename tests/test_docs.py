"""The Python blocks of README, quickstart and formats run as they stand, one after another, and print what they say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
import typer.main

from ccfs.certificates.trajectory import PREMISES
from ccfs.cli.demo import demo_protocol
from ccfs.cli.main import app
from ccfs.files.toml import read_toml
from ccfs.gallery.shape import EXAMPLE
from ccfs.protocol.model import Protocol
from ccfs.results.certificate import RunCertificate
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.record import ShiftRow, StepRow, TrajectoryRow, schema_of
from ccfs.runs.run import run
from ccfs.runtime.wrapper import Widths

ROOT = Path(__file__).resolve().parents[1]
RUN_AS_THEY_STAND = ("README.md", "docs/quickstart.md", "docs/formats.md", "docs/studies.md")
DOCS = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[str]:
    return BLOCK.findall(text_of(name))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with RUN in it, the first trials of the demo."""
    folder = tmp_path_factory.mktemp("docs")
    certify(run(demo_protocol().first(4), folder / "RUN", serial_engine(), where="demo"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN_AS_THEY_STAND)
def test_docs_python_blocks_run(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, block in enumerate(blocks(name)):
            exec(compile(block, f"{name}, block {number}", "exec"), namespace)
    for quoted in re.findall(r"It prints\n\n((?:> .*\n)+)", text_of(name)):
        words = " ".join(line.removeprefix("> ") for line in quoted.splitlines())
        assert words in printed.getvalue()


def test_docs_blocks_are_found_and_quickstart_quotes_its_output() -> None:
    assert len(blocks("docs/quickstart.md")) >= 5
    assert len(blocks("docs/formats.md")) == 4
    assert "It prints\n\n> The probability" in text_of("docs/quickstart.md")


def test_page_of_the_package_has_the_example_of_the_readme() -> None:
    assert blocks("docs/package.md") == blocks("README.md")[:1]
    quoted = [re.search(r"It prints\n\n((?:> .*\n)+)", text_of(name))[1] for name in ("docs/package.md", "README.md")]
    assert quoted[0] == quoted[1]


def test_readme_example_needs_fifteen_lines_and_two_imports() -> None:
    example = blocks("README.md")[0]
    imported = re.findall(r"^(?:import|from) (.+)$", example, re.M)
    assert {name.strip() for line in imported for name in line.split(",")} == {"gymnasium", "ccfs"}
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    assert "It prints\n\n> The probability" in text_of("README.md")


@pytest.mark.parametrize(
    "schema",
    [schema_of(kind, Widths(1, 1, 1)) for kind in (StepRow, TrajectoryRow, ShiftRow)],
    ids=["steps", "lines", "private"],
)
def test_formats_name_every_column(schema) -> None:
    documented = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", text_of("docs/formats.md"), re.M))))
    assert {re.sub(r"_0$", "_i", name) for name in schema.names} <= documented


def test_formats_name_every_key_of_a_certificate(place: Path) -> None:
    text = text_of("docs/formats.md")
    (path,) = place.glob("RUN/certificates/steering/one/*.json")
    document = RunCertificate.from_bytes(path.read_bytes(), where="c")
    claim = document.model_dump()["claim"]
    assert len(claim) == 15
    for key in [*RunCertificate.model_fields, *claim]:
        assert f"| `{key}` |" in text, key


def test_formats_name_every_kind_of_file(place: Path) -> None:
    text = text_of("docs/formats.md")
    for path in (place / "RUN").iterdir():
        assert f"`{path.name}`" in text or f"`{path.name}/" in text, path.name


@pytest.mark.parametrize("name", ["README.md", *DOCS])
def test_docs_links_and_commands_exist(name: str) -> None:
    text = text_of(name)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (ROOT / name).parent.joinpath(target).exists(), target
    known = set(typer.main.get_command(app).commands)
    for command in re.findall(r"(?:^|`)ccfs ([a-z]+)", text, re.M):
        assert command in known, f"{name} names `ccfs {command}`"


def test_docs_describe_keys_of_a_protocol_that_exist() -> None:
    text = text_of("docs/threat-model.md")
    fields = Protocol.model_fields
    for key in re.findall(r"`((?:claim|trials)\.\w+)`", text):
        part, _, name = key.partition(".")
        assert name in fields[part].annotation.model_fields, key


def test_readme_mathematics_and_citation_name_the_same_paper() -> None:
    (title,) = re.findall(r'^  title: "(.+)"$', text_of("CITATION.cff"), re.M)
    families = re.findall(r'^      family-names: "(.+)"$', text_of("CITATION.cff"), re.M)
    assert f"*{title}* ({', '.join(families)})" in text_of("README.md")
    assert f"*{title}*" in text_of("docs/mathematics.md")


def test_threat_model_lists_every_premise_of_a_certificate():
    page = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
    assert [f"- {premise}" for premise in PREMISES if f"- {premise}\n" not in page] == []


def test_geometry_draws_the_shape_of_the_picture_and_of_the_gallery() -> None:
    (drawn,) = re.findall(r"^```toml\n(.*?)^```$", text_of("docs/geometry.md"), re.M | re.S)
    assert read_toml(drawn) == read_toml(EXAMPLE)


def test_pages_are_written_without_semicolons() -> None:
    pages = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *DOCS]
    prose = [re.sub(r"^```.*?^```$|^<!-- .*?^<!-- end -->$", "", text_of(name), flags=re.M | re.S) for name in pages]
    words, semicolons = (sum(len(re.findall(part, text)) for text in prose) for part in (r"\w+", ";"))
    assert semicolons < 0.001 * words, "write one idea per sentence"


@pytest.mark.parametrize(
    "name", [name for name in DOCS if name not in ("docs/glossary.md", "docs/package.md") and "decisions" not in name]
)
def test_pages_link_their_words_to_the_glossary(name: str) -> None:
    assert "](glossary.md#" in text_of(name)
