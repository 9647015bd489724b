"""The site: its generated pages name all that the code has, tutorials are executed as they stand, links are checked."""

from __future__ import annotations

import json
import re
import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import typer.main

from ccfs.cli.main import app
from ccfs.schema import DOCUMENTS

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.py"))


def loaded(name: str):
    spec = spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = sys.modules.setdefault(spec.name, module_from_spec(spec))
    spec.loader.exec_module(module)
    return module


pages, check_site, tables = loaded("pages"), loaded("check_site"), loaded("tables")


def test_links_are_moved_with_their_page():
    text = "[a](docs/faq.md#x) ![p](docs/pictures/step.svg) [b](Makefile) [c](https://e.org/d) [d](#here)"
    moved = "[a](faq.md#x) ![p](pictures/step.svg) b [c](https://e.org/d) [d](#here)"
    assert pages.moved(text, "README.md", "index.md") == moved
    assert pages.moved("[t](tutorials/sensors.ipynb)", "docs/faq.md", "faq.md") == "[t](tutorials/sensors.md)"
    assert pages.moved("[r](../README.md)", "docs/goal2.md", "goal2.md") == "[r](index.md)"
    assert pages.moved("![f](figures/a.png)", "experiments/goal2/RESULTS.md", "experiments/goal2/RESULTS.md") == "f"


def names_of_commands(command, prefix="ccfs"):
    for name, inner in getattr(command, "commands", {}).items():
        yield f"{prefix} {name}"
        yield from names_of_commands(inner, f"{prefix} {name}")


@pytest.mark.slow
def test_reference_has_every_command_and_every_document():
    commands = pages.commands()
    names = list(names_of_commands(typer.main.get_command(app)))
    assert "ccfs study run" in names
    for name in names:
        assert f"# `{name}`" in commands, name
    documents = pages.documents()
    assert [kind for kind in DOCUMENTS if f"## `{kind}`\n" not in documents] == []


@pytest.mark.slow
def test_reference_has_every_public_name_and_module():
    import ccfs

    made = pages.modules()
    assert made["reference/ccfs.md"].count("\n| [") == len(ccfs.__all__) - 1
    assert "::: ccfs.certificates.bounds\n" in made["reference/certificates.md"]
    assert "::: ccfs.envs.safety.lidar_box\n" in made["reference/envs.md"]
    assert re.search(r"::: \S*\._", "".join(made.values())) is None


def cells_of(source: str) -> list[str]:
    """The cells of a source in percent form, prose without its comment signs."""
    cells = []
    for kind, text in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", source, re.M | re.S):
        cells.append(re.sub(r"^# ?", "", text, flags=re.M).strip() if kind else text.strip())
    return cells


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_is_stored_as_it_was_executed_from_its_source(path):
    stored = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    assert ["".join(cell["source"]).strip() for cell in stored] == cells_of(path.read_text(encoding="utf-8")), (
        f"run: make notebooks (or python docs/notebooks.py {path.stem})"
    )
    outputs = [output for cell in stored if cell["cell_type"] == "code" for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)
    assert all(cell["execution_count"] for cell in stored if cell["cell_type"] == "code")


@pytest.mark.slow
def test_certificate_is_refused_where_a_filter_is_bypassed_and_says_ok():
    made = runpy.run_path(str(ROOT / "docs/tutorials/bypassed-filter.py"))
    assert set(made["bypassed"][0]) == set(made["working"][0]) == {"OK"}
    assert (made["working"][1], made["bypassed"][1] > 0.0) == (0.0, True)
    assert made["kept"].is_certified
    assert made["kept"].budget > 0.1
    assert not made["refused"].is_certified
    assert made["refused"].budget is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")
@pytest.mark.parametrize("task", ["PointGoal2", "CarGoal1"])
def test_layouts_are_those_of_the_environments(task):
    page = (ROOT / "docs/layouts.md").read_text(encoding="utf-8")
    robot, kind = re.fullmatch(r"(Point|Car)(\w+)", task).groups()
    own = int(re.search(rf"^\| {robot} \| (\d+) \|", page, re.M)[1])
    listed = re.search(rf"^\| {kind} \| \d+ \| (.+) \|$", page, re.M)[1]
    lidars = [(name, own - 12 + int(a), own - 12 + int(b)) for name, a, b in re.findall(r"`(\w+)` (\d+):(\d+)", listed)]
    assert [line for line in tables.layout(task) if line[0].endswith("_lidar")] == lidars


PAGE = '<html><link rel="stylesheet" href="a.css"><h1 id="top">x</h1>{}</html>'


def built(folder: Path, body: str) -> list[str]:
    (folder / "a.css").write_text("", encoding="utf-8")
    (folder / "index.html").write_text(PAGE.format(body), encoding="utf-8")
    check_site.page.cache_clear()
    return list(check_site.faults(folder))


def test_check_site_accepts_what_leads_somewhere(tmp_path):
    assert built(tmp_path, '<a href="#top">a</a><a href="index.html#top">b</a><a href="https://e.org">c</a>') == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">a</a>', "gone.html is not there"),
        ('<a href="#gone">a</a>', "#gone has no such place"),
        ('<img src="gone.png">', "gone.png is not there"),
        ('<script src="https://e.org/x.js"></script>', "on another host"),
        ('<script src="//e.org/x.js"></script>', "on another host"),
    ],
)
def test_check_site_names_what_is_wrong(tmp_path, body, fault):
    (found,) = built(tmp_path, body)
    assert fault in found


def test_check_site_names_a_class_of_the_style_sheet_that_no_page_has(tmp_path):
    (tmp_path / "site.css").write_text(".here .gone { margin: 0.5rem }", encoding="utf-8")
    assert built(tmp_path, '<p class="a here">x</p>') == ["site.css: no page has the class gone"]


def test_check_site_refuses_an_empty_folder(tmp_path):
    assert len(list(check_site.faults(tmp_path))) == 1
