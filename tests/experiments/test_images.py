"""The stored studies say what their stored counts say, and no proved label change lies inside a certified radius."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import asdict, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, winner_pvalue
from ccfs.certificates.gaussian import radius as gaussian_radius
from ccfs.certificates.images import LabelCounts, Rule, certified_count, verdict
from ccfs.certificates.rounding import fraction_upper
from ccfs.images import CountTable, ImageSet, folded, load_shipped, read_counts
from ccfs.images.attack import cohort, family_size
from ccfs.images.audit import audit_images
from ccfs.images.bands import Band, load_band, save_band
from ccfs.images.counts import model_digest
from ccfs.images.data import CIFAR10_CLASSES, MNIST_CLASSES
from ccfs.images.endpoints import inside_sound_radius, read_attack
from ccfs.images.networks import ZOO, cifar_resnet
from ccfs.images.summary import retention, table_lines, verdicts
from ccfs.report import images

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
    for name in ("recertify", "thresholds", "band", "attack", "boundary"):
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
    head, _ = read_attack(RESULTS / network / "attack" / "attack" / "endpoints.jsonl")
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


@cache
def band_study(network):
    """Everything that the summary of a band study tells, computed again from the stored counts."""
    stored, module = summary(network, "band"), study_module()
    filtered, plain = (read_counts(RESULTS / network / name / "counts.parquet") for name in ("band", "band-unfiltered"))
    filtered, plain = (
        CountTable(key=table.key, rows=tuple(row for row in table.rows if row.index < stored["images"]))
        for table in (filtered, plain)
    )
    each = bonferroni(stored["delta"], 32 * stored["declared_images"])
    compared = module.compare(filtered, plain, stored["sigma"], each)
    matched, changed = module.matched_calls(filtered, plain, seed=20260924)
    compared["unfiltered, matched calls"] = [module.unfiltered(*pair, stored["sigma"], each) for pair in matched]
    labels = [row.label for row in filtered.rows]
    uppers = module.joint_upper(filtered, stored["sigma"], each)
    margin = stored["renyi_above_joint_upper_by"]["margin"]
    strong = module.separated(compared["conditional Renyi"], uppers, labels, margin)
    return SimpleNamespace(
        stored=stored,
        module=module,
        filtered=filtered,
        plain=plain,
        each=each,
        compared=compared,
        changed=changed,
        labels=labels,
        uppers=uppers,
        strong=strong,
    )


@pytest.mark.parametrize("network", with_study("band"))
def test_band_comparison_follows_from_its_counts(network):
    study = band_study(network)
    stored, filtered, plain, labels = study.stored, study.filtered, study.plain, study.labels
    assert [row.index for row in filtered.rows] == [row.index for row in plain.rows] == list(range(stored["images"]))
    assert stored["error_each"] == study.each
    assert Fraction(study.each) * stored["family"] <= Fraction(stored["delta"])
    assert stored["certified"] == {
        name: {
            threshold: certified_count(found, labels, threshold, strict=False)
            for threshold in stored["certified"]["joint mass"]
        }
        for name, found in study.compared.items()
    }
    assert sum(study.strong) == stored["renyi_above_joint_upper_by"]["images"]
    renyi, joint = study.compared["conditional Renyi"], study.compared["joint mass"]
    for threshold, pair in stored["paired"].items():
        assert study.module.paired(renyi, joint, labels, threshold) == pair
        # The exact test of scipy is another program.
        discordant = pair["only_first"] + pair["only_second"]
        value = binomtest(pair["only_first"], discordant, 0.5, alternative="greater").pvalue if discordant else 1.0
        assert pair["one_sided"] == pytest.approx(value, rel=1e-9)
    assert filtered.key.proof.covariance_ratio == stored["covariance_ratio"] == 1.0
    assert load_band(RESULTS / network / "band.npz").document() == filtered.key.filter == stored["filter"]
    assert filtered.key.stream != plain.key.stream


@pytest.mark.parametrize("network", with_study("band"))
def test_classes_and_matched_calls_of_the_band_follow_from_its_counts(network):
    study = band_study(network)
    stored, filtered = study.stored, study.filtered
    names = MNIST_CLASSES if filtered.key.dataset.startswith("mnist") else CIFAR10_CLASSES
    threshold = next(iter(stored["certified"]["joint mass"]))
    table = study.module.by_class(filtered, study.plain, study.compared, study.strong, names, threshold)
    assert stored["classes"] == table
    assert sum(row["images"] for row in table.values()) == stored["images"]
    assert sum(row["strong"] for row in table.values()) == sum(study.strong)
    calls = sum(sum(row.selection.retained) + sum(row.estimation.retained) for row in filtered.rows)
    assert stored["model_calls_filtered"] == calls
    assert stored["labels_changed_by_matching"] == study.changed
    # The subsample has as many calls as the filter left, and no label more often than it was counted.
    matched, _ = study.module.matched_calls(filtered, study.plain, seed=20260924)
    for thin, full, pair in zip(filtered.rows, study.plain.rows, matched, strict=True):
        for kept, whole, drawn in zip(
            (thin.selection, thin.estimation), (full.selection, full.estimation), pair, strict=True
        ):
            assert sum(drawn.retained) == sum(kept.retained)
            assert all(a <= b for a, b in zip(drawn.retained, whole.retained, strict=True))


@pytest.mark.parametrize("network", with_study("band"))
def test_separation_figure_shows_the_points_of_the_counts(network, tmp_path):
    study = band_study(network)
    drawn = SimpleNamespace(
        sigma=study.stored["sigma"], network=network, trials=study.stored["estimation_trials"], folder=tmp_path
    )
    study.module.separation_figure(drawn, study.compared, study.uppers, study.labels, study.strong)
    stored, again = ((folder / "band.svg").read_text() for folder in (RESULTS / network, tmp_path))
    # Names inside an SVG are random. Its points, curves and words are not.
    parts = r'<use [^>]*(?: x="[^"]*" y="[^"]*")|(?<= d=)"[^"]*"|<!--[^>]*-->'
    before, now = (re.sub(r'xlink:href="[^"]*"', "", "\n".join(re.findall(parts, text))) for text in (stored, again))
    assert before.count("<use") > sum(study.strong)
    assert before == now
    assert (f"separated: {sum(study.strong)}" in stored) == any(study.strong)


def test_figures_have_the_colours_of_the_report():
    sheet = (Path(images.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--(\w+): (#\w{6});", sheet.partition("@media")[0]))
    names = {"plain": "ink", "unproved": "bad"}
    for rule, color in study_module().RULE_COLORS.items():
        style = images._STYLES[rule].split()[0]
        assert light[names.get(style, style)] == color, rule


@pytest.mark.parametrize("folder", sorted(path.parent for path in RESULTS.rglob("run.json")), ids=str)
def test_stored_runs_are_audited_clean(folder):
    report = audit_images(folder, replay=0)
    assert report.is_clean, report.faults


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
    _, endpoints = read_attack(RESULTS / network / "attack" / "attack" / "endpoints.jsonl")
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
        claimed = verdict(Rule.SUBSTITUTED, row.selection, row.estimation, sigma=stored["sigma"], delta=stored["delta"])
        assert (item.selected, item.substituted_radius) == (claimed.selected, claimed.radius)
        assert (item.distance is not None) == ((item.screen_margin or 0) > 0)
        if item.distance is not None:
            proved, lower = proofs(item, stored["sigma"], each)
            assert (item.is_changed, item.radius_lower) == (proved, lower)
            assert item.is_verified == (proved and item.distance < lower)
    assert inside_sound_radius(endpoints) == ()
    verified = [item for item in endpoints if item.is_verified]
    assert stored["verified"] == json.loads(json.dumps([asdict(item) for item in verified]))
    told = {
        "positive_radius": sum(item.substituted_radius > 0 for item in endpoints),
        "positive_screens": sum((item.screen_margin or 0) > 0 for item in endpoints),
        "changed": sum(item.is_changed for item in endpoints),
        "verified_inside_substituted_radius": len(verified),
        "verified_and_correctly_classified": sum(item.selected == item.label for item in verified),
        "changed_inside_a_sound_radius": 0,
    }
    assert {name: stored[name] for name in told} == told


def proofs(item, sigma, each):
    """Return whether the counts of both ends prove their labels, and the lower bound on the substituted radius."""
    ends = ((item.nominal, item.selected), (item.shifted, item.target))
    errors = [
        max(winner_pvalue(counts[winner], count) for label, count in enumerate(counts) if label != winner)
        for counts, winner in ends
    ]
    assert (item.nominal_error, item.shifted_error) == tuple(errors)
    share = clopper_pearson_lower(item.nominal[item.selected], sum(item.nominal), delta=each)
    lower = gaussian_radius(share, fraction_upper(1 - Fraction(share)), sigma) if share > 0.5 else 0.0
    # Two ways to the same number, both rounded down.
    assert lower == pytest.approx(item.radius_lower, rel=1e-12)
    return max(errors) <= each, item.radius_lower


def refuse_other_boundary(home):
    """Candidates from the opened counts, pairs from the screens, proofs from the confirmations: nothing else counts."""
    stored, module = json.loads((home / "boundary.json").read_text(encoding="utf-8")), study_module("boundary")
    table = read_counts(home / stored["opened"] / "counts.parquet")
    assert stored["counts"] == table.key.hash
    assert stored["family"] == family_size(6, table.key.num_classes) == 114
    each = bonferroni(stored["delta"], stored["family"])
    chosen = [(row.index, row.label, lead) for row, lead in module.candidates(table)]
    assert [(item["index"], item["original"], item["lead"]) for item in stored["screens"]] == chosen
    for item in stored["screens"]:
        others = [count for label, count in enumerate(item["screen"]) if label != item["target"]]
        assert item["margin"] == item["screen"][item["target"]] - max(others)
        assert sum(item["screen"]) <= stored["search"]["screen"]
    ranked = sorted(stored["screens"], key=lambda item: (-item["margin"], item["index"]))
    pairs = [item for item in ranked if item["margin"] > 0][:6]
    assert json.loads((home / "boundary" / "pairs.json").read_text()) == {"pairs": pairs}
    assert [item["index"] for item in stored["confirmations"]] == [item["index"] for item in pairs]
    rows = {row.index: row for row in table.variant(FILTERED)}
    for pair, item in zip(pairs, stored["confirmations"], strict=True):
        assert (item["original"], item["changed"]) == (pair["original"], pair["target"])
        row = rows[item["index"]]
        certified = verdict(Rule.EXPLICIT, row.selection, row.estimation, sigma=stored["sigma"], delta=stored["delta"])
        # A failure here is a bug of ours, or an event of probability delta.
        assert not (item["is_changed"] and item["distance"] < certified.radius)
        ends = {name: item[name]["retained"] for name in ("nominal", "shifted")}
        assert all(sum(ends[name]) + item[name]["rejected"] == stored["confirmation"] for name in ends)
        told = {name: item[name] for name in ("nominal_error", "shifted_error", "radius_lower")}
        found = SimpleNamespace(selected=item["original"], target=item["changed"], **ends, **told)
        proved, lower = proofs(found, stored["sigma"], each)
        assert (item["error_each"], item["is_changed"]) == (each, proved)
        assert item["is_verified"] == (proved and item["distance"] < lower)
    assert stored["verified"] == sum(item["is_verified"] for item in stored["confirmations"])


def test_stored_boundary_studies_follow_from_their_counts():
    for network in with_study("boundary"):
        refuse_other_boundary(RESULTS / network)


def test_boundary_study_fixes_its_pairs_and_resumes(tmp_path, monkeypatch):
    """Six made-up strokes stand for MNIST. The study is the declared one with small sizes."""
    pixels = np.zeros((6, 28, 28), dtype=np.uint8)
    for place in range(6):
        pixels[place, 4:24, 11 + place // 2 : 14 + place // 2] = 255 - 10 * place
    parts = {"images": pixels[..., np.newaxis], "labels": np.ones(6, dtype=np.int64)}
    strokes = ImageSet(name="mnist-test", **parts, classes=tuple("0123456789"))
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
    refuse_other_boundary(home)
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
