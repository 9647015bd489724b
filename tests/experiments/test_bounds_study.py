"""The study of bounds and prices: stored rows recompute, README and docs show them, conclusions follow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import stored_studies as stored
from scipy.optimize import brentq
from scipy.stats import norm

from ccfs.certificates.binomial import cohort_lower
from ccfs.certificates.means import certify_totals

NAME = "bounds"


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def rows(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.ROWS)


def test_bounds_study_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_bounds_study_summary_follows_from_rows(study, rows):
    assert study.summarise(rows) == stored.derived(NAME)


def test_bounds_study_readme_shows_the_rows(study, rows):
    stored.check_readme(NAME, *study.markdown(rows))


def test_bounds_study_rows_recompute(study, rows):
    again = study.compute(study.Arguments().seed, study.Arguments().delta)
    assert list(again["data"]) == list(rows["data"])
    for index in range(len(rows["data"])):
        kept = {key: value for key, value in stored.pick(rows, index).items() if key != "data"}
        made = {key: value.item() for key, value in stored.pick(again, index).items() if key != "data"}
        stored.check_same_row(kept, made, rtol=1e-12)


@pytest.fixture(scope="module")
def table(study):
    return study.records.read_table(stored.EXPERIMENTS / NAME / study.PRICES)


@pytest.mark.slow
def test_bounds_study_prices_recompute(study, table):
    again = study.prices.compute(study.Arguments().seed, study.Arguments().delta)
    for key in ("question", "certificate", "trials"):
        assert list(again[key]) == list(table[key])
    np.testing.assert_allclose(again["value"], table["value"], rtol=1e-12)


def test_bounds_study_prices_stand_on_the_page(study, table):
    page = (stored.ROOT / "docs" / "which-certificate.md").read_text(encoding="utf-8")
    for question in dict.fromkeys(table["question"].tolist()):
        lines = list(study.prices.markdown(table, question))
        assert "\n".join(lines) in page


def test_bounds_study_page_names_what_endless_trials_would_give(study):
    """Oracle: the average of h_mu over the profile, and h_mu of its average, solved for one half."""
    layouts = study.prices.PROFILES["differ"]

    def average(mu: float) -> float:
        return sum(share * float(norm.cdf(norm.ppf(chance) - mu)) for share, chance in layouts) - 0.5

    strata = brentq(average, 0.0, 4.0)
    count = float(norm.ppf(sum(share * chance for share, chance in layouts)))
    page = (stored.ROOT / "docs" / "which-certificate.md").read_text(encoding="utf-8")
    assert f"tends\nto {math.floor(100 * count) / 100}. Strata tend to {math.floor(100 * strata) / 100}." in page


def test_bounds_study_prices_show_what_the_page_concludes(table):
    """Strata gain where layouts differ and lose where they are alike. A named disturbance costs less than any shift."""

    def value(question: str, certificate: str, trials: int) -> float:
        here = (table["question"] == question) & (table["trials"] == trials)
        (found,) = table["value"][here & np.char.startswith(table["certificate"], certificate)]
        return float(found)

    for trials in (2048, 8192):
        for strata in ("strata, cohort", "strata, law"):
            assert value("layouts differ", strata, trials) > 1.4 * value("layouts differ", "count", trials)
            assert value("layouts alike", strata, trials) < value("layouts alike", "count", trials)
    for trials in (1024, 4096, 16384):
        assert value("disturbance of size 1", "family", trials) > value("disturbance of size 1", "every shift", trials)


def test_bounds_study_shows_what_the_readme_concludes(rows):
    """Betting beats Hoeffding except on balanced coins, and Clopper-Pearson beats both on coins."""
    balanced = rows["data"] == "128 of 256 coins"
    assert ((rows["betting_lower"] > rows["hoeffding_lower"]) | balanced).all()
    assert (rows["betting_lower"] > rows["bernstein_lower"]).all()
    coins = ~np.isnan(rows["clopper_pearson_lower"])
    assert (rows["clopper_pearson_lower"][coins] > rows["betting_lower"][coins]).all()
    assert coins.sum() == 7


def test_totals_of_the_stored_runs_are_certified_well_below_the_grid_of_nine_costs(study):
    """Expected cost without shift and at the sizes of two budgets, against what nine fixed costs give."""
    grid = [0.0, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 200.0]
    totals = {name: values for name, values, _ in study.samples(0) if name.startswith("total cost")}
    assert len(totals) == 3
    for values in totals.values():
        proof = certify_totals(values, kind="cost", lowest=0.0, highest=500.0, delta=0.001, family=3, sampling="cohort")
        counts = [int((values <= at).sum()) for at in grid]
        lowers = [cohort_lower(count, len(values), delta=0.001 / 27) for count in counts]
        for mu in (0.0, 0.1, 0.5):
            widths = np.diff([*grid, 500.0])
            nine = float(widths @ (1.0 - norm.cdf(norm.ppf(lowers) - mu)))
            assert proof.expected(mu) < nine
        assert proof.expected(0.0) < 0.75 * float(np.diff([*grid, 500.0]) @ (1.0 - np.array(lowers)))
