"""Radii of other programs: what is printed, what follows, and which tables are understood."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from image_toys import Halfspace
from scipy import stats

from ccfs.certificates.filtered import JointMassCertificate
from ccfs.images import ConfidenceFilter
from ccfs.images.counts import RecordError
from ccfs.images.others import LogRow, assess, read_log, wrapped

torch.set_num_threads(1)


def cohen_radius(count, n, alpha, sigma):
    """The number in Cohen's program: a float bound of statsmodels, printed with three digits."""
    return sigma * stats.norm.ppf(stats.beta.ppf(alpha, count, n - count + 1))


def cohen_log(path, rows):
    lines = ["idx\tlabel\tpredict\tradius\tcorrect\ttime"]
    lines += [f"{i}\t{y}\t{p}\t{r:.3}\t{int(y == p)}\t0:00:00.1" for i, y, p, r in rows]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("count", [5300, 7000, 9000, 9900, 9999, 10_000])
def test_log_of_cohens_program_is_worth_what_it_printed_up_to_rounding(tmp_path, count):
    """Oracle: scipy's own beta quantile. The printed number may be rounded up by half a unit of its last digit."""
    true = cohen_radius(count, 10_000, 0.001, 0.25)
    rows = read_log(cohen_log(tmp_path / "log.tsv", [(0, 3, 3, true)]))
    (found,) = assess(rows, sigma=0.25, delta=0.001, n=10_000)
    assert found.worth <= true * (1 + 1e-9)
    assert found.worth >= float(rows[0].radius) - 10.0 ** (np.floor(np.log10(true)) - 2)
    assert found.is_overstated == (found.printed > found.worth)


def test_impossible_radius_is_worth_nothing(tmp_path):
    rows = read_log(cohen_log(tmp_path / "log.tsv", [(0, 3, 3, 2.0), (1, 3, -1, 0.0)]))
    high, abstained = assess(rows, sigma=0.25, delta=0.001, n=10_000)
    assert (high.worth, high.is_overstated) == (0.0, True)
    assert "no count of 10000 proposals" in high.reason
    assert (abstained.worth, abstained.is_overstated, abstained.reason) == (0.0, False, "abstains")


def test_radius_behind_a_filter_without_the_number_drawn_is_worth_nothing(tmp_path):
    rows = read_log(cohen_log(tmp_path / "log.tsv", [(0, 3, 3, 0.5)]))
    (found,) = assess(rows, sigma=0.25, delta=0.001, n=10_000, filtered=True)
    assert (found.worth, found.is_overstated) == (0.0, True)


def test_conditional_counts_with_the_number_drawn_give_a_joint_radius(tmp_path):
    (tmp_path / "votes.csv").write_text(
        "index,label,top,retained,drawn\n0,1,950,960,1000\n1,1,400,402,1000\n2,0,9,9,9\n"
    )
    first, second, third = assess(read_log(tmp_path / "votes.csv"), sigma=0.25, delta=0.001)
    assert 0.0 < first.worth < first.printed
    assert 0.0 < second.worth < second.printed
    assert "598 of 1000 proposals rejected" in second.reason
    assert third.worth == third.printed
    assert third.reason == "nothing was rejected"


def test_arrays_of_art_are_read(tmp_path):
    np.savez(tmp_path / "art.npz", prediction=np.array([2, -1]), radius=np.array([0.31, 0.0]))
    first, second = read_log(tmp_path / "art.npz")
    assert (first.selected, first.radius) == (2, "0.31")
    assert second.selected is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "must have the column `radius`"),
        ("idx,radius\n", "at least one image"),
        ("idx,radius,predict\nx,1,1\n", "whole number, got 'x'"),
        ("idx,radius,predict\n0,1,nan\n", "whole number, got 'nan'"),
        ("idx,top,retained,drawn\n0,9,8,10\n", "top <= retained <= drawn"),
        ("idx,top,retained,drawn\n0,0,0,0\n", "top <= retained <= drawn"),
        ("idx,radius,predict\n0,nan,1\n", "finite and at least 0"),
        ("idx,radius,predict\n0,big,1\n", "`radius` must be a number"),
    ],
)
def test_log_refuses(tmp_path, text, message):
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(RecordError, match=message):
        assess(read_log(tmp_path / "log.csv"), sigma=0.25, delta=0.001, n=100)


def test_assess_refuses_what_it_cannot_know():
    row = LogRow(index=0, label=0, selected=0, radius="0.1")
    with pytest.raises(ValueError, match="`n` must be given"):
        assess([row], sigma=0.25, delta=0.001)
    with pytest.raises(ValueError, match="delta"):
        assess([row], sigma=0.25, delta=float("nan"), n=100)


def test_smooth_object_is_wrapped_with_its_filter():
    class Smooth:
        base_classifier, num_classes, sigma = Halfspace(), 3, 0.5

    image = np.full((1, 3, 3), 0.9, dtype=np.float32)
    answer = wrapped(Smooth(), filter=ConfidenceFilter(0.9)).certify(image, 100, 2000, 0.001, 500)
    assert isinstance(answer, JointMassCertificate)
    assert 0.0 < answer.radius < 0.4
