from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, norm
from toy_protocol import protocol
from typer.testing import CliRunner

from ccfs.certificates.schedule import ProposalSchedule, Stage
from ccfs.certificates.trajectory import certify_event
from ccfs.cli.main import app
from ccfs.results.costs import GRID, cost_curve, cost_study, default_budgets, in_lines
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import RunError

LAW = {
    "batch": ("batch = 4", "batch = 20"),
    "law": ("cohort = { first = 100, count = 40 }", "initial_law = 40"),
    "bound": ('bound = "cohort"', 'bound = "clopper-pearson"'),
}


def priced(folder, name="run", **arguments):
    """A run whose trial with reset seed s costs what the toy says, known without any trace."""
    given = ", ".join(f"{key} = {value}" for key, value in arguments.items())
    change = (
        'make = "corridor"\narguments = { horizon = 6, post = 0.6 }',
        f'make = "toys:Priced"\narguments = {{ {given} }}',
    )
    made = protocol(folder, trials=40, env=change, **LAW)
    return made, run(made, folder / name, serial_engine(), where="p")


@pytest.fixture(scope="module")
def paid(tmp_path_factory):
    return priced(tmp_path_factory.mktemp("paid"))


def seeds(made, arm):
    return [made.streams(arm, trial).reset_seed for trial in range(40)]


def test_costs_are_clopper_pearson_at_delta_over_arms_and_points(paid):
    # Oracle: SciPy's beta quantile at delta / (arms * points) and costs known from the reset seeds.
    made, store = paid
    study = cost_study(store, grid=[0.0, 2.0, 3.0])
    assert (study.family, study.most, study.is_most_given) == (2 * 3, 6.0, False)
    for arm in made.arms:
        totals = [min(seed % 4, 3) for seed in seeds(made, arm)]
        for at in study.grid:
            hits = sum(total <= at for total in totals)
            expected = beta.ppf(0.05 / 6, hits, 41 - hits) if hits else 0.0
            lower = study.curves[arm.name].lower_at(at, budget=0.0)
            assert lower == pytest.approx(expected, rel=1e-9)
            shifted = study.curves[arm.name].lower_at(at, budget=0.1)
            mu = 0.1 * math.sqrt(arm.schedule.plan.at(Stage.ACTION, 0).charge)
            assert shifted == pytest.approx(norm.cdf(norm.ppf(expected) - mu), rel=1e-6)


def test_costs_expected_upper_is_the_sum_of_the_cells(paid):
    _, store = paid
    study = cost_study(store, grid=[0.0, 2.0, 3.0], most=10.0)
    for curve in study.curves.values():
        p0, p2, p3 = (curve.lower_at(at, budget=0.05) for at in (0.0, 2.0, 3.0))
        by_hand = 2.0 * (1 - p0) + 1.0 * (1 - p2) + 7.0 * (1 - p3)
        assert curve.expected_upper(budget=0.05) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.slow
def test_costs_trajectories_that_end_early_or_tell_no_cost_count_against_us(tmp_path):
    for name, arguments in (("crash", {"crash_at": 3}), ("silent", {"silent_at": 3}), ("short", {"steps": 3})):
        _, store = priced(tmp_path, name, **arguments)
        curves = cost_study(store, grid=[0.0, 5.0]).curves
        assert all(proof.successes == 0 for curve in curves.values() for proof in curve.certificates)
        assert all(curve.expected_upper(budget=0.0) == 6.0 for curve in curves.values())


def test_costs_refuse_an_unknown_greatest_cost(tmp_path):
    _, store = priced(tmp_path, price=0.5)
    with pytest.raises(ValueError, match=r"`--most` must be given, because some recorded steps cost neither 0 nor 1"):
        cost_study(store)
    with pytest.raises(ValueError, match=r"`--most` must be at least 1\.5, a total cost that was recorded, got 1"):
        cost_study(store, most=1.0)
    assert cost_study(store, most=3.0).grid == (0.0, 1.0, 2.0)


def test_costs_refuse_a_run_without_costs(tmp_path):
    _, store = priced(tmp_path, silent_at=0)
    with pytest.raises(ValueError, match="must have recorded costs, but no step has one"):
        cost_study(store, most=3.0)


@pytest.mark.parametrize("most", [math.nan, math.inf, 0.0, -1.0])
def test_costs_refuse_a_bad_greatest_cost(paid, most):
    with pytest.raises(ValueError, match="`--most`"):
        cost_study(paid[1], most=most)


@pytest.mark.parametrize("grid", [[], [6.0], [0.0, 7.0], [math.nan], [-1.0]])
def test_costs_refuse_a_bad_grid(paid, grid):
    with pytest.raises(ValueError, match="`--grid`"):
        cost_study(paid[1], grid=grid)


def test_costs_share_delta_with_the_other_studies_of_the_family(tmp_path):
    made = protocol(tmp_path, x=('bound = "cohort"', 'bound = "cohort"\nfamily = 5'))
    study = cost_study(run(made, tmp_path / "run", serial_engine(), where="p"), grid=[0.0])
    assert study.family == 2 * 1 * 3  # five of two claims each: the third study is only half there
    assert any("averages over the cohort" in line for line in in_lines(study, [0.0]))
    assert default_budgets(study) == (0.0, 0.1)
    span = "until the first goal or within" if made.stop.goal else "total cost within"
    assert span in next(iter(in_lines(study, [0.0])))
    flipped = made.model_copy(update={"stop": made.stop.model_copy(update={"goal": not made.stop.goal})})
    assert span not in next(iter(in_lines(dataclasses.replace(study, protocol=flipped), [0.0])))


def test_costs_refuse_unfinished_and_changed_runs(tmp_path):
    _, store = priced(tmp_path)
    (store.root / "batches/steer/one/nominal/batch-00001.json").unlink()
    with pytest.raises(RunError, match="Audit this run before counting"):
        cost_study(store)


def test_costs_command_prints_what_holds_rounded_against_us(paid):
    made, store = paid
    result = CliRunner().invoke(app, ["costs", str(store.root), "--budgets", "0,0.1", "--grid", "0,2"])
    assert result.exit_code == 0
    assert "All 4 points hold together, except with probability at most 0.05" in result.stdout
    assert "It is assumed that every step costs 0 or 1" in result.stdout
    told = CliRunner().invoke(app, ["costs", str(store.root), "--budgets", "0,0.1", "--grid", "0,2", "--json"])
    content = json.loads(told.stdout)
    assert (content["delta"], content["family"], content["grid"], content["budgets"]) == (0.05, 4, [0, 2], [0, 0.1])
    lines = [line.split() for line in result.stdout.splitlines()]
    for arm in made.arms:
        found = content["arms"][arm.name]
        start = next(i for i, line in enumerate(lines) if line[:1] == [f"{arm.name}:"])
        for row, at in enumerate((0, 1)):
            for column in (0, 1):
                printed = float(lines[start + 2 + row][-2 + column])
                assert printed <= found["lower"][column][at] < printed + 1e-4
        for column in (0, 1):
            printed = float(lines[start + 4][-2 + column])
            assert printed - 1e-4 < found["expected_upper"][column] <= printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grid", "a"], "`--grid` must be numbers with commas"),
        (["--budgets", "0,-1"], "`--budgets` must be finite and at least 0"),
        (["--budgets", "nan"], "`--budgets` must be finite and at least 0"),
        (["--most", "0.5"], "`--most` must be at least 3"),
    ],
)
def test_costs_command_refuses_in_one_line(paid, options, message):
    result = CliRunner().invoke(app, ["costs", str(paid[1].root), *options])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_costs_default_grid_is_fixed_and_below_the_greatest_cost(paid):
    assert cost_study(paid[1]).grid == tuple(at for at in GRID if at < 6.0) == (0.0, 1.0, 2.0, 5.0)


SCHEDULE = ProposalSchedule(count=1, sigma=0.2)


def proof(successes, trials=1000, family=4, schedule=SCHEDULE):
    return certify_event(
        successes, trials, delta=0.01, family=family, target=0.5, schedule=schedule, bound="clopper-pearson"
    )


def test_cost_curve_expected_cost_by_hand():
    # Oracle: three cells by hand, [0, 2) with nothing certified, [2, 5) and [5, 10].
    a, b = proof(600), proof(900)
    curve = cost_curve({2.0: a, 5.0: b}, ceiling=10.0)
    by_hand = 2.0 + 3.0 * (1.0 - a.p_lower) + 5.0 * (1.0 - b.p_lower)
    assert curve.expected_upper(budget=0.0) == pytest.approx(by_hand, rel=1e-12)
    assert curve.lower_at(1.9, budget=0.0) == 0.0
    assert curve.lower_at(4.9, budget=0.0) == a.p_lower
    assert curve.lower_at(10.0, budget=5.0) == 1.0


@pytest.mark.slow
@given(
    tail=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    budget=st.floats(0.0, 0.5),
)
def test_cost_curve_bounds_the_worst_shifted_expectation(tail, budget):
    # Oracle: a cost on {0, 1, 2, 3} whose every event is shifted by the most that the theorem allows.
    total = sum(tail) + 1.0
    probabilities = [1.0 / total, *(value / total for value in tail)]
    trials = 10**6
    at_most = [sum(probabilities[: c + 1]) for c in range(3)]
    curve = cost_curve({float(c): proof(int(p * trials), trials) for c, p in enumerate(at_most)}, ceiling=3.0)
    mu = budget / SCHEDULE.sigma
    worst = sum(1.0 - float(norm.cdf(norm.ppf(p) - mu)) for p in at_most)
    assert curve.expected_upper(budget=budget) >= worst
    assert curve.expected_upper(budget=budget) <= worst + 0.1


def test_cost_curve_grows_with_the_shift():
    curve = cost_curve({0.0: proof(700), 1.0: proof(990)}, ceiling=2.0)
    values = [curve.expected_upper(budget=budget) for budget in (0.0, 0.1, 0.5, 100.0)]
    assert values == sorted(values)
    assert values[-1] <= 2.0


@pytest.mark.parametrize(
    ("certificates", "ceiling", "message"),
    [
        ({}, 1.0, "at least one grid point"),
        ({0.0: proof(1), 1.0: proof(2, trials=999)}, 2.0, "one simultaneous study"),
        ({0.0: proof(1), 1.0: proof(2, schedule=ProposalSchedule(count=1, sigma=0.3))}, 2.0, "one simultaneous study"),
        ({float(c): proof(c) for c in range(5)}, 9.0, "must count all 5 grid points, got 4"),
        ({0.0: proof(2), 1.0: proof(1)}, 2.0, "must not fall"),
        ({0.0: proof(2)}, math.inf, "`ceiling`"),
        ({math.nan: proof(2)}, 1.0, "`grid`"),
    ],
)
def test_cost_curve_refuses(certificates, ceiling, message):
    with pytest.raises(ValueError, match=message):
        cost_curve(certificates, ceiling=ceiling)
