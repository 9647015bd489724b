"""The stored studies say what their stored counts say, and no proved label change lies inside a certified radius."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from ccfs.certificates.binomial import bonferroni, winner_pvalue
from ccfs.certificates.images import LabelCounts, Rule, certified_count, verdict
from ccfs.images import CountTable, ImageSet, folded, load_shipped, read_counts
from ccfs.images.attack import cohort, family_size
from ccfs.images.audit import audit_images
from ccfs.images.bands import Band, load_band, save_band
from ccfs.images.counts import model_digest
from ccfs.images.endpoints import inside_sound_radius, read_attack
from ccfs.images.networks import ZOO, cifar_resnet
from ccfs.images.summary import retention, table_lines, verdicts

pytestmark = pytest.mark.slow
STUDIES = Path(__file__).resolve().parents[2] / "experiments" / "images"
RESULTS = STUDIES / "results"
NETWORKS = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())
FILTERED = "confidence>0.9"


def summary(network, name):
    return json.loads((RESULTS / network / f"{name}.json").read_text(encoding="utf-8"))


def with_study(name):
    return [network for network in NETWORKS if (RESULTS / network / f"{name}.json").exists()]


def study_module(name="run"):
    spec = importlib.util.spec_from_file_location(f"image_studies_{name}", STUDIES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_study_is_stored_for_at_least_one_network():
    for name in ("recertify", "thresholds", "band", "attack"):
        assert with_study(name), name


@pytest.mark.parametrize("network", NETWORKS)
def test_stored_counts_are_small_and_of_the_shipped_weights(network):
    shipped = network.removesuffix("-int8")
    tables = [read_counts(path) for path in (RESULTS / network).rglob("counts.parquet")]
    assert all(path.stat().st_size < 3_000_000 for path in (RESULTS / network).rglob("*.parquet"))
    sigma = json.loads((ZOO / shipped / "card.json").read_text())["recipe"]["sigma"]
    assert {table.key.sigma for table in tables} == {sigma}
    # Making the 8-bit network takes training images, which are not in the repository. Its counts are of one network.
    digests = {table.key.model_sha256 for table in tables}
    assert len(digests) == 1
    assert (digests == {model_digest(folded(load_shipped(shipped)))}) == (shipped == network)


@pytest.mark.parametrize("network", with_study("attack"))
def test_attack_is_headed_by_its_plan_and_the_counts_it_started_from(network):
    head, _ = read_attack(RESULTS / network / "attack" / "endpoints.jsonl")
    assert head.plan.model_dump(mode="json") == summary(network, "attack")["plan"]
    table = read_counts(RESULTS / network / "attack" / "counts.parquet")
    assert head.counts == table.key


def test_results_page_is_what_the_tables_print(capsys):
    study_module("tables").main()
    assert capsys.readouterr().out == (STUDIES / "RESULTS.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("network", with_study("recertify"))
def test_recertification_follows_from_its_counts(network):
    stored, table = summary(network, "recertify"), read_counts(RESULTS / network / "recertify" / "counts.parquet")
    reported = [name[1:] for name in next(iter(stored["rules"].values())) if name.startswith(">")]
    lines = table_lines(table, FILTERED, delta=stored["delta"], thresholds=reported, strict=True)
    assert {item.rule.value for item in lines} == set(stored["rules"])
    for item in lines:
        row = stored["rules"][item.rule.value]
        assert row["is_sound"] == item.is_sound
        assert (row["positive"], row["median"]) == (item.positive / item.images, item.median)
        assert [row[f">{name}"] for name in reported] == [count / item.images for count in item.certified]
    assert stored["retained"] == float(retention(table.variant(FILTERED)))
    assert stored["images"] == len(table.variant("none")) == lines[0].images


@pytest.mark.parametrize("network", with_study("thresholds"))
def test_threshold_choice_follows_from_its_counts(network):
    stored, table = summary(network, "thresholds"), read_counts(RESULTS / network / "thresholds" / "counts.parquet")
    development = stored["development_images"]
    for variant, (name, row) in zip(table.key.variants, stored["thresholds"].items(), strict=True):
        assert variant == ("none" if float(name) == 0 else f"confidence>{float(name):g}")
        group = table.variant(variant)[:development]
        found, labels = verdicts(group, Rule.EXPLICIT, table, delta=stored["delta"]), [item.label for item in group]
        hits = sum(certified_count(found, labels, radius, strict=True) for radius in stored["radii"])
        assert row["development"] == hits / (development * len(stored["radii"]))
        rest = table.variant(variant)[development:]
        found, labels = verdicts(rest, Rule.EXPLICIT, table, delta=stored["delta"]), [item.label for item in rest]
        certified = {radius: certified_count(found, labels, radius, strict=True) for radius in stored["radii"]}
        assert row["confirmation"] == sum(certified.values()) / (len(rest) * len(stored["radii"]))
        assert row.get("certified_confirmation", certified) == certified
    best = max(stored["thresholds"], key=lambda level: stored["thresholds"][level]["development"])
    assert stored["chosen_on_development"] == best


@pytest.mark.parametrize("network", with_study("band"))
def test_band_comparison_follows_from_its_counts(network):
    stored = summary(network, "band")
    filtered, plain = (read_counts(RESULTS / network / name / "counts.parquet") for name in ("band", "band-unfiltered"))
    filtered, plain = (
        CountTable(key=table.key, rows=tuple(row for row in table.rows if row.index < stored["images"]))
        for table in (filtered, plain)
    )
    module = study_module()
    each = bonferroni(stored["delta"], 32 * stored["declared_images"])
    assert stored["error_each"] == each
    assert Fraction(each) * stored["family"] <= Fraction(stored["delta"])
    found = module.compare(filtered, plain, stored["sigma"], each)
    labels = [row.label for row in filtered.rows]
    for name, verdict_list in found.items():
        for threshold, count in stored["certified"][name].items():
            assert certified_count(verdict_list, labels, threshold, strict=False) == count
    strong = module.separated(
        found["conditional Renyi"],
        module.joint_upper(filtered, stored["sigma"], each),
        labels,
        stored["renyi_above_joint_upper_by"]["margin"],
    )
    assert sum(strong) == stored["renyi_above_joint_upper_by"]["images"]
    assert sum(row["strong"] for row in stored["classes"].values()) == sum(strong)
    assert sum(row["images"] for row in stored["classes"].values()) == stored["images"] == len(labels)
    for threshold, pair in stored["paired"].items():
        assert module.paired(found["conditional Renyi"], found["joint mass"], labels, threshold) == pair
    assert filtered.key.proof.covariance_ratio == stored["covariance_ratio"] == 1.0
    assert load_band(RESULTS / network / "band.npz").document() == filtered.key.filter
    assert filtered.key.stream != plain.key.stream


@pytest.mark.parametrize(
    ("network", "name"), [(n, k) for k in ("anytime-none", "anytime-confidence") for n in with_study(k)]
)
def test_saved_proposals_follow_from_the_lines(network, name):
    stored = summary(network, name)
    derived = study_module("anytime").summary(stored["rows"])
    assert {key: stored[key] for key in derived} == derived
    assert [row["index"] for row in stored["rows"]] == list(range(stored["images"]))
    assert all(0 < row["trials"] <= stored["most"] for row in stored["rows"])
    assert stored["saved"] > 0.5


@pytest.mark.parametrize("network", with_study("attack"))
def test_attack_finds_nothing_inside_a_certified_radius(network):
    """A failure here is a bug of ours, or an event of probability delta."""
    stored, table = summary(network, "attack"), read_counts(RESULTS / network / "attack" / "counts.parquet")
    _, endpoints = read_attack(RESULTS / network / "attack" / "endpoints.jsonl")
    members = stored["plan"]["members"]
    assert [item.index for item in endpoints] == list(cohort(10_000, members, stored["salt"]))
    assert stored["family"] == family_size(members, 10)
    rows = {row.index: row for row in table.variant(FILTERED)}
    each = bonferroni(stored["delta"], stored["family"])
    for item in endpoints:
        row = rows[item.index]
        radii = {
            rule: verdict(rule, row.selection, row.estimation, sigma=stored["sigma"], delta=stored["delta"]).radius
            for rule in (Rule.SIMULTANEOUS, Rule.EXPLICIT, Rule.COMPLEMENT, Rule.SINGLE_BATCH)
        }
        assert item.sound_radius == radii[Rule.SIMULTANEOUS]
        if item.is_changed:
            assert max(radii.values()) <= item.distance
            for counts, winner in ((item.nominal, item.selected), (item.shifted, item.target)):
                errors = [winner_pvalue(counts[winner], c) for label, c in enumerate(counts) if label != winner]
                assert max(errors) <= each
    assert inside_sound_radius(endpoints) == ()
    assert stored["changed_inside_a_sound_radius"] == 0
    assert stored["verified_inside_substituted_radius"] == sum(item.is_verified for item in endpoints)


def test_boundary_study_fixes_its_pairs_and_resumes(tmp_path, monkeypatch):
    """Six made-up strokes stand for MNIST. The study is the declared one with small sizes."""
    pixels = np.zeros((6, 28, 28), dtype=np.uint8)
    for place in range(6):
        pixels[place, 4:24, 11 + place // 2 : 14 + place // 2] = 255 - 10 * place
    images = {"images": pixels[..., np.newaxis], "labels": np.ones(6, dtype=np.int64)}
    strokes = ImageSet(name="mnist-test", **images, classes=tuple("0123456789"))
    common = ["--network", "mnist-small-sigma1", "--results", str(tmp_path)]
    counting, module = study_module(), study_module("boundary")
    for part in (counting, module):
        monkeypatch.setattr(part, "load_images", lambda *_: strokes)
    sizes = ["--first", "0", "--images", "6", "--development", "2", "--trials", "300"]
    monkeypatch.setattr("sys.argv", ["run.py", "thresholds", *common, *sizes])
    counting.main()
    sizes = ["--restarts", "2", "--steps", "4", "--proposals", "16", "--screen", "100", "--trials", "400"]
    monkeypatch.setattr("sys.argv", ["boundary.py", *common, *sizes])
    looked = module.search

    def hopeful(*arguments, **changes):
        # The label of a stroke does not change so soon. As if the screen were positive, so that pairs are confirmed.
        (best, *_) = looked(*arguments, **changes)
        counts = LabelCounts(retained=tuple(90 * (label == best.target) for label in range(10)), rejected=10)
        return (replace(best, screen=counts),)

    monkeypatch.setattr(module, "search", hopeful)
    module.main()
    home = tmp_path / "mnist-small-sigma1"
    first = (home / "boundary.json").read_bytes()
    stored = json.loads(first)
    assert 1 <= len(stored["screens"]) == len(stored["confirmations"]) <= 6
    assert stored["family"] == 114
    assert (stored["verified"], {item["error_each"] for item in stored["confirmations"]}) == (
        0,
        {bonferroni(0.001, 114)},
    )
    for path in (home / "boundary.json", *home.glob("boundary/confirmation-*.json")):
        path.unlink()
    module.main()
    assert (home / "boundary.json").read_bytes() == first
    monkeypatch.setattr("sys.argv", ["boundary.py", *common, *sizes, "--seed", "1"])
    with pytest.raises(SystemExit, match="another study"):
        module.main()


def test_papers_commands_run_on_files_in_the_layout_of_cifar_101_and_102(tmp_path, monkeypatch):
    """Made-up images and a tiny ResNet stand for the files that only a user has. The commands are those of the docs."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), np.array([0, 3, 3, 9])
    np.save(tmp_path / "cifar10.1_v4_data.npy", pixels)
    np.save(tmp_path / "cifar10.1_v4_labels.npy", labels)
    np.savez(tmp_path / "cifar102_test.npz", images=pixels, labels=labels)
    torch.manual_seed(0)
    body = cifar_resnet(8).get_submodule("body")
    state = {f"module.1.{name}": value for name, value in body.state_dict().items()}
    torch.save({"arch": "cifar_resnet8", "state_dict": state}, tmp_path / "model.pth.tar")
    folder = tmp_path / "results" / "model.pth.tar-on-cifar10.2"
    folder.mkdir(parents=True)
    # The band comes from CIFAR-10 training images, which are not here.
    direction = rng.standard_normal(3072)
    direction /= np.linalg.norm(direction)
    save_band(folder / "band.npz", Band(direction=direction, offset=0.1, inner=0.0625, outer=0.25))
    common = ["--checkpoint", str(tmp_path / "model.pth.tar"), "--data", str(tmp_path), "--images", "4"]
    common += ["--results", str(tmp_path / "results"), "--trials", "40"]
    for command in (
        ["band", "--dataset", "cifar10.2", "--selection", "20", "--block", "3"],
        ["recertify", "--dataset", "cifar10.1"],
        ["attack", "--dataset", "cifar10.1", "--members", "2", "--steps", "1", "--proposals", "4", "--screen", "20"],
    ):
        monkeypatch.setattr("sys.argv", ["run.py", *command, *common, "--confirmation", "20"])
        study_module().main()
    stored = json.loads((folder / "band.json").read_text())
    assert (stored["images"], stored["family"]) == (4, 128)
    assert audit_images(folder / "band").is_clean
    assert json.loads((tmp_path / "results" / "model.pth.tar-on-cifar10.1" / "attack.json").read_text())["plan"]
