"""The witnesses study: stored enclosures are those proved now, curves pass through them, figures redraw."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import stored_studies as stored

from ccfs.certificates.witnesses import two_band
from ccfs.gallery import witness

pytestmark = pytest.mark.slow
NAME = "witnesses"
SUFFIXES = {".csv", ".json", ".png", ".txt"}


@pytest.fixture(scope="module")
def study():
    return stored.load(NAME)


@pytest.fixture(scope="module")
def kept(study):
    return study.read(stored.EXPERIMENTS / NAME)


def test_witnesses_files_are_whole(study, tmp_path):
    stored.check_stored_files(NAME, study)
    stored.check_seal_finds_a_changed_byte(NAME, study, tmp_path)


def test_witnesses_points_are_proved_now(study):
    fresh = json.loads(witness.document(witness.pages()))["witnesses"]
    assert json.loads((stored.EXPERIMENTS / NAME / study.POINTS).read_text())["witnesses"] == fresh
    assert all(check["holds"] for page in fresh for check in page["checks"])


def test_witnesses_summary_follows_from_stored_numbers(study, kept):
    assert study.summarise(*kept) == stored.derived(NAME)


def test_witnesses_two_band_curves_pass_through_the_proved_points(study, kept):
    """The doubles at 0.1 are within 1e-14 of enclosures that are narrower than 1e-40."""
    bands, proved = kept[1][study.BANDS], two_band()
    at = int(np.argmin(np.abs(bands["boundary"] - 0.1)))
    for column, interval in (
        ("joint", proved.joint_mass_radius),
        ("forward_kl", proved.covariance_radius),
        ("substituted", proved.substituted_radius),
    ):
        assert abs(Fraction(float(bands[column][at])) - interval.middle) < Fraction(1, 10**14)


def test_witnesses_sound_curves_stay_below_the_boundary(study, kept):
    bands = kept[1][study.BANDS]
    for name in ("joint", "forward_kl", "renyi"):
        assert np.all(bands[name] < bands["boundary"])
    assert np.all(bands["forward_kl"] <= bands["renyi"])
    assert np.all(bands["substituted"] > bands["boundary"])


def test_witnesses_l_shape_boundary_lies_between_a_and_b(study, kept):
    edge = kept[1][study.EDGE]
    first = float(edge["first"][int(np.argmin(np.abs(edge["second"] - study.HEIGHT)))])
    assert study.CENTER < first < study.SHIFTED
    radius = kept[0]["l-shape", "substituted_radius"][0]
    assert Fraction(first) - Fraction(13, 20) < radius


def test_witnesses_curves_recompute(study, kept):
    for name, maker in ((study.TAILS, study.confidence_curve), (study.BANDS, study.band_curves)):
        fresh = maker()
        for index in np.random.default_rng(3).choice(len(fresh["joint"]), size=20, replace=False):
            row = {key: float(column[index]) for key, column in fresh.items()}
            stored.check_same_row(stored.pick(kept[1][name], index), row, rtol=1e-12)


def test_witnesses_agree_with_fifty_digits(study, kept):
    assert max(study.sample_errors(kept[1], 5).values()) < 1e-13


def test_witnesses_figures_redraw_from_stored_numbers(study, kept, tmp_path):
    draws = (study.draw_confidence_filter, study.draw_l_shape, study.draw_two_band)
    for name, draw in zip(study.PICTURES, draws, strict=True):
        draw(*kept, tmp_path / name)
        stored.check_picture(tmp_path / name)
        stored.check_picture(stored.EXPERIMENTS / NAME / name)


def test_witnesses_readme_shows_the_stored_numbers(kept):
    shown = {
        ("confidence-filter", "top_probability"): 19,
        ("confidence-filter", "substituted_radius"): 19,
        ("l-shape", "event_nominal"): 10,
        ("l-shape", "event_shifted"): 10,
        ("l-shape", "kl"): 10,
        ("l-shape", "total_variation"): 10,
        ("l-shape", "variance_ratio"): 24,
        ("two-band", "joint_mass_radius"): 20,
        ("two-band", "covariance_radius"): 20,
        ("two-band", "substituted_radius"): 20,
    }
    # Truncated, as the paper prints its enclosures.
    digits = [(int(kept[0][key][0] * 10**places), places) for key, places in shown.items()]
    stored.check_readme(NAME, *(f"{n // 10**p}.{n % 10**p:0{p}d}" for n, p in digits))
    stored.check_readme(NAME, f"{int(stored.summary(NAME)['two_band']['renyi'] * 1e5) / 1e5:.5f}")


def test_witnesses_command_runs_from_nothing(study, tmp_path):
    study.main(["--out", str(tmp_path / "fresh"), "--sample", "2"])
    fresh, kept = tmp_path / "fresh", stored.EXPERIMENTS / NAME
    assert study.records.broken_seals(fresh) == []
    assert {path.name for path in fresh.iterdir()} == {path.name for path in kept.iterdir() if path.suffix in SUFFIXES}
    told = study.records.read_summary(fresh)
    assert told["command"] == "python experiments/witnesses/run.py --sample 2"
    assert told["two_band"] == pytest.approx(stored.summary(NAME)["two_band"], rel=1e-12)


def test_witnesses_command_redraws_without_computing(study, tmp_path, monkeypatch):
    for path in (stored.EXPERIMENTS / NAME).iterdir():
        if path.suffix in {".csv", ".json", ".txt"}:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(study, "band_curves", None)
    monkeypatch.setattr(study, "pages", None)
    study.main(["--out", str(tmp_path), "--redraw"])
    assert study.records.broken_seals(tmp_path) == []
    for name in study.PICTURES:
        stored.check_picture(tmp_path / name)
