"""Forecasts against brute force: every number of trials tried one by one, with the functions that certify."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from scipy import stats
from toy_protocol import text
from typer.testing import CliRunner

import ccfs
from ccfs.certificates.bounds import Bound
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.certificates.stratified import certify_strata
from ccfs.certificates.trajectory import budget, certify_event
from ccfs.cli.main import app
from ccfs.study.plan import CountDesign, StrataDesign, piloted_rates, plan

BLOCK = ProposalSchedule(count=1, sigma=0.2)


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def chance_by_hand(trials, rates, wanted, *, bound, delta, target):
    """Sum the probability of every count whose own certificate has the wanted budget."""
    total = 0.0
    for hits in range(trials + 1):
        made = certify_event(hits, trials, delta=delta, family=2, target=target, schedule=BLOCK, bound=bound)
        if made.budget is not None and made.budget >= wanted:
            total += float(np.mean(stats.binom.pmf(hits, trials, rates)))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["hoeffding", "cohort", "clopper-pearson"])
@pytest.mark.parametrize(("rate", "wanted", "target"), [(0.95, 0.1, 0.5), (0.99, 0.05, 0.7)])
def test_needed_is_the_least_number_by_brute_force(bound, rate, wanted, target):
    made = plan(schedule=BLOCK, target=target, delta=0.05, family=2, bound=bound, rate=rate, budget=wanted, chance=0.8)
    rates = np.array([rate])
    common = {"bound": bound, "delta": 0.05, "target": target}
    least = next(n for n in range(1, 500) if chance_by_hand(n, rates, wanted, **common) >= 0.8)
    assert made.needed == least
    (line,) = (line for line in made.lines if line.trials == least)
    assert line.chance == pytest.approx(chance_by_hand(least, rates, wanted, **common), abs=1e-12)


@pytest.mark.slow
def test_chance_of_a_pilot_averages_over_what_it_leaves_open():
    rates = piloted_rates(18, 20)
    assert rates.mean() == pytest.approx(18.5 / 21, abs=1e-4)
    design = CountDesign(
        schedule=Schedule(action=BLOCK),
        target=0.5,
        delta=0.05,
        family=2,
        bound=Bound.COHORT,
        stage="action",
        rates=rates,
    )
    for trials in (10, 40):
        by_hand = chance_by_hand(trials, rates, 0.08, bound="cohort", delta=0.05, target=0.5)
        assert design.chance(trials, 0.08) == pytest.approx(by_hand, abs=1e-12)


def test_may_fail_is_what_the_certificate_allows():
    made = plan(schedule=BLOCK, target=0.9, delta=0.001, bound="cohort", rate=0.99, budget=0.1, trials=[500])
    (line,) = made.lines
    common = {"delta": 0.001, "family": 1, "target": 0.9, "schedule": BLOCK, "bound": "cohort"}
    assert certify_event(500 - line.may_fail, 500, **common).budget >= 0.1
    assert certify_event(500 - line.may_fail - 1, 500, **common).budget < 0.1


def test_nearly_always_is_the_budget_of_a_count_that_is_reached_with_the_chance():
    made = plan(schedule=BLOCK, target=0.9, delta=0.001, bound="clopper-pearson", rate=0.97, trials=[800], chance=0.9)
    hits = max(hits for hits in range(801) if stats.binom.sf(hits - 1, 800, 0.97) >= 0.9)
    certified = certify_event(hits, 800, delta=0.001, family=1, target=0.9, schedule=BLOCK, bound="clopper-pearson")
    assert made.lines[0].nearly_always == certified.budget


def test_no_number_of_trials_suffices_above_the_limit_of_the_rate():
    limit = budget(0.93, 0.9, sigma=0.2, kappa=1.0)
    common = {"schedule": BLOCK, "target": 0.9, "delta": 0.01, "bound": "cohort", "rate": 0.93}
    above = plan(**common, budget=limit * 1.01, trials=[100])
    assert above.needed is None
    assert above.limit == pytest.approx(limit, rel=1e-9)
    assert "even endless trials give B = 0.0388" in above.warning
    # A little below the limit some number suffices, and the certificate itself says so.
    below = plan(**common, budget=limit * 0.5, trials=[100])
    count = math.floor(below.needed * 0.93)
    made = certify_event(count, below.needed, delta=0.01, family=1, target=0.9, schedule=BLOCK, bound="cohort")
    assert made.budget > limit * 0.5
    under = plan(**{**common, "rate": 0.88}, trials=[100])
    assert (under.needed, under.limit) == (None, None)
    assert "not clearly above the target 0.9" in under.warning


def test_plan_of_a_stage_uses_that_stages_noise():
    both = Schedule(action=BLOCK, sensor=ProposalSchedule(count=1, sigma=0.05))
    common = {"target": 0.9, "delta": 0.01, "bound": "cohort", "rate": 0.99, "trials": [300]}
    action, sensor = (plan(schedule=both, stage=stage, **common) for stage in ("action", "sensor"))
    assert sensor.lines[0].median == pytest.approx(action.lines[0].median / 4, rel=1e-9)
    assert plan(schedule=both, **common).stage == "action"
    with pytest.raises(ValueError, match="`stage` must be one of action, sensor, got 'score'"):
        plan(schedule=both, stage="score", **common)


@pytest.mark.slow
def test_simulated_strata_have_the_budgets_of_the_certificates():
    design = StrataDesign(
        schedule=Schedule(action=BLOCK), target=0.5, delta=0.01, family=1, sampling="cohort", stage="action",
        rates=np.array([0.99, 0.99, 0.1]), draws=8, repeats=4,
    )  # fmt: skip
    generator = np.random.default_rng([0, 24, 8])
    for found in design._budgets(24 * 8):
        counts = generator.binomial(8, generator.choice(design.rates, size=24))
        made = certify_strata(
            [0] * 24, 0, counts, 8, delta=0.01, family=1, target=0.5, schedule=BLOCK, sampling="cohort"
        )
        assert (found is None) == (made.budget is None)
        assert found is None or found == pytest.approx(made.budget, rel=1e-9)
    assert (
        design.limit(0.5)
        > plan(schedule=BLOCK, target=0.5, delta=0.01, bound="cohort", rate=[0.99, 0.99, 0.1], trials=[10]).limit
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": None}, "give `rate` .assumed. or `pilot`"),
        ({"pilot": (1, 2)}, "give `rate` .assumed. or `pilot`"),
        ({"rate": 1.5}, "`rate` must be"),
        ({"rate": math.nan}, "`rate` must be"),
        ({"rate": []}, "`rate` must hold at least one number"),
        ({"chance": 1.0}, "`chance` must be in"),
        ({"budget": -1.0}, "`budget` must be"),
        ({"bound": "bayes"}, "`bound` must be one of 'hoeffding'"),
        ({"delta": math.nan}, "`delta` must be"),
    ],
)
def test_plan_refuses(change, message):
    given = {"schedule": BLOCK, "target": 0.9, "delta": 0.01, "bound": "cohort", "rate": 0.95, **change}
    with pytest.raises(ValueError, match=message):
        plan(**given)


def test_plan_is_a_frame_a_picture_and_html_and_says_what_it_is():
    made = ccfs.plan(schedule=BLOCK, target=0.9, delta=0.01, bound="cohort", rate=0.97, budget=0.02)
    frame = made.to_frame()
    assert frame.trials.tolist() == [line.trials for line in made.lines]
    assert frame["median"].iloc[-1] == made.lines[-1].median
    drawn = made.plot()
    assert [line.get_label() for line in drawn.get_lines()][:2] == ["with probability 0.9", "half of the time"]
    assert list(drawn.get_lines()[1].get_xdata()) == frame.trials.tolist()
    assert "It certifies nothing." in made._repr_html_()


def test_plan_command_reads_a_protocol_and_draws(tmp_path):
    (tmp_path / "p.toml").write_text(text(trials=30))
    answer = call("plan", tmp_path / "p.toml", "--rate", "0.95", "--budget", "0.1", "--plot", tmp_path / "b.svg")
    assert answer.exit_code == 0, answer.output
    assert "one: " in answer.output
    assert "Only the certifying run certifies." in answer.output
    assert (tmp_path / "b.svg").read_text().startswith("<?xml")
    found = json.loads(call("plan", tmp_path / "p.toml", "--rate", "0.95", "--budget", "0.1", "--json").output)
    assert [one["name"] for one in found["plans"]] == ["one", "four"]
    assert found["plans"][0]["family"] == 2
    none = call("plan", tmp_path / "p.toml", "--rate", "0.6", "--budget", "0.5")
    assert (none.exit_code, "no number of trials" in none.output) == (1, True)
    hopeless = call("plan", tmp_path / "p.toml", "--rate", "0.01", "--budget", "0.5").output
    assert "may fail" in answer.output
    assert "may fail" not in hopeless  # a table of dashes says nothing


def test_plan_command_takes_the_draws_of_a_stratified_protocol(tmp_path, monkeypatch):
    made = text(trials=30).replace("[trials]", "[trials]\ndraws = { pilot = 2, main = 8 }")
    (tmp_path / "p.toml").write_text(re.sub(r'bound = "[a-z-]+"', 'bound = "stratified"', made))
    monkeypatch.setattr(StrataDesign, "needed", lambda self, budget, chance: self.draws * 50)
    monkeypatch.setattr(StrataDesign, "_budgets", lambda self, trials: [0.1])
    asked = ("plan", tmp_path / "p.toml", "--rate", "0.99,0.2", "--target", "0.4", "--trials", "400", "--json")
    shown = json.loads(call(*asked).output)["plans"][0]
    assert (shown["draws"], shown["bound"], shown["needed"]) == (8, "strata", 400)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rate", "0.9", "--target", "0.5", "--delta", "0.1", "--bound", "cohort"), "`--sigma` must be given"),
        (("--sigma", "1", "--rate", "0.9", "--delta", "0.1", "--bound", "cohort"), "`--target` must be given"),
        (("--sigma", "1"), "give `--rate`"),
        (("--rate", "x", "--sigma", "1"), "`--rate` must be numbers"),
        (("--pilot", "x"), "`--pilot` needs the protocol file"),
    ],
)
def test_plan_command_refuses_in_one_line(arguments, message):
    answer = call("plan", *arguments)
    assert (answer.exit_code, message in answer.output, answer.output.count("\n")) == (2, True, 1), answer.output
