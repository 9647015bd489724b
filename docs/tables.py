"""Write the tables of docs/protocol.md from the models and the registry: python docs/tables.py (or make tables)."""

from __future__ import annotations

import re
from pathlib import Path

from ccfs.schema import key_table, part_table

PAGE = Path(__file__).with_name("protocol.md")
SECTIONS = {
    "Protocol": "Top level",
    "TrialsSpec": "`[trials]`",
    "SeedRange": "A range of seeds",
    "UsedRange": "A range of seeds",
    "UsedProtocol": "A used protocol",
    "ClaimSpec": "`[claim]`",
    "EnvironmentSpec": "`[environment]`",
    "ControllerSpec": "`[[controllers]]`",
    "ScheduleSpec": "`[[schedules]]`",
    "BlockSpec": "A block",
    "ProgramSpec": "`[program]`",
    "VerifierSpec": "A verifier",
    "CandidateMapSpec": "A candidate map",
    "FallbackSpec": "`[[program.fallbacks]]`",
    "StopSpec": "`[stop]`",
    "EventSpec": "`[[events]]`",
    "AttackSpec": "`[[attacks]]`",
}
_REGION = re.compile(r"^<!-- (keys of|parts:) ([\w ]+) -->\n(.*?)^<!-- end -->$", re.M | re.S)


def filled(page: str) -> str:
    """Return the page with every marked table as the models and the registry give it."""

    def table(found: re.Match[str]) -> str:
        what, name = found[1], found[2]
        made = part_table(name) if what == "parts:" else key_table("protocol", name, SECTIONS)
        return f"<!-- {what} {name} -->\n{made}<!-- end -->"

    return _REGION.sub(table, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
