"""Print the stored studies as Markdown: python experiments/images/tables.py > experiments/images/RESULTS.md"""

from __future__ import annotations

import json
from pathlib import Path

from ccfs.certificates.rounding import lower_text, upper_text

RESULTS = Path(__file__).resolve().parent / "results"


def table(head: list[str], rows: list[list[str]]) -> None:
    """Print one table."""
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def recertification(stored: dict) -> None:
    """Print the positive fraction, the median and the certified fractions of each calculation."""
    print(f"### Recertification, confidence > 0.9, {stored['images']} test images, ", end="")
    print(f"{stored['selection_trials']} + {stored['estimation_trials']} proposals each\n")
    print(f"Retained {stored['retained']:.4f} of the proposals. Selected label correct: filtered ", end="")
    print(f"{stored['accuracy_filtered']:.4f}, unfiltered {stored['accuracy_unfiltered']:.4f}.\n")
    reported = [name for name in next(iter(stored["rules"].values())) if name.startswith(">")]
    rows = [
        [name, f"{row['positive']:.4f}", lower_text(row["median"]), *(f"{row[key]:.4f}" for key in reported)]
        for name, row in stored["rules"].items()
    ]
    table(["calculation", "positive", "median", *reported], rows)


def thresholds(stored: dict) -> None:
    """Print the nine thresholds on development and confirmation images."""
    confirmed = stored["images"] - stored["development_images"]
    print(
        f"### Threshold selection, {stored['development_images']} development and {confirmed} untouched images, ",
        end="",
    )
    print(f"{stored['estimation_trials']} proposals each\n")
    print(f"Objective: {stored['objective']} ({', '.join(stored['radii'])}). ", end="")
    print(f"Chosen on development images: {stored['chosen_on_development']}. ", end="")
    print(f"Best on untouched images: {stored['best_on_confirmation']}.\n")
    # Summaries of the first studies have no counts per radius.
    radii = stored["radii"] if "first_image" in stored else []
    rows = [
        [
            name,
            f"{row['development']:.4f}",
            f"{row['confirmation']:.4f}",
            f"{row['retained_confirmation']:.4f}",
            *(str(row["certified_confirmation"][radius]) for radius in radii),
        ]
        for name, row in stored["thresholds"].items()
    ]
    table(
        ["threshold", "development", "confirmation", "retained", *(f"untouched > {radius}" for radius in radii)], rows
    )


def band(stored: dict) -> None:
    """Print the certified images of each certificate under the projected band."""
    print(f"### Projected band from training images, {stored['images']} test images, ", end="")
    print(
        f"{stored['selection_trials']} + {stored['estimation_trials']} proposals in each of two independent streams\n"
    )
    print(f"Retained {stored['retained']:.4f} (exact value {stored['retained_exact_on_test_images']:.4f}). ", end="")
    print(
        f"One family of {stored['family']} bounds, error {stored['delta']} in all. Conditional Renyi exceeds an upper ",
        end="",
    )
    strong = stored["renyi_above_joint_upper_by"]
    print(f"bound on the joint-mass radius by at least {strong['margin']} at {strong['images']} images.\n")
    reported = list(next(iter(stored["certified"].values())))
    rows = [[name, *(str(row[key]) for key in reported)] for name, row in stored["certified"].items()]
    table(["certificate", *(f">= {key}" for key in reported)], rows)
    if "declared_images" in stored and stored["declared_images"] != stored["images"]:
        print(f"Of {stored['declared_images']} declared images these are the complete blocks so far. ", end="")
        print("The error is that of all declared images.\n")
    if "paired" in stored:
        for threshold, pair in stored["paired"].items():
            print(
                f"At {threshold}, conditional Renyi certifies {pair['only_first']} correct images that joint mass does "
                f"not, and joint mass {pair['only_second']} that Renyi does not (exact one-sided value "
                f"{pair['one_sided']:.3g}).",
                end=" ",
            )
        print("\n")
        classes = [
            [
                name,
                str(row["images"]),
                *(f"{row[key]:.3f}" for key in ("retained", "accuracy_filtered", "accuracy_unfiltered")),
                *(str(row[key]) for key in ("renyi", "joint", "strong")),
            ]
            for name, row in stored["classes"].items()
        ]
        head = ["class", "images", "retained", "correct, filtered", "correct, unfiltered", "Renyi", "joint", "strong"]
        table(head, classes)
        print(f"Renyi and joint: correct images certified at {reported[0]}. Strong: separated as above.\n")


def attack(stored: dict) -> None:
    """Print every verified label change."""
    plan = stored["plan"]
    print(f"### Endpoint attack, hash-ranked cohort of {plan['members']}\n")
    search = plan["search"]
    print(
        f"{search['restarts']} restarts of {search['steps']} steps with {search['proposals']} proposals, screens of ",
        end="",
    )
    print(
        f"{search['screen']}, {plan['confirmation']} fresh proposals per endpoint, family of {stored['family']}. ",
        end="",
    )
    print(
        f"Substituted radius positive: {stored['positive_radius']}. Positive screens: {stored['positive_screens']}. ",
        end="",
    )
    print(f"Verified inside the substituted radius: **{stored['verified_inside_substituted_radius']}**, ", end="")
    print(f"inside a sound radius: **{stored['changed_inside_a_sound_radius']}**.\n")
    rows = [
        [
            str(item["index"]),
            f"{item['selected']} to {item['target']}",
            upper_text(item["distance"]),
            lower_text(item["radius_lower"]),
            f"{item['distance'] / item['radius_lower']:.3f}",
            lower_text(item["sound_radius"]),
        ]
        for item in stored["verified"]
    ]
    if rows:
        table(["image", "labels", "distance", "substituted radius at least", "ratio", "certified radius"], rows)


def boundary(stored: dict) -> None:
    """Print every confirmed pair, verified or not."""
    print(f"### Output-selected boundary pairs, {stored['confirmation']} fresh proposals at each end\n")
    print(f"Of {len(stored['screens'])} candidates {len(stored['confirmations'])} pairs were confirmed, ", end="")
    print(f"in one family of {stored['family']}. Verified: **{stored['verified']}**. ", end="")
    print("The candidates were chosen by their counts, so this shows existence and no frequency.\n")
    rows = [
        [
            str(item["index"]),
            f"{item['original']} to {item['changed']}",
            upper_text(item["distance"]),
            lower_text(item["radius_lower"]),
            *(
                f"{item[end]['retained'][item['original']]} / {item[end]['retained'][item['changed']]}"
                for end in ("nominal", "shifted")
            ),
            "yes" if item["is_verified"] else "no",
        ]
        for item in stored["confirmations"]
    ]
    head = [
        "image",
        "labels",
        "distance",
        "substituted radius at least",
        "nominal counts",
        "shifted counts",
        "verified",
    ]
    table(head, rows)


def anytime(stored: dict) -> None:
    """Print what stopping early saved."""
    print(f"### Stopping early, filter {stored['filter']}, radius {stored['radius']:g}\n")
    print(f"{stored['images']} test images, at most {stored['most']} proposals, delta {stored['delta']} each. ", end="")
    print(f"The fixed number certifies {stored['certified_fixed']} of them with {stored['proposals_fixed']} ", end="")
    print(
        f"proposals. Stopping early certifies {stored['certified_anytime']} with {stored['proposals_anytime']}: ",
        end="",
    )
    print(f"{100 * stored['saved']:.1f}% of the proposals are saved.\n")


def main() -> None:
    """Print every network's studies."""
    print("# Image studies\n\nPrinted by `python experiments/images/tables.py` from the stored summaries.\n")
    print(
        "Counts whose head names the noise `ccfs-image-noise-1` were drawn before the noise was counter-based. Their "
        "heads were converted to the format of today. No count was changed. Their noise cannot be drawn again by this "
        "release.\n"
    )
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        print(f"## {folder.name}\n")
        for name, show in (
            ("recertify", recertification),
            ("thresholds", thresholds),
            ("band", band),
            ("attack", attack),
            ("boundary", boundary),
            ("anytime-none", anytime),
            ("anytime-confidence", anytime),
        ):
            path = folder / f"{name}.json"
            if path.exists():
                show(json.loads(path.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
