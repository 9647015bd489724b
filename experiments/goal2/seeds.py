"""Show that no certified reset seed was ever used for training, tuning, piloting or another certificate.

    python experiments/goal2/seeds.py

Reads every protocol of this folder, the cards of the shipped controllers and attack networks, and stored development
records.
"""

from __future__ import annotations

import csv
from pathlib import Path

from ccfs.attacks import learned
from ccfs.controllers import zoo
from ccfs.protocol.model import load_protocol

HERE = Path(__file__).resolve().parent
EARLIER = {
    "table, two million steps": range(1_000_000, 1_000_256),
    "guarded, two million steps": range(1_200_000, 1_200_256),
    "costs, two million steps": range(1_400_000, 1_400_256),
    "attacks, two million steps": range(1_500_000, 1_500_128),
    "ablation, two million steps": range(1_600_000, 1_600_064),
    "table, five million steps": range(2_000_000, 2_000_256),
    "guarded, five million steps": range(2_200_000, 2_200_256),
    "costs, five million steps": range(2_400_000, 2_400_256),
    "attacks, five million steps": range(2_500_000, 2_500_128),
    "ablation, five million steps": range(2_600_000, 2_600_064),
    "table, first edition": range(3_000_000, 3_000_256),
    "navigator, first edition": range(1_100_000, 1_100_256),
    "ladder, first edition": range(1_300_000, 1_301_024),
    "guarded, first edition": range(3_200_000, 3_200_256),
    "costs, first edition": range(3_400_000, 3_400_256),
    "attacks, first edition": range(3_500_000, 3_500_256),
    "ablation, first edition": range(3_600_000, 3_600_064),
    "table, before the stages": range(4_000_000, 4_000_256),
    "navigator, exact map": range(5_100_000, 5_100_256),
    "guarded, exact map": range(5_200_000, 5_200_256),
    "ladder, exact map": range(5_300_000, 5_301_024),
    "noisyguard, and then the tuning of its second version": range(5_940_000, 5_940_512),
}
"""Cohorts of earlier certificates: of agents with fewer training steps, with the noise of earlier formats, or of the
navigator before its map knew of rounding, or of a guard that was tuned further. Those results are in the history."""
DEVELOPMENT = range(3_000_000_000, 3_001_000_000)
"""Reset seeds of every tuning, piloting and test run of this study."""


def spans() -> dict[str, range]:
    """Return every span of reset seeds with what it is for: cohorts first, then whatever came before."""
    found = {}
    for path in sorted(HERE.glob("*.toml")):
        seeds = load_protocol(path).trials.seeds
        if seeds is None:  # drawn from the law, by the hash of the protocol: a claim about all seeds
            continue
        if tuple(seeds) != tuple(range(seeds[0], seeds[0] + len(seeds))):
            raise SystemExit(f"{path.name}: must have a cohort of consecutive reset seeds.")
        found[f"cohort of {path.name}"] = range(seeds[0], seeds[-1] + 1)
    found |= {f"earlier cohort of {name}": span for name, span in EARLIER.items()}
    for name in zoo.names():
        first, last = zoo.load(name).card.training_reset_seeds
        found[f"training of {name}"] = range(first, last + 1)
    found["development"] = DEVELOPMENT
    return found


def stray_development_seeds() -> list[int]:
    """Return seeds of the stored development records outside of the development span."""
    rows = (HERE.parent / "navigator" / "record.csv").read_text(encoding="utf-8").splitlines()[1:]
    used = {int(row.split(",")[1]) for row in rows}
    with (HERE / "pilots" / "harm.csv").open(newline="", encoding="utf-8") as file:
        for pilot in csv.DictReader(file):
            first = int(pilot["first reset seed"])
            used |= set(range(first, first + int(pilot["trials"])))
    for first, last in attack_seeds().values():
        used |= {first, last}
    return sorted(seed for seed in used if seed not in DEVELOPMENT)


def attack_seeds() -> dict[str, tuple[int, int]]:
    """Return the first and the last reset seed that each attack network was trained on, as its card says."""
    folder = Path(learned.__file__).parent / "networks"
    return {name: zoo.load(folder / name).card.training_reset_seeds for name in learned.shipped()}


def overlaps() -> list[tuple[str, str]]:
    """Return every pair of a cohort and something else that share a seed."""
    found = list(spans().items())
    return [
        (name, other)
        for i, (name, mine) in enumerate(found)
        for other, theirs in found[i + 1 :]
        if name.startswith("cohort") and mine.start < theirs.stop and theirs.start < mine.stop
    ]


def main() -> None:
    """Print the spans; exit 1 if a cohort shares a seed with anything."""
    for name, span in spans().items():
        print(f"{span.start:>13,} to {span.stop - 1:>13,}  {name}")
    faults = [f"{one} and {other} share seeds" for one, other in overlaps()]
    faults += [f"a development record used seed {seed}" for seed in stray_development_seeds()]
    if faults:
        raise SystemExit("\n".join(faults))
    print("No certified seed was used for anything else.")


if __name__ == "__main__":
    main()
