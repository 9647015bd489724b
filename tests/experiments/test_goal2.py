"""The kept SafetyPointGoal2 results: sealed, of the shipped protocols and controllers, rederived from trial lines."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from stored_studies import EXPERIMENTS

from ccfs.certificates.bounds import Bound
from ccfs.certificates.stratified import StratifiedCertificate
from ccfs.controllers import zoo
from ccfs.protocol.model import load_protocol
from ccfs.report.figures import interval
from ccfs.results.certify import certify
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import Store

pytestmark = pytest.mark.slow
FOLDER = EXPERIMENTS / "goal2"
sys.path.insert(0, str(FOLDER))
records, seeds, summary = (importlib.import_module(name) for name in ("records", "seeds", "summary"))
KEPT = sorted(path.name for path in (FOLDER / "results").iterdir())
FILES = {"table": "protocol"}


def certificates(name):
    return records.stored_certificates(name)


def lines_of(name, document):
    controller, schedule = document.arm.split("/")
    found = records.lines(name).to_pylist()
    return [line for line in found if (line["controller"], line["schedule"]) == (controller, schedule)]


def is_inside(kind, line):
    """Say from the trajectory line alone whether a trial is in one of the study's two events: a second counting."""
    goal, cost = line["goal_step"], line["first_cost_step"]
    reached = goal is not None and (cost is None or cost > goal)
    if kind == "goal-before-cost":
        return reached
    assert kind == "no-cost-until-goal"
    return reached or (goal is None and cost is None and line["outcome"] == "horizon" and line["steps"] == 500)


@pytest.mark.parametrize("name", KEPT)
def test_kept_files_have_their_checksums_and_one_changed_byte_is_found(name, tmp_path):
    assert records.broken_seals(records.RESULTS / name) == []
    shutil.copytree(records.RESULTS / name, tmp_path / name)
    content = bytearray((tmp_path / name / "trajectories.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name / "trajectories.parquet").write_bytes(bytes(content))
    assert records.broken_seals(tmp_path / name) == ["trajectories.parquet"]


@pytest.mark.parametrize("name", KEPT)
def test_kept_results_are_of_the_protocol_files_and_of_the_shipped_controllers(name):
    protocol = records.stored_protocol(name)
    shipped = load_protocol(FOLDER / f"{FILES.get(name, name)}.toml").model_dump()
    assert shipped == protocol.model_dump()
    digests = json.loads((records.RESULTS / name / "provenance.json").read_text())["controllers"]
    for spec in protocol.controllers:
        if spec.make == "zoo":
            assert digests[spec.name] == zoo.load(spec.arguments["name"]).card.digest


@pytest.mark.parametrize("name", KEPT)
def test_kept_certificates_follow_from_the_trial_lines(name):
    protocol = records.stored_protocol(name)
    documents = list(certificates(name))
    assert len(documents) + len(list(records.stored_families(name))) == protocol.claims
    seeds_of_cohort = [seed for seed in protocol.trials.seeds for _ in range(protocol.trials.per_seed)]
    for document in documents:
        assert document.protocol == protocol.hash
        lines = lines_of(name, document)
        nominal = [line for line in lines if line["attack"] == "nominal"]
        assert [line["reset_seed"] for line in nominal] == seeds_of_cohort
        inside = sum(line[f"in {document.event}"] for line in nominal)
        assert (document.trajectory.successes, document.trajectory.trials) == (inside, len(nominal))
        if isinstance(document.trajectory, StratifiedCertificate):
            by_seed = np.array([line[f"in {document.event}"] for line in nominal]).reshape(-1, protocol.trials.per_seed)
            pilot = protocol.trials.draws.pilot
            assert document.trajectory.pilot_successes == tuple(by_seed[:, :pilot].sum(axis=1).tolist())
            assert document.trajectory.main_successes == tuple(by_seed[:, pilot:].sum(axis=1).tolist())
        if document.definition.event != "cost-at-most":
            assert inside == sum(is_inside(document.definition.event, line) for line in nominal)
        for attacked in document.attacks:
            shifted = [line for line in lines if line["attack"] == attacked.attack]
            assert len(shifted) == attacked.trials == len(nominal)
            assert sum(line[f"in {document.event}"] for line in shifted) == attacked.successes
            assert max(line["spent"] for line in shifted) == attacked.energy <= attacked.energy_limit


@pytest.mark.parametrize("name", KEPT)
def test_no_attack_brought_the_observed_rate_below_what_is_certified(name):
    """Beyond chance, that is: the upper end of a 1 - 1e-6 interval must reach the certified probability."""
    for document in certificates(name):
        for attacked in document.attacks:
            if attacked.budget is not None:
                _, high = interval(attacked.successes, attacked.trials, Bound.COHORT, delta=1e-6)
                assert high >= document.trajectory.lower_at(attacked.budget)


def test_results_page_and_tables_are_rederived_from_the_trial_lines():
    assert summary.text() == (FOLDER / "RESULTS.md").read_text(encoding="utf-8")
    for name in KEPT:
        made = records.tables(records.lines(name), records.stored_protocol(name))
        assert made == (records.RESULTS / name / "table.md").read_text(encoding="utf-8")


def test_no_certified_seed_was_used_for_anything_else():
    assert seeds.overlaps() == []
    assert seeds.stray_development_seeds() == []
    assert sum(name.startswith("cohort") for name in seeds.spans()) == len(list(FOLDER.glob("*.toml")))


def test_cost_study_is_rederived_from_the_trial_lines():
    content = (records.RESULTS / "costs" / "costs.json").read_bytes()
    assert records.costs("costs").to_bytes() == content
    study = json.loads(content)
    protocol = records.stored_protocol("costs")
    assert (study["lowest"], study["highest"]) == (0.0, protocol.horizon)
    for arm in protocol.arms:
        found = study["arms"][arm.name]
        mine = [
            line
            for line in records.lines("costs").to_pylist()
            if f"{line['controller']}/{line['schedule']}" == arm.name and line["attack"] == "nominal"
        ]
        assert all(line["outcome"] == "horizon" and line["steps"] == protocol.horizon for line in mine)
        assert [[line["total_cost"]] for line in mine] == found["certificate"]["totals"]
        assert found["certificate"]["family"] == len(protocol.arms)
        assert found["expected"] == sorted(found["expected"])  # grows with the budget


def test_observation_budgets_are_rederived_for_one_arm():
    import csv

    from ccfs.controllers.lipschitz import lipschitz_upper, observation_budget

    with (FOLDER / "observation.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["eta"]]
    row = rows[0]
    controller = row["arm"].split("/")[0]
    spec = next(spec for spec in records.stored_protocol(row["results"]).controllers if spec.name == controller)
    bound = lipschitz_upper(zoo.actor(spec.arguments["name"]))
    document = next(d for d in certificates(row["results"]) if d.arm == row["arm"])
    assert float(row["budget"]) == document.trajectory.budget
    eta = observation_budget(document.trajectory.budget, bound, horizon=500)
    assert float(row["eta"]) == pytest.approx(eta, rel=1e-3)


def test_strata_give_at_least_1_4_times_the_budget_of_the_cohort_bound_from_the_same_trials():
    """The aim that was set before the first trial."""
    protocol = records.stored_protocol("strata")
    rows = records.rows(records.lines("strata"), protocol, protocol.events[0].name)
    budgets = {row.bound: row.certificate.budget for row in rows}
    assert budgets["stratified"] >= 1.4 * budgets["cohort"]


def test_an_agent_without_navigator_or_map_is_certified_for_at_least_0_3():
    """The aim that was set before the first trial."""
    budgets = [c.trajectory.budget for c in certificates("agents") if c.event == "no-cost-until-goal"]
    assert len(budgets) == 3
    assert min(budgets) >= 0.3


def test_named_bias_is_certified_for_four_times_what_the_count_gives():
    """The aim that was set before the first trial, from the scores and energies of the 4,096 trials."""
    documents = {document.claim.name: document for document in records.stored_families("families")}
    lines = records.lines("families").to_pylist()
    assert list(documents) == sorted(spec.name for spec in records.stored_protocol("families").families)
    for document in documents.values():
        assert document.claim.successes == sum(line[f"in {document.event}"] for line in lines)
        assert document.claim.trials == len(lines) == 4_096
    documents["bias"].claim.recheck()
    assert documents["bias"].is_certified
    assert documents["bias"].share_of_count <= 1 / 4


def test_scores_foretell_what_attacked_trials_show():
    found = list(records.scored_and_run("scores"))
    assert len(found) == 3
    for score, attacked in found:
        assert score.rate_lower <= attacked.successes / attacked.trials <= score.rate_upper
        low, high = interval(attacked.successes, attacked.trials, Bound.COHORT, delta=0.05)
        assert low <= score.rate <= high


def test_stock_environment_gives_the_same_trace():
    """What `make table` says at its end. Both must draw the same noise, although their protocols differ."""
    stock = importlib.import_module("stock")
    assert stock.compare(load_protocol(records.HERE / "protocol.toml").first(1), 1).different == 0


def test_audit_replays_trials_of_the_table_in_its_confined_child(tmp_path):
    """The limits of the child must leave room for MuJoCo, which reserves far more memory than it uses."""
    look = load_protocol(records.HERE / "protocol.toml").first(1)
    run(look, tmp_path / "run", serial_engine(), where="p")
    certify(Store(tmp_path / "run"))
    # In a process of its own: trials of a run that this process made are replayed here and not in a child.
    command = [sys.executable, "-m", "ccfs", "audit", tmp_path / "run", "--replay", "all"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "12 replayed bit for bit" in done.stdout) == (0, True), done.stdout
