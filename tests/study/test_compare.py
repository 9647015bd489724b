"""Differences by exact enumeration, and arms of runs whose trials are counted another way."""

from __future__ import annotations

import json
import re
from itertools import product

import pandas
import pytest
from toy_protocol import text
from typer.testing import CliRunner

from ccfs.certificates.betting import mean_lower, mean_upper
from ccfs.certificates.binomial import bonferroni
from ccfs.cli.main import app
from ccfs.runs.store import Store
from ccfs.study.compare import compare, page, paired_bounds


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
@pytest.mark.parametrize("delta", [0.05, 0.3])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.9, 0.1, 0.5, 0.7), (0.2, 0.2, 0.5, 0.9)),
        ((1.0, 1.0, 0.0, 0.5), (0.0, 1.0, 0.0, 0.5)),
        ((0.3, 0.3, 0.3, 0.3), (0.3, 0.3, 0.3, 0.3)),
    ],
)
def test_paired_bounds_fail_with_at_most_delta_by_exact_enumeration(first, second, delta):
    truth = sum(a - b for a, b in zip(first, second, strict=True)) / 4
    bounds = {}  # they depend on how often each difference occurs, not on the order
    too_high = too_low = 0.0
    for ours, theirs in product(product((0, 1), repeat=4), repeat=2):
        weight = 1.0
        for a, b, p, q in zip(ours, theirs, first, second, strict=True):
            weight *= (p if a else 1 - p) * (q if b else 1 - q)
        kind = tuple(sorted(a - b for a, b in zip(ours, theirs, strict=True)))
        if kind not in bounds:
            bounds[kind] = paired_bounds(ours, theirs, delta=delta)
        low, high = bounds[kind]
        too_high += weight * (low > truth + 1e-12)
        too_low += weight * (high < truth - 1e-12)
    assert too_high <= delta
    assert too_low <= delta


def study(**replaced):
    """The toy's protocol without its attack, in one batch per arm, because every batch costs time on the disk."""
    return text(trials=40, a=("batch = 4", "batch = 40"), **replaced).partition("[[attacks]]")[0]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on overlapping cohorts, whose second one steers less and fails more."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "a.toml").write_text(study())
    (folder / "b.toml").write_text(study(x=("gain = 0.2 }", "gain = 0.0 }"), y=("first = 100", "first = 110")))
    for name in "ab":
        assert call("run", folder / f"{name}.toml", "-o", folder / name, "--workers", 1).exit_code in (0, 1)
    return folder


@pytest.mark.slow
def test_compare_pairs_common_seeds_and_counts_as_pandas_does(runs):
    made = compare([Store(runs / "a"), Store(runs / "b")], delta=0.02)
    assert len(made.differences) == 6
    assert made.bounds == 12
    (one,) = (part for part in made.differences if (part.first, part.second) == ("a:steer/one", "b:steer/one"))
    tables = []
    for name in "ab":
        table = pandas.read_parquet(runs / name / "trajectories/steer/one/nominal").set_index("reset_seed")
        tables.append(table.first_cost_step.isna())
    both = pandas.concat(tables, axis=1, join="inner", keys=["a", "b"])
    assert (one.about, one.pairs) == ("cohort", len(both))
    assert len(both) == 30
    assert one.only_first == (both.a & ~both.b).sum()
    assert one.only_second == (~both.a & both.b).sum()
    values = (both.a.astype(float) - both.b.astype(float)).tolist()
    share = bonferroni(0.02, 12)
    assert one.lower == mean_lower(values, delta=share, lowest=-1.0)
    assert one.upper == mean_upper(values, delta=share, lowest=-1.0)
    assert one.lower <= one.observed <= one.upper


@pytest.mark.slow
def test_compare_against_one_arm_shares_delta_among_fewer_bounds(runs):
    stores = [Store(runs / "a")]
    every, few = compare(stores, delta=0.02), compare(stores, delta=0.02, against="steer/four")
    assert [(one.first, one.second) for one in few.differences] == [("steer/one", "steer/four")]
    assert (every.bounds, few.bounds) == (2, 2)
    with pytest.raises(ValueError, match="`against` must be one of steer/one, steer/four, got 'x'"):
        compare(stores, delta=0.02, against="x")


@pytest.mark.slow
def test_compare_of_one_arm_says_that_there_is_nothing_to_compare(tmp_path):
    four = '[[schedules]]\nname = "four"\naction = { count = 4, sigma = 0.2, multiplier = 1.05 }\n'
    (tmp_path / "one.toml").write_text(study(x=(four, "")))
    assert call("run", tmp_path / "one.toml", "-o", tmp_path / "one", "--workers", 1).exit_code in (0, 1)
    shown = call("compare", tmp_path / "one", "--delta", 0.01).output
    assert "note: nothing to compare: no event is counted for two arms. The arms are: steer/one." in shown


@pytest.mark.slow
def test_compare_refuses_what_is_not_the_same_and_says_why(runs, tmp_path):
    kinds = {
        "law": study(
            x=("cohort = { first = 100, count = 40 }", "initial_law = 40"), y=('"cohort"', '"clopper-pearson"')
        ),
        "horizon": study(x=("horizon = 6\nbatch", "horizon = 5\nbatch")),
        "apart": study(x=("first = 100", "first = 9000")),
        "world": study(x=("post = 0.6", "post = 0.5")),
    }
    why = {
        "law": "their kind of trials (cohort or law) differs",
        "horizon": "their `horizon` differs",
        "apart": "they have no reset seed in common",
        "world": "their `environment` differs",
    }
    for name, content in kinds.items():
        (tmp_path / f"{name}.toml").write_text(content)
        assert call("run", tmp_path / f"{name}.toml", "-o", tmp_path / name, "--workers", 1).exit_code in (0, 1)
        made = compare([Store(runs / "a"), Store(tmp_path / name)], delta=0.02)
        across = [one for one in made.differences if one.first.startswith("a:") != one.second.startswith("a:")]
        assert across == []
        assert any(why[name] in note for note in made.notes), made.notes
    law = compare([Store(tmp_path / "law")], delta=0.02)
    assert [one.about for one in law.differences] == ["law"]
    assert "for a start drawn from the initial law" in law.differences[0].sentence


@pytest.mark.slow
def test_compare_command_writes_a_page_without_scripts_and_json(runs, tmp_path):
    answer = call("compare", runs / "a", runs / "b", "--delta", "0.02", "--html", tmp_path / "c.html")
    assert answer.exit_code == 0, answer.output
    assert "Differences without shift, all together at delta = 0.02" in answer.output
    written = (tmp_path / "c.html").read_text()
    assert "<script" not in written
    assert "default-src 'none'" in written
    assert written.index(">at least<") < written.index(">first<")  # the claim first, for phones
    assert all(body.count("<tr") == 1 for body in re.findall(r"(?s)<tbody>.*?</tbody>", written.split("</table>")[0]))
    stores = [Store(runs / "a"), Store(runs / "b")]
    assert written == page(compare(stores, delta=0.02), stores, tmp_path)
    found = json.loads(call("compare", runs / "a", runs / "b", "--delta", "0.02", "--json").output)
    assert found["format"] == "ccfs/comparison/1"
    assert [run["name"] for run in found["runs"]] == ["a", "b"]
    frame = compare([Store(runs / "a")], delta=0.02).to_frame()
    assert frame["first"].tolist() == ["steer/one"]
    assert call("compare", runs / "a", "--delta", "nan").exit_code == 2
    assert call("compare", runs / "a", runs / "b/../a", "--delta", "0.1").exit_code == 2
    assert call("compare", runs / "absent", "--delta", "0.1").exit_code == 2
    assert call("compare", runs / "a", "--delta", "0.1", "--event", "x").exit_code == 2
