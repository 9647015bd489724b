"""The table of a run against counts taken another way, and the paper's own rows from its own counts."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import pandas
import pyarrow as pa
import pyarrow.parquet
import pytest
from toy_protocol import text
from typer.testing import CliRunner

from ccfs.certificates.bounds import Bound
from ccfs.certificates.rounding import lower_text
from ccfs.certificates.schedule import ProposalSchedule
from ccfs.certificates.trajectory import certify_event
from ccfs.cli.main import app
from ccfs.results.table import heads, table_rows, worst_attack
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.manifest import write_manifest
from ccfs.runs.store import RunError, Store

pytestmark = pytest.mark.slow

# Counts and printed results of the paper's table: safe, p_L, B_cert, L at B = 0.02.
PAPER = [
    ("one", 211, 0.694, 0.0989, 0.657),
    ("four", 210, 0.690, 0.0968, 0.653),
    ("one", 187, 0.600, 0.0495, 0.560),
    ("four", 189, 0.608, 0.0535, 0.568),
    ("one", 205, 0.670, 0.0861, 0.633),
    ("four", 207, 0.678, 0.0903, 0.641),
]


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    (folder / "p.toml").write_text(text(trials=30))
    assert call("run", folder / "p.toml", "-o", folder / "run", "--workers", 1).exit_code == 0
    return folder / "run"


def test_table_rows_agree_with_counts_by_pandas(run):
    store = Store(run)
    protocol = store.protocol()
    rows = table_rows(trial_lines(store, protocol), protocol, "safe", (Bound.HOEFFDING, Bound.COHORT))
    assert [(row.schedule, row.certificate.bound) for row in rows[:2]] == [
        ("one", Bound.HOEFFDING),
        ("one", Bound.COHORT),
    ]
    for row in rows:
        nominal = pandas.read_parquet(run / f"trajectories/steer/{row.schedule}/nominal")
        pushed = pandas.read_parquet(run / f"trajectories/steer/{row.schedule}/push")
        steps = pandas.read_parquet(run / f"traces/steer/{row.schedule}/nominal")
        never = nominal.first_cost_step.isna()
        assert row.trials == len(nominal) == 30
        assert list(row.counts) == ["Safe", "Goal", "Timeout", "Cost"]
        assert row.counts["Cost"] == (~never).sum()
        reached = nominal.goal_step.notna() & (never | (nominal.first_cost_step > nominal.goal_step))
        assert row.counts["Goal"] == reached.sum()
        assert row.successes == row.counts["Safe"] == row.counts["Goal"] + row.counts["Timeout"]
        assert row.shifted["push"] == (pushed.first_cost_step.isna() & pushed.goal_step.notna()).sum()
        assert row.acted["proposals"] == (steps.source == "proposal").sum()
        assert row.acted["center"] == (steps.source == "fallback").sum()
        assert sum(row.acted.values()) == len(steps)


def test_table_rows_count_a_cost_after_the_goal_as_no_cost(run):
    store = Store(run)
    protocol = store.protocol()
    lines = trial_lines(store, protocol)
    assert {"goal_step", "first_cost_step"} <= set(lines.column_names)
    made = lines.to_pylist()
    for line in made:
        line["goal_step"], line["first_cost_step"] = 5, (6, 5, None)[line["trial"] % 3]
    row = table_rows(pa.Table.from_pylist(made, schema=lines.schema), protocol, "safe", (Bound.COHORT,))[0]
    assert (row.trials, row.counts["Cost"]) == (30, 10)


# An event of each kind, with the columns that its table has.
COLUMNS = {
    "goal-before-cost": ("Success", "Cost", "No goal"),
    "cost-at-most": ("Within", "Above", "Ended"),
    "return-at-least": ("Reached", "Below", "Ended"),
}


@pytest.mark.parametrize("event", [*COLUMNS, "terminated"])
def test_table_columns_follow_the_event_and_divide_the_trials(run, event):
    store = Store(run)
    protocol = store.protocol()
    lines = trial_lines(store, protocol)
    arguments = {"limit": 0.0} if event == "cost-at-most" else {"value": 0.0} if event == "return-at-least" else {}
    spec = protocol.events[0].model_copy(update={"event": event, "arguments": arguments})
    made = lines.to_pylist()
    for line in made:
        line["in safe"] = line["trial"] % 3 == 0
        line["outcome"] = ("horizon", "abstained")[line["trial"] % 2]
        line["goal_step"], line["first_cost_step"] = None, (None, 2)[line["trial"] % 2]
    table = pa.Table.from_pylist(made, schema=lines.schema)
    other = protocol.model_copy(update={"events": (spec,)})
    rows = table_rows(table, other, "safe", (Bound.COHORT,))
    names = COLUMNS.get(event, ("Success", "Failed: horizon", "Failed: abstained"))
    for row in rows:
        assert tuple(row.counts) == names
        assert row.counts[names[0]] == row.successes == 10
        assert tuple(row.counts.values()) == (10, 10, 10)
        assert sum(row.counts.values()) == row.trials
    assert heads(rows)[3:6] == names
    assert heads(rows)[-1] == f"Shift {names[0].lower()}"


def test_worst_attack_leaves_fewest_trials_in_the_event(run):
    store = Store(run)
    protocol = store.protocol()
    rows = table_rows(trial_lines(store, protocol), protocol, "safe", (Bound.COHORT,))
    push = protocol.attacks[0]
    two = protocol.model_copy(update={"attacks": (push, push.model_copy(update={"name": "worse"}))})
    pairs = [dataclasses.replace(row, shifted={"push": 9, "worse": 8}) for row in rows]
    assert worst_attack(pairs, two).name == "worse"
    assert worst_attack(rows, protocol.model_copy(update={"attacks": ()})) is None


def test_trial_lines_hold_the_spent_energy_and_the_chain(run):
    store = Store(run)
    lines = trial_lines(store, store.protocol()).to_pandas()
    assert len(lines) == 2 * 2 * 30
    assert (lines.spent[lines.attack == "nominal"] == 0.0).all()
    pushed = lines[(lines.attack == "push") & (lines.schedule == "one")]
    log = pandas.read_parquet(run / "private/steer/one/push")
    assert pushed.set_index("trial").spent.to_dict() == log.groupby("trial").spent.max().to_dict()
    chains = pandas.read_parquet(run / "trajectories/steer/one/push").set_index("trial").chain
    assert pushed.set_index("trial").chain.to_dict() == chains.to_dict()


def test_table_command_prints_both_bounds_and_refuses_bad_input(run, tmp_path):
    shown = call("table", run)
    assert shown.exit_code == 0
    assert "hoeffding" in shown.output
    assert "cohort" in shown.output
    marked = call("table", run, "--markdown")
    assert marked.output.count("\n| steer |") == 4
    latex = call("table", run, "--latex").output
    assert latex.startswith("% ")
    assert "L at B = " in latex.splitlines()[0]
    assert latex.splitlines()[1] == "\\begin{tabular}{lllrrrrrrrr}"
    assert latex.count("\nsteer & ") == 4
    rows = list(csv.reader(io.StringIO(call("table", run, "--csv").output)))
    assert len(rows) == 5
    assert rows[1] == [cell.strip() for cell in marked.output.splitlines()[2].split("|")[1:-1]]
    assert call("table", run, "--csv", "--json").exit_code == 2
    assert call("table", tmp_path / "absent").exit_code == 2
    assert call("table", run, "--event", "none").exit_code == 2
    assert call("table", run, "--budget", "nan").exit_code == 2


def test_table_command_refuses_an_unfinished_run(run, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/batches/steer/one/nominal/batch-00001.json").unlink()
    answer = call("table", tmp_path / "run")
    assert answer.exit_code == 2
    assert "planned trials" in answer.output


@pytest.mark.parametrize("content", [None, b"no table"])
def test_table_command_refuses_a_missing_or_changed_trace_in_one_line(run, tmp_path, content):
    import shutil

    shutil.copytree(run, tmp_path / "run")
    name = "traces/steer/one/nominal/batch-00001.parquet"
    path = tmp_path / "run" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    answer = call("table", tmp_path / "run")
    assert (answer.exit_code, type(answer.exception)) == (2, SystemExit)
    what = "is missing" if content is None else "was changed after it was written"
    assert answer.output == f"{tmp_path / 'run'}: {name}: {what}. Audit this run before reading its trials.\n"


def test_table_command_refuses_a_changed_run(run, tmp_path):
    """A failed trial's row replaced by a good one's must not become a certified number."""
    import shutil

    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/trajectories/steer/one/nominal/batch-00000.parquet"
    rows = pa.parquet.read_table(path)
    pa.parquet.write_table(pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)]), path)
    assert "was changed after it was written" in call("table", tmp_path / "run").output
    store = Store(tmp_path / "run")
    protocol = store.protocol()
    write_manifest(store, protocol)
    with pytest.raises(RunError, match="each once and in order"):
        trial_lines(store, protocol)
    (tmp_path / "run/manifest.json").unlink()
    assert call("table", tmp_path / "run").exit_code == 2


@pytest.mark.parametrize(("proposals", "safe", "lower", "budget", "shifted"), PAPER)
def test_hoeffding_rows_are_the_papers_and_cohort_rows_are_greater(proposals, safe, lower, budget, shifted):
    schedule = {
        "one": ProposalSchedule(count=1, sigma=0.2 / 1.05**0.5),
        "four": ProposalSchedule(count=4, sigma=0.2, multiplier=1.05),
    }[proposals]
    common = {"delta": 0.001, "family": 6, "target": 0.5, "schedule": schedule, "event": "safe"}
    ours = certify_event(safe, 256, bound=Bound.HOEFFDING, **common)
    assert round(ours.p_lower, 3) == lower
    assert round(ours.budget, 4) == budget
    assert round(ours.lower_at(0.02), 3) == shifted
    gained = certify_event(safe, 256, bound=Bound.COHORT, **common)
    assert 1.18 < gained.budget / ours.budget < 1.30
    assert lower_text(gained.p_lower, 3) > lower_text(ours.p_lower, 3)


def test_table_shows_the_budgets_of_the_asked_stage(tmp_path):
    content = text(trials=20).replace(
        'name = "one"\naction = { count = 1, sigma = 0.2 }',
        'name = "one"\naction = { count = 1, sigma = 0.2 }\nsensor = { sigma = [0.05, 0.0] }',
    )
    content += '\n[[attacks]]\nname = "eyes"\nrule = "random"\nenergy = 0.1\nstage = "all"\n'
    (tmp_path / "p.toml").write_text(content)
    assert call("run", tmp_path / "p.toml", "-o", tmp_path / "run", "--workers", 1).exit_code in (0, 1)
    plain = json.loads(call("table", tmp_path / "run", "--json").output)
    sensor = json.loads(call("table", tmp_path / "run", "--json", "--stage", "sensor", "--budget", "0.01").output)
    assert (plain["stage"], sensor["stage"], sensor["shift_budget"]) == (None, "sensor", 0.01)
    for before, now in zip(plain["lines"], sensor["lines"], strict=True):
        assert before["budgets"] == now["budgets"]
        assert before["budget"] == before["budgets"]["action"]
        is_sensed = now["schedule"] == "one"
        assert now["budget"] == (now["budgets"]["sensor"] if is_sensed else None)
        assert (now["lower"] is None) == (not is_sensed)
    printed = call("table", tmp_path / "run", "--stage", "sensor").output
    assert "of the sensor stage" in printed
    refused = call("table", tmp_path / "run", "--stage", "score")
    assert (refused.exit_code, "`stage` must be one of action, sensor, got 'score'" in refused.output) == (2, True)
