from __future__ import annotations

import dataclasses
import json
import math

import pytest
from scipy.stats import norm
from toy_protocol import protocol
from typer.testing import CliRunner

from ccfs.certificates.means import Total, TotalCertificate, certify_totals
from ccfs.certificates.schedule import Stage
from ccfs.cli.main import app
from ccfs.results.totals import (
    GRID,
    RunTotals,
    TotalsDocument,
    default_budgets,
    default_limits,
    in_lines,
    run_totals,
    total_study,
)
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import RunError

BATCH = ("batch = 4", "batch = 20")
LISTED = "cohort = { first = 100, count = 40 }"
KINDS = {
    "law": {"law": (LISTED, "initial_law = 40"), "bound": ('bound = "cohort"', 'bound = "clopper-pearson"')},
    "cohort": {},
    "strata": {
        "draws": (LISTED, "cohort = { first = 100, count = 20 }\ndraws = { main = 2 }"),
        "bound": ('bound = "cohort"', 'bound = "stratified"'),
    },
    "strata of a law": {
        "draws": (LISTED, "initial_law = 20\ndraws = { pilot = 1, main = 1 }"),
        "bound": ('bound = "cohort"', 'bound = "stratified"'),
    },
}


def priced(folder, name="run", kind="law", **arguments):
    """A run whose trial with reset seed s costs what the toy says, known without any trace."""
    given = ", ".join(f"{key} = {value}" for key, value in arguments.items())
    change = (
        'make = "corridor"\narguments = { horizon = 6, post = 0.6 }',
        f'make = "toys:Priced"\narguments = {{ {given} }}',
    )
    made = protocol(folder, trials=40, env=change, batch=BATCH, **KINDS[kind])
    return made, run(made, folder / name, serial_engine(), where="p")


@pytest.fixture(scope="module")
def paid(tmp_path_factory):
    return priced(tmp_path_factory.mktemp("paid"))


@pytest.fixture(scope="module", params=KINDS)
def each(request, tmp_path_factory):
    return priced(tmp_path_factory.mktemp("each"), kind=request.param)


def known(made, arm):
    """The totals of an arm by reset seed, from the seeds alone."""
    costs = [float(made.streams(arm, trial).reset_seed % 4) for trial in range(made.trials.count)]
    draws = made.trials.per_seed
    return [costs[i : i + draws] for i in range(0, len(costs), draws)]


@pytest.mark.slow
def test_study_certifies_the_known_costs_and_returns_of_each_kind_of_trials(each):
    made, store = each
    costs = total_study(store, "cost")
    returns = total_study(store, "return", lowest=-6.0, highest=0.0)
    assert (costs.lowest, costs.highest, costs.is_range_given) == (0.0, 6.0, False)
    for arm in made.arms:
        totals = known(made, arm)
        shared = {"delta": 0.05, "family": 2, "sampling": made.sampling}
        proof = certify_totals(totals, kind="cost", lowest=0.0, highest=6.0, **shared)
        assert costs.certificates[arm.name] == proof
        turned = [[-value + 0.0 for value in stratum] for stratum in totals]
        again = certify_totals(turned, kind="return", lowest=-6.0, highest=0.0, **shared)
        assert returns.certificates[arm.name].mean == again.mean == -proof.mean + 0.0
        mu = 0.1 * math.sqrt(arm.schedule.plan.at(Stage.ACTION, 0).charge)
        assert costs.size(arm.name, 0.1) == pytest.approx(mu, rel=1e-12)


def test_document_lists_what_the_certificate_gives_and_reads_back(paid):
    made, store = paid
    study = total_study(store, Total.COST)
    document = run_totals(study, (0.0, 0.1), (0.0, 2.0), 0.8)
    assert RunTotals.from_bytes(document.to_bytes(), where="d") == document
    assert (document.delta, document.limits, document.level, document.kind) == (0.05, (0.0, 2.0), 0.8, "cost")
    for arm in made.arms:
        found, proof = document.arms[arm.name], study.certificates[arm.name]
        sizes = [study.size(arm.name, budget) for budget in (0.0, 0.1)]
        assert found.expected == tuple(proof.expected(mu) for mu in sizes)
        assert found.quantile == tuple(proof.quantile(0.8, mu) for mu in sizes)
        assert found.cvar == tuple(proof.cvar(0.8, mu) for mu in sizes)
        assert found.probability == tuple(tuple(proof.probability(at, mu) for at in (0.0, 2.0)) for mu in sizes)
        assert (found.trials, found.observed_mean) == (40, sum(map(sum, known(made, arm))) / 40)
        entries = found.certificate.model_dump(mode="json")
        assert TotalCertificate.from_entries(entries) == proof
        alone = TotalsDocument.model_validate_json(proof.to_json())
        assert alone.model_dump(mode="json") == {**entries, "format": "ccfs/totals/1"}


def test_shift_moves_probabilities_by_the_theorem(paid):
    made, store = paid
    study = total_study(store, "cost")
    for arm in made.arms:
        proof = study.certificates[arm.name]
        mu = 0.1 * math.sqrt(arm.schedule.plan.at(Stage.ACTION, 0).charge)
        at_rest = proof.probability(3.0, 0.0)
        shifted = proof.probability(3.0, study.size(arm.name, 0.1))
        assert shifted == pytest.approx(norm.cdf(norm.ppf(at_rest) - mu), rel=1e-6)


@pytest.mark.slow
def test_trials_that_end_early_or_tell_no_cost_count_against_us(tmp_path):
    for name, arguments in (("crash", {"crash_at": 3}), ("silent", {"silent_at": 3}), ("short", {"steps": 3})):
        _, store = priced(tmp_path, name, **arguments)
        for proof in total_study(store, "cost").certificates.values():
            assert set(sum(proof.totals, ())) == {6.0}
            assert proof.expected(0.0) == 6.0
        worst = {"crash": True, "silent": False, "short": False}[name]  # a return needs no cost and no full length
        for proof in total_study(store, "return", lowest=-6.0, highest=0.0).certificates.values():
            assert (set(sum(proof.totals, ())) == {-6.0}) == worst
            assert min(sum(proof.totals, ())) == (-6.0 if worst else -3.0)


def test_costs_refuse_an_unknown_greatest_cost(tmp_path):
    _, store = priced(tmp_path, price=0.5)
    with pytest.raises(ValueError, match=r"`--most` must be given, because some recorded steps cost neither 0 nor 1"):
        total_study(store, "cost")
    with pytest.raises(ValueError, match=r"`--most` must be at least 1\.5, a total cost that was recorded, got 1"):
        total_study(store, "cost", highest=1.0)
    assert default_limits(total_study(store, "cost", highest=3.0)) == (0.0, 1.0, 2.0)


def test_costs_refuse_a_run_without_costs(tmp_path):
    _, store = priced(tmp_path, silent_at=0)
    with pytest.raises(ValueError, match="must have recorded costs, but no step has one"):
        total_study(store, "cost", highest=3.0)


def test_costs_refuse_a_cost_below_zero(tmp_path):
    _, store = priced(tmp_path, price=-1.0)
    with pytest.raises(ValueError, match="must have costs of at least 0 to certify their total, got a total of -3"):
        total_study(store, "cost", highest=6.0)


@pytest.mark.parametrize("most", [math.nan, math.inf, 0.0, -1.0])
def test_costs_refuse_a_bad_greatest_cost(paid, most):
    with pytest.raises(ValueError, match="`--most`"):
        total_study(paid[1], "cost", highest=most)


@pytest.mark.parametrize(
    ("least", "most", "message"),
    [
        (None, 0.0, "`--least` and `--most` must be given"),
        (-6.0, None, "`--least` and `--most` must be given"),
        (0.0, 0.0, "`--most` must exceed `--least`"),
        (math.nan, 0.0, "`--least`"),
        (-6.0, math.inf, "`--most`"),
        (-2.0, 0.0, r"must enclose the recorded returns, -3 to 0, got -2 and 0"),
        (-6.0, -1.0, r"must enclose the recorded returns, -3 to 0, got -6 and -1"),
    ],
)
def test_returns_refuse_a_bad_range(paid, least, most, message):
    with pytest.raises(ValueError, match=message):
        total_study(paid[1], "return", lowest=least, highest=most)


def test_totals_refuse_a_run_that_chose_its_number_of_trials(tmp_path):
    stopping = {
        "a": ("cohort = { first = 100, count = 400 }", "initial_law = 400"),
        "b": ('bound = "cohort"', 'bound = "anytime"\nstop_at_budget = 0.05'),
    }
    made = protocol(tmp_path, trials=400, batch=BATCH, **stopping)
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    with pytest.raises(ValueError, match=r"`claim\.stop_at_budget` must not be given for certified totals"):
        total_study(store, "return", lowest=-100.0, highest=100.0)


def test_totals_share_delta_with_the_other_studies_of_the_family(tmp_path):
    made = protocol(tmp_path, x=('bound = "cohort"', 'bound = "cohort"\nfamily = 5'))
    study = total_study(run(made, tmp_path / "run", serial_engine(), where="p"), "cost")
    # Five of two claims each: the third study is only half there.
    assert {proof.family for proof in study.certificates.values()} == {2 * 3}
    assert any("averages over the cohort" in line for line in in_lines(study, [0.0], [0.0]))
    assert default_budgets(study) == (0.0, 0.1)
    span = "until the first goal or within" if made.stop.goal else "total cost within"
    assert span in next(iter(in_lines(study, [0.0], [0.0])))
    flipped = made.model_copy(update={"stop": made.stop.model_copy(update={"goal": not made.stop.goal})})
    assert span not in next(iter(in_lines(dataclasses.replace(study, protocol=flipped), [0.0], [0.0])))


def test_totals_refuse_unfinished_and_changed_runs(tmp_path):
    _, store = priced(tmp_path)
    (store.root / "batches/steer/one/nominal/batch-00001.json").unlink()
    for kind in Total:
        with pytest.raises(RunError, match="Audit this run before counting"):
            total_study(store, kind, lowest=-6.0, highest=6.0)


@pytest.mark.parametrize("kind", list(Total))
def test_commands_print_what_holds_rounded_against_us(paid, kind):
    made, store = paid
    limits = ["--least", "-6", "--most", "0"] if kind is Total.RETURN else []
    grid = "-3,-1" if kind is Total.RETURN else "1,3"
    command = [f"{kind.value}s", str(store.root), "--budgets", "0,0.1", "--grid", grid, "--level", "0.5", *limits]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "All numbers hold together" in result.stdout
    assert ("It is assumed that every step costs 0 or 1" in result.stdout) == (kind is Total.COST)
    content = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (content["kind"], content["level"], content["budgets"]) == (kind.value, 0.5, [0, 0.1])
    lines = [line.split() for line in result.stdout.splitlines()]
    sign = 1.0 if kind is Total.COST else -1.0
    for arm in made.arms:
        found = content["arms"][arm.name]
        start = next(i for i, line in enumerate(lines) if line[:1] == [f"{arm.name}:"])
        for column in (0, 1):
            for row in (0, 1):
                printed = float(lines[start + 2 + row][-2 + column])
                assert printed <= found["probability"][column][row] < printed + 1e-4
            for row, key in enumerate(("expected", "quantile", "cvar")):
                printed = float(lines[start + 4 + row][-2 + column])
                assert 0.0 <= sign * (printed - found[key][column]) < 1.1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--grid", "a"], "`--grid` must be numbers with commas"),
        (["--grid", "nan"], "`--grid` must be finite"),
        (["--budgets", "0,-1"], "`--budgets` must be finite and at least 0"),
        (["--budgets", "nan"], "`--budgets` must be finite and at least 0"),
        (["--most", "0.5"], "`--most` must be at least 3"),
        (["--level", "1"], "`--level` must be in (0, 1)"),
        (["--level", "nan"], "`--level` must be in (0, 1)"),
    ],
)
def test_costs_command_refuses_in_one_line(paid, options, message):
    result = CliRunner().invoke(app, ["costs", str(paid[1].root), *options])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_default_limits_are_fixed_and_inside_the_range(paid):
    assert default_limits(total_study(paid[1], "cost")) == tuple(at for at in GRID if at < 6.0) == (0.0, 1.0, 2.0, 5.0)
    assert default_limits(total_study(paid[1], "return", lowest=-5.0, highest=0.0)) == (-4.0, -3.0, -2.0, -1.0)
