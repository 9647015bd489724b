"""The attack proves what it claims on a classifier with a known boundary, and never inside a certified radius."""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from ccfs.certificates.images import Rule, verdict
from ccfs.images import ConfidenceFilter, ImageSet, LabelCounts, RecordError, certify_dataset, load_shipped
from ccfs.images.attack import SearchPlan, cohort, confirm, distance_upper, family_size, search
from ccfs.images.bandfit import fit_band, retained_fraction
from ccfs.images.counting import Counter
from ccfs.images.dataset import model_digest, pixels
from ccfs.images.endpoints import (
    AttackPlan,
    Endpoint,
    attack_cohort,
    inside_sound_radius,
    read_attack,
    shifted_center,
)
from ccfs.images.int8 import quantized
from ccfs.images.models import folded
from ccfs.images.networks import ARCHITECTURES, build
from ccfs.images.summary import line, scaled_thresholds, table_lines, verdicts

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

SIGMA = 0.5
PLAN = SearchPlan(restarts=3, steps=12, proposals=64, screen=400, threshold=0.9)


class Halfspace(nn.Module):
    """Label 0 where the first pixel exceeds 1/2, with softmax confidence; by symmetry the filtered one too."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, images):
        score = 1.5 * (images[:, 0, 0, 0] - 0.5)
        return torch.stack([score, -score, torch.full_like(score, -50.0)], 1)


def made_up():
    """Twelve images whose first pixel, hence whose distance to the boundary, rises in steps."""
    images = np.full((12, 3, 3, 1), 128, dtype=np.uint8)
    images[:, 0, 0, 0] = np.linspace(140, 255, 12)
    return ImageSet(name="made-up", images=images, labels=np.zeros(12, dtype=np.int64), classes=("a", "b", "c"))


def counted(folder):
    return certify_dataset(
        Halfspace(),
        made_up(),
        ConfidenceFilter(0.0, 0.9),
        sigma=SIGMA,
        n0=100,
        n=3000,
        seed=2,
        batch_size=1000,
        folder=folder,
    )


def attacked(folder, **changes):
    plan = AttackPlan(search=PLAN, arm="confidence>0.9", members=12, confirmation=4000, delta=0.001, seed=2)
    table, chosen = counted(folder), changes.pop("chosen", cohort(12, 12, "salt"))
    return attack_cohort(Halfspace(), made_up(), table, chosen, plan, batch_size=1000, folder=folder, **changes)


def test_attack_verifies_changes_inside_the_substituted_radius_and_none_inside_a_sound_one(tmp_path):
    endpoints = attacked(tmp_path)
    verified = [item for item in endpoints if item.is_verified]
    assert len(verified) >= 3
    assert inside_sound_radius(endpoints) == ()
    for item in verified:
        boundary = float(pixels(made_up().images[item.index])[0, 0, 0]) - 0.5
        assert boundary < item.distance < item.radius_lower < item.substituted_radius * 1.2
        assert item.sound_radius < boundary
        assert (item.selected, item.target) == (0, 1)
        moved = shifted_center(tmp_path, item.index)
        assert moved[0, 0, 0] < 0.5
        assert moved.min() >= 0.0


def test_attack_resumes_after_a_crash_in_the_middle_of_a_line(tmp_path):
    whole = attacked(tmp_path / "a")
    attacked(tmp_path / "b", chosen=cohort(12, 5, "salt"))
    path = tmp_path / "b" / "endpoints.jsonl"
    path.write_text(path.read_text()[:-30])
    assert len(read_attack(path)[1]) == 4
    assert attacked(tmp_path / "b") == whole
    assert path.read_bytes() == (tmp_path / "a" / "endpoints.jsonl").read_bytes()


def test_attack_refuses_the_folder_of_another_plan(tmp_path):
    attacked(tmp_path, chosen=[])
    path = tmp_path / "endpoints.jsonl"
    head = json.loads(path.read_text())
    head["plan"]["seed"] = 3
    path.write_text(json.dumps(head) + "\n")
    with pytest.raises(RecordError, match="another attack"):
        attacked(tmp_path, chosen=[])


def test_change_inside_a_sound_radius_is_reported():
    base = {"index": 1, "label": 0, "selected": 0, "substituted_radius": 0.5, "sound_radius": 0.2, "is_changed": True}
    inside, outside = Endpoint(**base, distance=0.19), Endpoint(**base, distance=0.21)
    assert inside_sound_radius([inside, outside]) == (inside,)


def test_confirmation_needs_both_labels_and_a_short_distance():
    counter = Counter(Halfspace(), SIGMA, ConfidenceFilter(0.9), 3, 1000)
    center = pixels(made_up().images[6])

    def result(first, **changes):
        moved = center.copy()
        moved[0, 0, 0] = first
        fields = {"original": 0, "changed": 1, "trials": 3000, "sigma": SIGMA, "delta": 0.001, "members": 5}
        return confirm(counter, center, moved, **{**fields, "seed": 0, "index": 0, **changes})

    assert result(0.4).is_verified
    assert not result(0.55).is_changed  # same side
    far = result(-1.5)
    assert far.is_changed
    assert not far.is_verified  # outside the substituted radius
    assert not result(0.4, original=1, changed=0).is_changed
    assert not result(0.4, trials=10).is_changed
    assert result(0.4).error_each <= 0.001 / family_size(5, 3)


def test_search_finds_the_direction_of_the_boundary():
    counter = Counter(Halfspace(), SIGMA, ConfidenceFilter(0.9), 3, 1000)
    center = pixels(made_up().images[4])
    found = search(
        Halfspace(),
        counter,
        center,
        LabelCounts(retained=(90, 10, 0), rejected=0),
        original=0,
        radius=0.5,
        sigma=SIGMA,
        plan=PLAN,
        seed=0,
        index=4,
    )
    assert len(found) == 6
    assert [item.margin for item in found] == sorted((item.margin for item in found), reverse=True)
    assert found[0].margin > 0
    assert all(distance_upper(center, item.center) <= 0.5 for item in found)


def test_cohort_is_ranked_by_hash():
    order = sorted(range(50), key=lambda i: hashlib.sha256(f"s:{i}".encode()).hexdigest())
    assert cohort(50, 20, "s") == tuple(order[:20])
    with pytest.raises(ValueError, match="`size`"):
        cohort(5, 6, "s")


def test_family_size_is_the_papers():
    assert family_size(128, 10) == 2432


def test_distance_is_rounded_up_from_the_exact_value():
    center, moved = np.zeros((1, 1, 3), dtype=np.float32), np.array([[[0.1, 0.2, 0.3]]], dtype=np.float32)
    squared = math.fsum(float(value) ** 2 for value in moved.ravel())
    assert distance_upper(center, moved) >= math.sqrt(squared)
    assert distance_upper(center, moved) == pytest.approx(math.sqrt(squared), rel=1e-15)
    assert distance_upper(center, center) == 0.0


def test_summary_lines_count_every_image(tmp_path):
    table = counted(tmp_path)
    lines = {
        item.rule: item for item in table_lines(table, "confidence>0.9", delta=0.001, thresholds=["0.1"], strict=True)
    }
    assert {item.images for item in lines.values()} == {12}
    assert not lines[Rule.SUBSTITUTED].is_sound
    assert lines[Rule.SUBSTITUTED].certified[0] > lines[Rule.SIMULTANEOUS].certified[0]
    found = verdicts(table.arm("none"), Rule.UNFILTERED, table, delta=0.001)
    assert line(found, [0] * 12, ["0.1"], strict=True) == lines[Rule.UNFILTERED]
    assert lines[Rule.UNFILTERED].median == sorted(item.radius for item in found)[5]
    mixed = verdict(Rule.EXPLICIT, table.rows[0].selection, table.rows[0].estimation, sigma=SIGMA, delta=0.001)
    with pytest.raises(ValueError, match="one rule"):
        line([found[0], mixed], [0, 0], ["0.1"], strict=True)


def test_thresholds_scale_exactly_with_sigma():
    assert scaled_thresholds(0.25, "0.3", "0.5") == ("0.3", "0.5")
    assert scaled_thresholds(0.12, "0.3") == ("0.144",)


def test_fitted_band_has_ratio_one_and_retains_what_its_formula_says():
    images = ImageSet(
        name="made-up",
        images=np.random.default_rng(0).integers(0, 256, (300, 4, 4, 2), dtype=np.uint8),
        labels=np.zeros(300, dtype=np.int64),
        classes=("a", "b"),
    )
    rule = fit_band(images, sigma=0.5)
    assert rule.proof(0.5).covariance_ratio == 1.0
    expected = retained_fraction(rule.bands[0], images, 0.5)
    noise = np.random.default_rng(1).standard_normal((300, 200, 4, 4, 2))
    drawn = torch.from_numpy(images.images[:, None] / 255.0 + 0.5 * noise).reshape(-1, 4, 4, 2).permute(0, 3, 1, 2)
    kept = rule.before(drawn).double().reshape(300, 200).mean(1).numpy()
    assert np.abs(kept - expected).max() < 5 * math.sqrt(0.25 / 200)
    assert abs(kept.mean() - expected.mean()) < 5 * math.sqrt(0.25 / 60_000)


def test_int8_network_is_another_classifier_that_mostly_agrees():
    model = load_shipped("mnist-small-sigma1")
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(400, 1, 28, 28, generator=generator).contiguous(memory_format=torch.channels_last)
    small = quantized(model, images[:200])
    with torch.inference_mode():
        exact, coded = folded(model)(images[200:]), small(images[200:])
    assert (exact.argmax(1) == coded.argmax(1)).float().mean() > 0.9
    assert not torch.equal(exact, coded)
    assert model_digest(small) != model_digest(folded(model))
    assert model_digest(quantized(model, images[:200])) == model_digest(small)
    assert model_digest(quantized(model, 2 * images[:200])) != model_digest(small)


def test_int8_handles_residual_blocks_and_refuses_other_networks():
    torch.manual_seed(0)
    model = build(ARCHITECTURES["cifar-32x2"]).eval()
    images = torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        difference = (quantized(model, images)(images) - model(images)).abs().max()
    assert float(difference) < 0.25 * float(model(images).detach().std()) + 0.05
    with pytest.raises(TypeError, match=r"networks\.build"):
        quantized(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.ReLU()).eval(), images)
