"""The attack proves what it claims on a classifier with a known boundary, and never inside a certified radius."""

from __future__ import annotations

import json

import pytest
import torch
from image_toys import SIGMA, Halfspace, counted, made_up

from ccfs.images import ConfidenceFilter, RecordError, certify_dataset
from ccfs.images.attack import SearchPlan, cohort
from ccfs.images.counts import model_digest
from ccfs.images.endpoints import (
    AttackPlan,
    Claim,
    Endpoint,
    attack_cohort,
    claims_digest,
    inside_sound_radius,
    read_attack,
    shifted_center,
)

pytestmark = pytest.mark.slow
torch.set_num_threads(1)  # two threads beside a busy core are far slower than one

PLAN = SearchPlan(restarts=3, steps=12, proposals=64, screen=400, threshold=0.9)
SIZES = {"variant": "confidence>0.9", "members": 12, "confirmation": 4000, "delta": 0.001, "seed": 2}


class WithoutGradients(Halfspace):
    """The same function, as a network in 8 bits or in an ONNX file computes it: torch sees no way back."""

    def forward(self, images):
        return super().forward(images.detach())


def attacked(folder, **changes):
    plan = AttackPlan(search=PLAN, **SIZES)
    table, chosen = counted(folder), changes.pop("chosen", cohort(12, 12, "salt"))
    return attack_cohort(Halfspace(), made_up(), table, chosen, plan, batch_size=1000, folder=folder, **changes)


def test_attack_verifies_changes_inside_the_substituted_radius_and_none_inside_a_sound_one(tmp_path):
    endpoints = attacked(tmp_path)
    verified = [item for item in endpoints if item.is_verified]
    assert len(verified) >= 3
    assert inside_sound_radius(endpoints) == ()
    for item in verified:
        boundary = float(made_up().center(item.index)[0, 0, 0]) - 0.5
        assert boundary < item.distance < item.radius_lower < item.substituted_radius * 1.2
        assert item.sound_radius < boundary
        assert (item.selected, item.target) == (0, 1)
        moved = shifted_center(tmp_path, item.index)
        assert moved[0, 0, 0] < 0.5
        assert moved.min() >= 0.0


def test_network_without_gradients_is_attacked_with_those_of_another_form(tmp_path):
    model, images, plan = WithoutGradients(), made_up(), AttackPlan(search=PLAN, **SIZES)
    sizes = {"sigma": SIGMA, "n0": 100, "n": 3000, "seed": 2}
    table = certify_dataset(
        model, images, ConfidenceFilter(0.0, 0.9), **sizes, batch_size=1000, folder=tmp_path / "run"
    )
    common = (model, images, table, range(12), plan)
    with pytest.raises(ValueError, match="must have gradients"):
        attack_cohort(*common, batch_size=1000, folder=tmp_path / "alone")
    assert not (tmp_path / "alone").exists()
    endpoints = attack_cohort(*common, batch_size=1000, folder=tmp_path / "led", gradients=Halfspace())
    assert any(item.is_verified for item in endpoints)
    assert inside_sound_radius(endpoints) == ()
    head, _ = read_attack(tmp_path / "led" / "endpoints.jsonl")
    assert head.gradients == model_digest(Halfspace()) != head.counts.model_sha256
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 3)).eval()
    with pytest.raises(RecordError, match="another attack"):
        attack_cohort(*common, batch_size=1000, folder=tmp_path / "led", gradients=other)


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
    path.write_text(path.read_text().replace('"steps":12', '"steps":13'))
    with pytest.raises(RecordError, match="another attack"):
        attacked(tmp_path, chosen=[])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda head: head | {"format": "ccfs/image-endpoints/9"}, "has the format 'ccfs/image-endpoints/9'; this"),
        (lambda head: {"plan": head["plan"], "counts": head["counts"]}, "has no `format`; this release reads"),
        (lambda head: head | {"plan": head["plan"] | {"arm": "none"}}, "is no ccfs/image-endpoints/1: `plan.arm`"),
    ],
)
def test_read_refuses_another_format(tmp_path, change, said):
    attacked(tmp_path, chosen=[])
    path = tmp_path / "endpoints.jsonl"
    path.write_text(json.dumps(change(json.loads(path.read_text()))) + "\n")
    with pytest.raises(RecordError, match=said):
        read_attack(path)


def test_change_inside_a_sound_radius_is_reported():
    base = {"index": 1, "label": 0, "selected": 0, "substituted_radius": 0.5, "sound_radius": 0.2, "is_changed": True}
    inside, outside = Endpoint(**base, distance=0.19), Endpoint(**base, distance=0.21)
    assert inside_sound_radius([inside, outside]) == (inside,)


def test_radii_of_another_program_are_attacked_at_their_printed_size(tmp_path):
    """A claim beyond the boundary is broken, one before it is not. Without a label the counts' one is taken."""
    table, plan = counted(tmp_path), AttackPlan(search=PLAN, **SIZES)
    room = {index: float(made_up().center(index)[0, 0, 0]) - 0.5 for index in (3, 4)}
    claims = {
        3: Claim(label=0, radius=2.5 * room[3], worth=0.5 * room[3]),
        4: Claim(label=None, radius=0.9 * room[4], worth=0.0),
    }
    common = (Halfspace(), made_up(), table)
    broken, held = attack_cohort(*common, (3, 4), plan, batch_size=1000, folder=tmp_path / "printed-a", claims=claims)
    assert broken.is_verified
    assert room[3] < broken.distance < broken.radius_lower == broken.substituted_radius == claims[3].radius
    assert (held.selected, held.is_changed) == (0, False)
    assert inside_sound_radius((broken, held)) == ()
    head, stored = read_attack(tmp_path / "printed-a" / "endpoints.jsonl")
    assert head.claims == claims_digest(claims)
    assert stored == (broken, held)
    with pytest.raises(RecordError, match="another attack"):
        attack_cohort(
            *common, (3, 4), plan, batch_size=1000, folder=tmp_path / "printed-a", claims={**claims, 3: claims[4]}
        )
    with pytest.raises(ValueError, match="image 5 has none"):
        attack_cohort(*common, (3, 5), plan, batch_size=1000, folder=tmp_path / "printed-b", claims=claims)


def test_claim_of_a_label_that_the_network_does_not_give_is_no_proved_change(tmp_path):
    table, plan = counted(tmp_path), AttackPlan(search=PLAN, **SIZES)
    claims = {11: Claim(label=1, radius=0.1, worth=0.0)}
    (found,) = attack_cohort(
        Halfspace(), made_up(), table, (11,), plan, batch_size=1000, folder=tmp_path / "printed-a", claims=claims
    )
    assert not found.is_changed
