"""The stored result of installing: what was tried works, or refuses where it must."""

from __future__ import annotations

import json
from importlib.metadata import metadata

from stored_studies import EXPERIMENTS

FOLDER = EXPERIMENTS / "installing"
RESULTS = {
    (one["extra"], one["python"]): one
    for one in json.loads((FOLDER / "summary.json").read_text(encoding="utf-8"))["results"]
}


def test_core_was_tried_and_only_extras_that_exist():
    assert ("core", "3.11") in RESULTS
    assert {extra for extra, _ in RESULTS} <= {"core", *metadata("ccfs-rl").get_all("Provides-Extra")}


def test_outcomes_are_those_that_the_extras_promise():
    for (extra, python), one in RESULTS.items():
        has_no_wheels = extra in ("safety", "omnisafe") and python in ("3.12", "3.13")
        assert one["outcome"] == ("refuses" if has_no_wheels else "works")
        assert one["packages"].get("torch", "2.13.0").partition("+")[0] == "2.13.0"
        if extra in ("safety", "omnisafe") and not has_no_wheels:
            assert one["packages"]["mujoco"] == "2.3.3"
            assert int(one["packages"]["pyarrow"].partition(".")[0]) < 26
