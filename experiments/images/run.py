"""The image studies on one network: recertification, thresholds, projected band, endpoint attack.

Every study counts first (Parquet, resumable), then computes all numbers from the stored counts. The default sizes fit a
CPU and stand in every summary. The options can set the paper's sizes.

    python experiments/images/run.py --network mnist-small-sigma1 all
    python experiments/images/run.py --network cifar-48-sigma0.25 recertify --images 200 --trials 2000
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress

from ccfs.certificates.binomial import bonferroni, clopper_pearson_lower, clopper_pearson_upper
from ccfs.certificates.conditional import forward_kl_radius, renyi_radius, reverse_kl_radius
from ccfs.certificates.filtered import joint_mass_radius, joint_mass_radius_upper, top_label
from ccfs.certificates.images import LabelCounts, Rule, Verdict, certified_count
from ccfs.certificates.rounding import fraction_upper
from ccfs.images import (
    ConfidenceFilter,
    CountTable,
    Filter,
    ImageSet,
    NoFilter,
    certify_dataset,
    folded,
    load_checkpoint,
    load_images,
    load_shipped,
    read_counts,
)
from ccfs.images.attack import SearchPlan, cohort, family_size
from ccfs.images.bands import fit_band, load_band, retained_fraction, save_band
from ccfs.images.endpoints import AttackPlan, attack_cohort, inside_sound_radius
from ccfs.images.folder import Asked
from ccfs.images.networks import ZOO
from ccfs.images.summary import accuracy, retention, table_lines, verdicts

RESULTS = Path(__file__).resolve().parent / "results"
DELTA = 0.001
GRID = (0.0, 0.5, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.975)
FILTERED = "confidence>0.9"
SALT = "ccfs-endpoint-cohort-1"
# One colour per certificate everywhere: those of the report's light theme. Red is kept for what is no certificate.
RULE_COLORS = {
    Rule.UNFILTERED: "#1b1f24",
    Rule.COMPLEMENT: "#4d7c0f",
    Rule.SIMULTANEOUS: "#0b62c4",
    Rule.EXPLICIT: "#0f766e",
    Rule.RENYI: "#7c3aed",
    Rule.REVERSE_KL: "#be185d",
    Rule.FORWARD_KL: "#475569",
    Rule.SUBSTITUTED: "#a3261b",
}
COLORS = {
    "conditional forward KL": RULE_COLORS[Rule.FORWARD_KL],
    "conditional reverse KL": RULE_COLORS[Rule.REVERSE_KL],
    "conditional Renyi": RULE_COLORS[Rule.RENYI],
    "joint mass": RULE_COLORS[Rule.EXPLICIT],
    "unfiltered": RULE_COLORS[Rule.UNFILTERED],
    "unfiltered, matched calls": "#8a939c",
}
PAPER_RECERTIFICATION = {
    "conditional substitution": [0.8941, 0.6668, 0.6835, 0.6007, 0.4406],
    "joint complement": [0.8868, 0.3342, 0.5163, 0.3221, 0.1416],
    "joint explicit": [0.8872, 0.3293, 0.5114, 0.3137, 0.1323],
    "joint simultaneous": [0.8875, 0.3330, 0.5153, 0.3202, 0.1394],
    "unfiltered Gaussian": [0.9122, 0.3924, 0.5525, 0.3917, 0.2403],
}


class Study:
    """One network, its images and its folder of results."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.limit, self.trials, self.batch = arguments.images, arguments.trials, arguments.batch
        self.seed, self.source = arguments.seed, arguments.data
        self.selection, self.block, self.only_summary = arguments.selection, arguments.block, arguments.summary
        self.first, self.development = arguments.first, arguments.development
        self.model = self.leader = None
        if arguments.checkpoint is None:
            recipe = json.loads((ZOO / arguments.network / "card.json").read_text(encoding="utf-8"))["recipe"]
            self.network, self.sigma, self.dataset = arguments.network, float(recipe["sigma"]), recipe["dataset"]
            if arguments.int8:
                asked = Asked(dataset=self.dataset, network=self.network, sigma=self.sigma, int8=True)
                self.model = None if self.only_summary else asked.model_of()
                # The 8-bit network has no gradients. Its float form leads the search of an attack.
                self.leader = asked.float_form()
                self.network = f"{self.network}-int8"
            else:
                self.model = folded(load_shipped(arguments.network))
        else:
            self.model = folded(load_checkpoint(arguments.checkpoint))
            self.network, self.sigma, self.dataset = arguments.checkpoint.name, arguments.sigma, "cifar10"
        self.evaluated = arguments.dataset or self.dataset
        suffix = "" if self.evaluated == self.dataset else f"-on-{self.evaluated}"
        self.folder = arguments.results / f"{self.network}{suffix}"
        self.folder.mkdir(parents=True, exist_ok=True)

    def data(self, split: str) -> ImageSet:
        """Return test images of the evaluated data set, or training images of the network's data set."""
        if split == "train" or self.evaluated == self.dataset:
            return load_images(self.dataset, split)
        return load_images(self.evaluated, split, self.source)

    def thresholds(self, *values: str) -> tuple[str, ...]:
        """Return radii that are stated for sigma 0.25, scaled to this network's sigma."""
        scaled = [Fraction(value) * Fraction(str(self.sigma)) / Fraction(1, 4) for value in values]
        return tuple(str(float(value)) for value in scaled)

    def count(self, name: str, rule: Filter, indices: list[int], n0: int, n: int, stream: str = "") -> CountTable:
        """Count into results/<network>/<name>/counts.parquet, or read what is there."""
        if self.only_summary:
            table = read_counts(self.folder / name / "counts.parquet")
            wanted = set(indices)
            return CountTable(key=table.key, rows=tuple(row for row in table.rows if row.index in wanted))
        images = self.data("test")
        with Progress() as bar:
            task = bar.add_task(name, total=len(indices))
            return certify_dataset(
                self.model,
                images,
                rule,
                sigma=self.sigma,
                n0=n0,
                n=n,
                seed=self.seed,
                batch_size=self.batch,
                folder=self.folder / name,
                indices=indices,
                stream=stream or name,
                progress=lambda done: bar.advance(task, done),
            )

    def write(self, name: str, summary: dict[str, object]) -> None:
        """Write results/<network>/<name>.json."""
        head = {"network": self.network, "sigma": self.sigma, "delta": DELTA, "seed": self.seed}
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({**head, **summary}, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path}")


def recertify(study: Study) -> None:
    """Run the paper's five calculations on the same counts, and draw the curves."""
    indices = list(range(study.limit))
    table = study.count("recertify", ConfidenceFilter(0.0, 0.9), indices, 100, study.trials)
    reported = study.thresholds("0.3", "0.5", "0.7")
    lines = table_lines(table, FILTERED, delta=DELTA, thresholds=reported, strict=True)
    rows = {
        item.rule.value: {
            "is_sound": item.is_sound,
            "positive": item.positive / item.images,
            "median": item.median,
            **{f">{t}": count / item.images for t, count in zip(item.thresholds, item.certified, strict=True)},
        }
        for item in lines
    }
    filtered_rows, plain = table.variant(FILTERED), table.variant("none")
    labels = [row.label for row in plain]
    chosen = verdicts(filtered_rows, Rule.SUBSTITUTED, table, delta=DELTA)
    unfiltered = verdicts(plain, Rule.UNFILTERED, table, delta=DELTA)
    study.write(
        "recertify",
        {
            "images": len(indices),
            "selection_trials": 100,
            "estimation_trials": study.trials,
            "comparison": "strict",
            "retained": float(retention(filtered_rows)),
            "accuracy_filtered": float(accuracy(chosen, labels)),
            "accuracy_unfiltered": float(accuracy(unfiltered, labels)),
            "rules": rows,
            "paper_cifar10_resnet110_columns": ["positive", "median", ">0.3", ">0.5", ">0.7"],
            "paper_cifar10_resnet110": PAPER_RECERTIFICATION,
        },
    )
    curves(study, table)


def curves(study: Study, table: CountTable) -> None:
    """Draw certified accuracy against radius, from the stored counts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [row.label for row in table.variant("none")]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for rule, variant in (
        (Rule.UNFILTERED, "none"),
        (Rule.COMPLEMENT, FILTERED),
        (Rule.SIMULTANEOUS, FILTERED),
        (Rule.EXPLICIT, FILTERED),
        (Rule.SUBSTITUTED, FILTERED),
    ):
        found = verdicts(table.variant(variant), rule, table, delta=DELTA)
        right = np.array([v.radius if v.selected == label else 0.0 for v, label in zip(found, labels, strict=True)])
        grid = np.linspace(0.0, 4.2 * study.sigma, 400)
        style = "--" if rule is Rule.SUBSTITUTED else "-"
        axes.plot(grid, [(right > r).mean() for r in grid], style, color=RULE_COLORS[rule], label=rule.value)
    axes.set(xlabel="radius", ylabel="fraction correct beyond radius", ylim=(0, 1))
    axes.set_title(f"{study.network}: {len(labels)} test images, {study.trials} proposals each", fontsize=9)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(study.folder / "recertify.svg", metadata={"Date": None})
    pyplot.close(figure)


def thresholds(study: Study) -> None:
    """Choose a confidence threshold on the first images, by default a third of them, and confirm on the rest."""
    indices = list(range(study.first, study.first + study.limit))
    table = study.count("thresholds", ConfidenceFilter(*GRID), indices, 100, study.trials)
    development = study.development or study.limit // 3
    radii = study.thresholds("0.25", "0.5", "0.75")
    rows = {}
    for threshold, variant in zip(GRID, table.key.variants, strict=True):
        parts = {}
        for name, chosen in (("development", slice(None, development)), ("confirmation", slice(development, None))):
            group = table.variant(variant)[chosen]
            found, labels = verdicts(group, Rule.EXPLICIT, table, delta=DELTA), [row.label for row in group]
            certified = {radius: certified_count(found, labels, radius, strict=True) for radius in radii}
            parts[name] = sum(certified.values()) / (len(group) * len(radii))
            parts[f"certified_{name}"] = certified
            parts[f"retained_{name}"] = float(retention(group))
        rows[str(threshold)] = parts
    best = {name: max(rows, key=lambda level: rows[level][name]) for name in ("development", "confirmation")}
    study.write(
        "thresholds",
        {
            "images": study.limit,
            "first_image": study.first,
            "development_images": development,
            "selection_trials": 100,
            "estimation_trials": study.trials,
            "radii": radii,
            "objective": "mean explicit-joint certified accuracy over the radii, strict",
            "thresholds": rows,
            "chosen_on_development": best["development"],
            "best_on_confirmation": best["confirmation"],
        },
    )


def band(study: Study) -> None:
    """Compare conditional, joint and unfiltered certificates under a projected band, in one family of bounds."""
    test = study.data("test")
    if not (study.folder / "band.npz").exists():
        (fitted,) = fit_band(study.data("train"), sigma=study.sigma).bands
        save_band(study.folder / "band.npz", fitted)
    # Fitting again elsewhere may differ in the last bit, so the stored filter counts.
    rule = load_band(study.folder / "band.npz")
    (only,) = rule.bands
    n0 = study.selection or max(study.trials // 10, 100)
    # The family is that of all declared images, also when the tables hold fewer. Both streams advance block by block in
    # stored order, so an interrupted study has whole blocks, and which images it has depends on no count.
    family = 32 * study.limit
    each = bonferroni(DELTA, family)
    for start in () if study.only_summary else range(0, study.limit, study.block):
        block = list(range(start, min(start + study.block, study.limit)))
        study.count("band", rule, block, n0, study.trials, "band-filtered")
        study.count("band-unfiltered", NoFilter(), block, n0, study.trials, "band-unfiltered")
    filtered, plain = complete_blocks(study)
    indices = [row.index for row in filtered.rows]
    compared = compare(filtered, plain, study.sigma, each)
    matched, changed = matched_calls(filtered, plain, seed=20260924)
    compared["unfiltered, matched calls"] = [unfiltered(*pair, study.sigma, each) for pair in matched]
    labels = [row.label for row in filtered.rows]
    reported = study.thresholds("0.2", "0.3", "0.5")
    reach = study.thresholds("0.01")[0]
    uppers = joint_upper(filtered, study.sigma, each)
    strong = separated(compared["conditional Renyi"], uppers, labels, reach)
    separation_figure(study, compared, uppers, labels, strong)
    calls = sum(sum(row.selection.retained) + sum(row.estimation.retained) for row in filtered.rows)
    study.write(
        "band",
        {
            "images": len(indices),
            "declared_images": study.limit,
            "selection_trials": n0,
            "estimation_trials": study.trials,
            "family": family,
            "error_each": each,
            "comparison": "at least",
            "covariance_ratio": rule.proof(study.sigma).covariance_ratio,
            "proof": rule.proof(study.sigma).statement,
            "filter": rule.document(),
            "retained": float(retention(filtered.rows)),
            "retained_exact_on_test_images": float(retained_fraction(only, test.subset(indices), study.sigma).mean()),
            "model_calls_filtered": calls,
            "model_calls_unfiltered": len(indices) * (n0 + study.trials),
            "labels_changed_by_matching": changed,
            "renyi_above_joint_upper_by": {"margin": reach, "images": sum(strong)},
            "paired": {t: paired(compared["conditional Renyi"], compared["joint mass"], labels, t) for t in reported},
            "classes": by_class(filtered, plain, compared, strong, test.classes, reported[0]),
            "accuracy_filtered": float(accuracy(compared["conditional Renyi"], labels)),
            "accuracy_unfiltered": float(accuracy(compared["unfiltered"], labels)),
            "certified": {
                name: {t: certified_count(found, labels, t, strict=False) for t in reported}
                for name, found in compared.items()
            },
            "paper_cifar102_resnet110_of_2000": {
                "conditional forward KL": [829, 0, 0],
                "conditional reverse KL": [888, 698, 329],
                "conditional Renyi": [892, 713, 381],
                "joint mass": [725, 417, 0],
                "unfiltered": [948, 814, 529],
                "unfiltered, matched calls": [945, 806, 522],
            },
        },
    )


def complete_blocks(study: Study) -> tuple[CountTable, CountTable]:
    """Return the counts of the whole blocks that are counted both with and without the band, from the first on."""
    tables = [read_counts(study.folder / name / "counts.parquet") for name in ("band", "band-unfiltered")]
    both = {row.index for row in tables[0].rows} & {row.index for row in tables[1].rows}
    stop = next((index for index in range(study.limit) if index not in both), study.limit)
    stop = stop if stop == study.limit else stop - stop % study.block
    if not stop:
        raise SystemExit("no block of images is complete yet")
    first, second = (
        CountTable(key=table.key, rows=tuple(row for row in table.rows if row.index < stop)) for table in tables
    )
    return first, second


def separated(renyi: list[Verdict], uppers: list[float], labels: list[int], reach: str) -> list[bool]:
    """Say for each image whether the correct label's Renyi radius exceeds an upper bound on the joint-mass radius.

    Both hold in the one confidence event of the family, so this compares two formulas, not two true radii.
    """
    return [
        item.selected == label and upper < math.inf and Fraction(item.radius) - Fraction(upper) >= Fraction(reach)
        for item, upper, label in zip(renyi, uppers, labels, strict=True)
    ]


def paired(one: list[Verdict], other: list[Verdict], labels: list[int], threshold: str) -> dict[str, object]:
    """Compare two certificates on the same images: which certifies what the other does not, with an exact test.

    The one-sided value is the probability of at least so many first-only images among the discordant ones, if each
    were first-only with probability 1/2. It describes this finite census and no population.
    """
    hits = [
        [certified_count([item], [label], threshold, strict=False) for item, label in zip(found, labels, strict=True)]
        for found in (one, other)
    ]
    only = sum(a > b for a, b in zip(*hits, strict=True))
    reverse = sum(a < b for a, b in zip(*hits, strict=True))
    tail = sum(math.comb(only + reverse, k) for k in range(only, only + reverse + 1))
    value = Fraction(tail, 2 ** (only + reverse))
    return {"only_first": only, "only_second": reverse, "one_sided": float(value)}


def by_class(
    filtered: CountTable,
    plain: CountTable,
    compared: dict[str, list[Verdict]],
    strong: list[bool],
    classes: tuple[str, ...],
    threshold: str,
) -> dict[str, dict[str, object]]:
    """Return the columns of the paper's table by class, with Renyi in place of forward KL."""
    found: dict[str, dict[str, object]] = {}
    for label, name in enumerate(classes):
        places = [place for place, row in enumerate(filtered.rows) if row.label == label]
        if not places:
            continue
        truth = [label] * len(places)
        chosen = {key: [values[place] for place in places] for key, values in compared.items()}
        found[name] = {
            "images": len(places),
            "retained": float(retention([filtered.rows[place] for place in places])),
            "accuracy_filtered": float(accuracy(chosen["conditional Renyi"], truth)),
            "accuracy_unfiltered": float(accuracy(chosen["unfiltered"], truth)),
            "renyi": certified_count(chosen["conditional Renyi"], truth, threshold, strict=False),
            "joint": certified_count(chosen["joint mass"], truth, threshold, strict=False),
            "strong": sum(strong[place] for place in places),
        }
    return found


def separation_figure(
    study: Study, compared: dict[str, list[Verdict]], uppers: list[float], labels: list[int], strong: list[bool]
) -> None:
    """Draw the curves of all certificates, and each image's Renyi radius against its joint-mass upper bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    grid = np.linspace(0.0, 4.0 * study.sigma, 400)
    for name, found in compared.items():
        radii = np.array([v.radius if v.selected == label else 0.0 for v, label in zip(found, labels, strict=True)])
        style = "--" if name.startswith("unfiltered") else "-"
        left.plot(grid, [(radii > r).mean() for r in grid], style, color=COLORS[name], label=name)
    left.set(xlabel="radius", ylabel="fraction correct beyond radius", ylim=(0, 1))
    left.legend(fontsize=7)
    points = [
        (upper, item.radius, is_strong)
        for item, upper, label, is_strong in zip(compared["conditional Renyi"], uppers, labels, strong, strict=True)
        if item.selected == label and upper < math.inf
    ]
    for wanted, color, name in ((False, "#8a939c", "not separated"), (True, COLORS["conditional Renyi"], "separated")):
        places = [(x, y) for x, y, is_strong in points if is_strong == wanted]
        if places:
            right.scatter(*zip(*places, strict=True), s=8, color=color, label=f"{name}: {len(places)}")
    reach = max((max(x, y) for x, y, _ in points), default=1.0)
    right.plot([0, reach], [0, reach], "--", color="black", linewidth=0.8)
    right.set(xlabel="joint-mass radius, upper bound", ylabel="conditional Renyi radius, lower bound")
    if points:
        right.legend(fontsize=7)
    figure.suptitle(f"{study.network}: {len(labels)} test images, {study.trials} proposals each", fontsize=9)
    figure.tight_layout()
    figure.savefig(study.folder / "band.svg", metadata={"Date": None})
    pyplot.close(figure)


def compare(filtered: CountTable, plain: CountTable, sigma: float, each: float) -> dict[str, list[Verdict]]:
    """Return the radii of every certificate from one family of one-sided bounds, each at error `each`."""
    proof = filtered.proof
    if proof is None:
        raise ValueError("the filtered counts carry no covariance proof.")
    out: dict[str, list[Verdict]] = {}
    for row in filtered.rows:
        selected = top_label(row.selection.retained) if sum(row.selection.retained) else None
        values = dict.fromkeys(
            ("conditional forward KL", "conditional reverse KL", "conditional Renyi", "joint mass"), 0.0
        )
        kept = sum(row.estimation.retained)
        if selected is not None and kept:
            top = row.estimation.retained[selected]
            strongest = max(c for label, c in enumerate(row.estimation.retained) if label != selected)
            p, q = clopper_pearson_lower(top, kept, delta=each), clopper_pearson_upper(strongest, kept, delta=each)
            premise = {"sigma": sigma, "covariance_ratio": proof.covariance_ratio, "ball": proof.ball}
            values["conditional forward KL"] = forward_kl_radius(p, q, **premise)
            values["conditional reverse KL"] = reverse_kl_radius(p, q, **premise)
            values["conditional Renyi"] = renyi_radius(p, q, **premise)
            total = row.estimation.trials
            low = clopper_pearson_lower(top, total, delta=each)
            high = clopper_pearson_upper(strongest, total, delta=each)
            values["joint mass"] = joint_mass_radius(low, high, sigma)
        for name, value in values.items():
            rule = Rule.EXPLICIT if name == "joint mass" else Rule.RENYI
            out.setdefault(name, []).append(Verdict(rule=rule, selected=selected, radius=value))
    out["unfiltered"] = [unfiltered(row.selection, row.estimation, sigma, each) for row in plain.rows]
    return out


def joint_upper(filtered: CountTable, sigma: float, each: float) -> list[float]:
    """Return upper bounds on the population's joint-mass radius.

    The competitor comes from the selection stream, so it is fixed before estimation.
    """
    found = []
    for row in filtered.rows:
        order = sorted(range(len(row.selection.retained)), key=lambda label: (-row.selection.retained[label], label))
        top, runner = order[:2]
        total = row.estimation.trials
        high = clopper_pearson_upper(row.estimation.retained[top], total, delta=each)
        low = clopper_pearson_lower(row.estimation.retained[runner], total, delta=each)
        found.append(joint_mass_radius_upper(high, low, sigma))
    return found


def unfiltered(selection: LabelCounts, estimation: LabelCounts, sigma: float, each: float) -> Verdict:
    """Return the unfiltered certificate from two bounds, each at error `each`."""
    selected = top_label(selection.retained)
    strongest = max(c for label, c in enumerate(estimation.retained) if label != selected)
    low = clopper_pearson_lower(estimation.retained[selected], estimation.trials, delta=each)
    high = min(clopper_pearson_upper(strongest, estimation.trials, delta=each), fraction_upper(1 - Fraction(low)))
    value = joint_mass_radius(low, high, sigma)
    return Verdict(rule=Rule.UNFILTERED, selected=selected, radius=value)


def matched_calls(
    filtered: CountTable, plain: CountTable, *, seed: int
) -> tuple[list[tuple[LabelCounts, LabelCounts]], int]:
    """Subsample the unfiltered counts to the filtered number of model calls (multivariate hypergeometric)."""
    rng = np.random.default_rng(seed)
    pairs, changed = [], 0
    for thin, full in zip(filtered.rows, plain.rows, strict=True):
        parts = []
        for kept, counts in ((thin.selection, full.selection), (thin.estimation, full.estimation)):
            size = max(sum(kept.retained), 1)
            drawn = rng.multivariate_hypergeometric(list(counts.retained), size)
            parts.append(LabelCounts(retained=tuple(int(c) for c in drawn), rejected=0))
        changed += top_label(parts[0].retained) != top_label(full.selection.retained)
        pairs.append((parts[0], parts[1]))
    return pairs, changed


def attack(study: Study, plan: AttackPlan) -> None:
    """Attack a hash-ranked cohort. A proved change inside a sound radius ends the program with an error."""
    test = study.data("test")
    chosen = list(cohort(len(test), plan.members, SALT))
    table = study.count("attack", ConfidenceFilter(0.0, 0.9), chosen, 100, study.trials)
    with Progress() as bar:
        task = bar.add_task("attack", total=len(chosen))
        endpoints = attack_cohort(
            study.model,
            test,
            table,
            chosen,
            plan,
            batch_size=study.batch,
            folder=study.folder / "attack" / "attack",
            gradients=study.leader,
            progress=lambda done: bar.advance(task, done),
        )
    verified = [item for item in endpoints if item.is_verified]
    broken = inside_sound_radius(endpoints)
    study.write(
        "attack",
        {
            "plan": plan.model_dump(mode="json"),
            "salt": SALT,
            "estimation_trials": study.trials,
            "family": family_size(plan.members, len(test.classes)),
            "positive_radius": sum(item.substituted_radius > 0 for item in endpoints),
            "positive_screens": sum((item.screen_margin or 0) > 0 for item in endpoints),
            "changed": sum(item.is_changed for item in endpoints),
            "verified_inside_substituted_radius": len(verified),
            "verified_and_correctly_classified": sum(item.selected == item.label for item in verified),
            "changed_inside_a_sound_radius": len(broken),
            "verified": [asdict(item) for item in verified],
        },
    )
    if broken:
        raise SystemExit(f"SOUNDNESS BUG: label changes inside certified radii at images {[i.index for i in broken]}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("recertify", "thresholds", "band", "attack", "all"))
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--network", help="a shipped network")
    which.add_argument("--checkpoint", type=Path, help='a public CIFAR-10 {"arch", "state_dict"} checkpoint')
    parser.add_argument("--sigma", type=float, default=0.25, help="noise scale of the checkpoint")
    parser.add_argument(
        "--dataset", choices=("cifar10", "cifar10.1", "cifar10.2", "mnist"), help="evaluate on another data set"
    )
    parser.add_argument("--data", type=Path, help="folder of that data set")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--images", type=int, default=150, help="test images, from the first on")
    parser.add_argument("--trials", type=int, default=2000, help="estimation proposals per image")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--seed", type=int, default=20260916)
    parser.add_argument("--int8", action="store_true", help="count the 8-bit form of a shipped network")
    parser.add_argument("--selection", type=int, help="band: selection proposals per image, by default a tenth")
    parser.add_argument("--block", type=int, default=50, help="band: images counted with and without filter in turn")
    parser.add_argument("--first", type=int, default=0, help="thresholds: position of the first image")
    parser.add_argument("--development", type=int, help="thresholds: images that choose, by default a third")
    parser.add_argument("--summary", action="store_true", help="count nothing, summarise the stored counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--members", type=int, default=128, help="attack: cohort size")
    parser.add_argument("--restarts", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--proposals", type=int, default=48)
    parser.add_argument(
        "--ranking", choices=("drawn", "retained"), default="drawn", help="counts that rank the targets"
    )
    parser.add_argument("--screen", type=int, default=1000)
    parser.add_argument("--confirmation", type=int, default=20_000)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    study = Study(arguments)
    plan = AttackPlan(
        search=SearchPlan(
            restarts=arguments.restarts,
            steps=arguments.steps,
            proposals=arguments.proposals,
            screen=arguments.screen,
            threshold=0.9,
            ranking=arguments.ranking,
        ),
        variant=FILTERED,
        members=arguments.members,
        confirmation=arguments.confirmation,
        delta=DELTA,
        seed=arguments.seed,
    )
    steps = {
        "recertify": lambda: recertify(study),
        "thresholds": lambda: thresholds(study),
        "band": lambda: band(study),
        "attack": lambda: attack(study, plan),
    }
    for name, step in steps.items():
        if arguments.study in (name, "all"):
            step()


if __name__ == "__main__":
    main()
