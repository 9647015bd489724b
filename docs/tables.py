"""Write the tables of four pages and the schemas from models and tests: python docs/tables.py (make tables)."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from ccfs.runs.trace import Trace
from ccfs.schema import DOCUMENTS, SHIPPED, key_table, part_table, schema_text

PAGE = Path(__file__).with_name("protocol.md")
FORMATS = Path(__file__).with_name("formats.md")
CONTROLLERS = Path(__file__).with_name("controllers.md")
LAYOUTS = Path(__file__).with_name("layouts.md")
ROBOTS = ("Point", "Car", "Racecar", "Doggo", "Ant")
LEVELS = {"Goal": 3, "Button": 3, "Push": 3, "Circle": 3, "Run": 1, "Race": 3}
SECTIONS = {
    "Protocol": "Top level",
    "TrialsSpec": "`[trials]`",
    "SeedRange": "A range of seeds",
    "UsedRange": "A range of seeds",
    "UsedProtocol": "A used protocol",
    "DrawsSpec": "Several draws at each seed",
    "ClaimSpec": "`[claim]`",
    "StrataSpec": "The stratified bound",
    "EnvironmentSpec": "`[environment]`",
    "ControllerSpec": "`[[controllers]]`",
    "ScheduleSpec": "`[[schedules]]`",
    "BlockSpec": "A block",
    "SensorSpec": "A sensor",
    "ProgramSpec": "`[program]`",
    "VerifierSpec": "A verifier",
    "CandidateMapSpec": "A candidate map",
    "FallbackSpec": "`[[program.fallbacks]]`",
    "StopSpec": "`[stop]`",
    "EventSpec": "`[[events]]`",
    "AttackSpec": "`[[attacks]]`",
    "FamilySpec": "`[[families]]`",
}
CERTIFICATE = {
    "FamilyRecord": "The claim about a disturbance",
    "DivergenceRecord": "Divergences",
    "ClaimRecord": "The claim",
    "StrataRecord": "A stratified claim",
    "ScheduleRecord": "The schedule",
    "BlockRecord": "A block",
    "AttackedCount": "Under an attack",
    "CodeDigests": "Code",
    "RegistrationRecord": "Registration",
}
_REGION = re.compile(
    r"^<!-- (keys of|parts:|attributes of|supported:|layouts:) ([\w -]+) -->\n(.*?)^<!-- end -->$", re.M | re.S
)


def attributes(kind: type) -> str:
    """Return the public attributes of a class as Markdown, each with the text of its docstring."""
    found = {name: made for name, made in vars(kind).items() if isinstance(made, property)}
    lines = [f"| `{name}` | {(made.__doc__ or '').replace('|', chr(92) + '|')} |" for name, made in found.items()]
    return "\n".join(["| attribute | what it is |", "| --- | --- |", *lines]) + "\n"


def supported() -> ModuleType:
    """Return the list of supported policies that the tests run."""
    place = Path(__file__).resolve().parents[1] / "tests/support/supported.py"
    spec = spec_from_file_location("supported", place)
    module = sys.modules.setdefault("supported", module_from_spec(spec))  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def layout(task: str) -> list[tuple[str, int, int]]:
    """Return the sensors of a Safety-Gymnasium task with their places in the observation, in order."""
    from ccfs.envs import make

    env = make(f"Safety{task}-v0")
    found = env.unwrapped.observation_layout.items()
    env.close()
    return [(name, first, last) for name, (first, last) in found]


def robots() -> str:
    """Return the robots' own numbers as Markdown. The lidar of the task Goal0 comes after them."""
    lines = ["| robot | numbers | sensors, in order |", "| --- | --- | --- |"]
    for robot in ROBOTS:
        own = [(name, first, last) for name, first, last in layout(f"{robot}Goal0") if not name.endswith("_lidar")]
        places = ", ".join(f"`{name}` {first}:{last}" for name, first, last in own)
        lines.append(f"| {robot} | {own[-1][2]} | {places} |")
    return "\n".join(lines) + "\n"


def tasks() -> str:
    """Return the lidars of the tasks as Markdown."""
    lines = ["| task | numbers | lidars, in order |", "| --- | --- | --- |"]
    for kind, levels in LEVELS.items():
        for level in range(levels):
            every = layout(f"Point{kind}{level}")
            places = ", ".join(f"`{name}` {first}:{last}" for name, first, last in every if name.endswith("_lidar"))
            lines.append(f"| {kind}{level} | {every[-1][2]} | {places or 'none'} |")
    return "\n".join(lines) + "\n"


def filled(page: str) -> str:
    """Return the page with every marked table as the models and the registry give it."""

    def table(found: re.Match[str]) -> str:
        what, name = found[1], found[2]
        if what == "attributes of":
            return f"<!-- {what} {name} -->\n{attributes({'Trace': Trace}[name])}<!-- end -->"
        if what == "supported:":
            return f"<!-- {what} {name} -->\n{supported().TABLES[name]()}<!-- end -->"
        if what == "layouts:":
            return f"<!-- {what} {name} -->\n{({'robots': robots, 'tasks': tasks}[name])()}<!-- end -->"
        kind, _, model = name.rpartition(" ")
        sections = CERTIFICATE if kind else SECTIONS
        made = part_table(name) if what == "parts:" else key_table(kind or "protocol", model, sections)
        return f"<!-- {what} {name} -->\n{made}<!-- end -->"

    return _REGION.sub(table, page)


if __name__ == "__main__":
    for page in (PAGE, FORMATS, CONTROLLERS, LAYOUTS):
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    SHIPPED.mkdir(exist_ok=True)
    for kind in DOCUMENTS:
        (SHIPPED / f"{kind}.json").write_text(schema_text(kind), encoding="utf-8")
