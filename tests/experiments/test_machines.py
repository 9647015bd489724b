"""Traces replay on other processors, and the stored measurement says so."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import load_protocol

FOLDER = Path(__file__).parents[2] / "experiments" / "machines"
spec = importlib.util.spec_from_file_location("machines_run", FOLDER / "run.py")
machines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(machines)
SUMMARY = json.loads((FOLDER / "summary.json").read_text(encoding="utf-8"))
TABLE = json.loads((FOLDER / "table.json").read_text(encoding="utf-8"))
OLD = machines.OLD


@pytest.mark.slow
@pytest.mark.extras
@pytest.mark.skipif(OLD not in machines.processors(), reason="this processor has neither AVX2 nor FMA3 to leave unused")
def test_rounded_traces_are_the_same_on_an_older_processor_and_exact_ones_are_not(tmp_path):
    # Six trajectories, one of each arm of the table, in a child process that imitates an older processor.
    size = {"trials": 1, "horizon": 12}
    for resolution, expected in (("2^-20", 6), ("exact", 0)):
        there = machines.elsewhere(machines.processors()[OLD], resolution=resolution, raw=tmp_path / "raw.npy", **size)
        found = machines.agreement(there, machines.roll(resolution, **size))
        assert found == {"chain": expected, "reward": 6, "steps": 6, "outcome": 6}


def test_stored_measurement_has_all_rounded_chains_equal_where_only_vector_instructions_differ():
    assert (SUMMARY["trajectories"], SUMMARY["resolution"]) == (96, "2^-20")
    found = SUMMARY["agree_with_native"]
    assert OLD in found
    for name, processor in found.items():
        if "GLIBC_TUNABLES" not in processor["variables"]:  # another C library moves the physics itself
            assert processor["2^-20"]["chain"] == 96, name
        if name.startswith("numpy without") or "Nehalem" in name:
            assert processor["exact"]["chain"] == 0, name


def test_stored_measurement_finds_ties_far_too_rare_to_meet():
    for processor in SUMMARY["agree_with_native"].values():
        observations = processor["2^-20"].get("observations")
        if observations is not None:
            assert observations["numbers_within_the_greatest_deviation_of_a_tie"] == 0
            assert observations["expected_differing_observations_in_a_million"] < 0.01


def test_page_says_what_the_measurement_says():
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, processor in SUMMARY["agree_with_native"].items():
        assert f"| {name} | {processor['exact']['chain']} | {processor['2^-20']['chain']} |" in page


def test_whole_table_has_the_kept_chains_on_an_imitated_processor():
    kept = read_parquet(machines.KEPT.read_bytes()).to_pylist()
    assert (TABLE["processor"], set(TABLE["variables"])) == (OLD, {"NPY_DISABLE_CPU_FEATURES", "OPENBLAS_CORETYPE"})
    assert (TABLE["trials"], TABLE["attacked"], TABLE["trials_with_another_chain"]) == (3072, 1536, 0)
    assert TABLE["protocol"] == load_protocol(machines.PROTOCOL).hash
    assert TABLE["chains"] == machines.chains_digest(kept)
    # Any other chain, or two trials with their chains exchanged, would show.
    kept[0]["chain"], kept[1]["chain"] = kept[1]["chain"], kept[0]["chain"]
    assert TABLE["chains"] != machines.chains_digest(kept)
