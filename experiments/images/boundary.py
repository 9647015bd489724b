"""The output-selected boundary study: pairs of close images between which the filtered label is proved to change.

Candidates come from counts that everybody has seen: images that the filter gets right, although its label is weak or
beaten among all drawn proposals. A search and fresh screens choose at most six pairs, which are then fixed. Each end of
a pair gets a million fresh proposals, and all tests are one family. The study shows that such pairs exist. It says
nothing about how many there are, because the candidates were chosen by their counts.

    python experiments/images/boundary.py --network mnist-small-sigma1 --int8

Every step is stored, and the same command continues.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ccfs.certificates.images import Rule, verdict
from ccfs.files.atomic import write_atomically
from ccfs.images import ConfidenceFilter, CountRow, CountTable, load_images, read_counts
from ccfs.images.attack import Confirmation, SearchPlan, confirm, family_size, search
from ccfs.images.counts import model_digest
from ccfs.images.folder import Asked
from ccfs.images.networks import ZOO
from ccfs.images.smoother import Counter

RESULTS = Path(__file__).resolve().parent / "results"
DELTA = 0.001
CANDIDATES, PAIRS = 12, 6
FILTERED = "confidence>0.9"


def candidates(table: CountTable) -> list[tuple[CountRow, int]]:
    """Return the twelve most promising images and their labels, from counts alone.

    The filtered label must be the true one, and its substituted radius positive. The order is that of the label's lead
    over the strongest other label among all drawn proposals. It is negative where filtered and unfiltered labels
    differ, so these images come first.
    """
    plain = {row.index: row for row in table.variant("none")}
    found = []
    for row in table.variant(FILTERED):
        claim = verdict(Rule.SUBSTITUTED, row.selection, row.estimation, sigma=table.key.sigma, delta=DELTA)
        if claim.selected == row.label and claim.radius > 0.0:
            drawn = plain[row.index].estimation.retained
            lead = drawn[row.label] - max(count for label, count in enumerate(drawn) if label != row.label)
            found.append((lead, row.index, row))
    return [(row, lead) for lead, _, row in sorted(found, key=lambda item: item[:2])[:CANDIDATES]]


class Boundary:
    """One network, the counts that chose its candidates, and the folder of its pairs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        recipe = json.loads((ZOO / arguments.network / "card.json").read_text(encoding="utf-8"))["recipe"]
        asked = Asked(
            dataset=recipe["dataset"], network=arguments.network, sigma=float(recipe["sigma"]), int8=arguments.int8
        )
        name = f"{arguments.network}-int8" if arguments.int8 else arguments.network
        self.results: Path = arguments.results / name
        self.folder = self.results / "boundary"
        self.table = read_counts(self.results / arguments.opened / "counts.parquet")
        self.opened, self.trials, self.seed = arguments.opened, arguments.trials, arguments.seed
        self.plan = SearchPlan(
            restarts=arguments.restarts,
            steps=arguments.steps,
            proposals=arguments.proposals,
            screen=arguments.screen,
            threshold=0.9,
            ranking="drawn",
        )
        self.images = load_images(recipe["dataset"], "test")
        model, leader = asked.model_of() if arguments.int8 else asked.float_form(), asked.float_form()
        self.leader = model_digest(leader)
        if (model_digest(model), self.images.digest) != (self.table.key.model_sha256, self.table.key.dataset_sha256):
            raise SystemExit("the opened counts are of another network or other images than those loaded here.")
        sigma, classes = self.table.key.sigma, self.table.key.num_classes
        self.counter, self.climber = (
            Counter(part, sigma, ConfidenceFilter(0.9), classes, arguments.batch) for part in (model, leader)
        )

    @property
    def head(self) -> dict[str, object]:
        """What decides the study. A folder with another one is refused."""
        return {
            "counts": self.table.key.hash,
            "gradients": self.leader,
            "search": self.plan.model_dump(mode="json"),
            "confirmation": self.trials,
            "seed": self.seed,
            "delta": DELTA,
        }

    def stored(self, name: str) -> dict[str, object] | None:
        """Return a finished step, or None."""
        path = self.folder / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    def store(self, name: str, content: dict[str, object]) -> dict[str, object]:
        """Write a finished step."""
        write_atomically(self.folder / f"{name}.json", (json.dumps(content, indent=1) + "\n").encode())
        return content

    def screened(self, row: CountRow) -> dict[str, object]:
        """Search and screen at one candidate, and keep the best center."""
        claim = verdict(Rule.SUBSTITUTED, row.selection, row.estimation, sigma=self.table.key.sigma, delta=DELTA)
        drawn = next(item for item in self.table.variant("none") if item.index == row.index)
        best = search(
            self.counter,
            self.images.center(row.index),
            drawn.estimation,
            original=row.label,
            radius=claim.radius,
            sigma=self.table.key.sigma,
            plan=self.plan,
            run=f"boundary {self.table.key.hash}",
            seed=self.seed,
            index=row.index,
            climber=self.climber,
        )[0]
        stream = io.BytesIO()
        np.save(stream, best.center, allow_pickle=False)
        write_atomically(self.center_path(row.index), stream.getvalue())
        return {
            "index": row.index,
            "original": row.label,
            "target": best.target,
            "substituted_radius": claim.radius,
            "margin": best.margin,
            "screen": list(best.screen.retained),
            "center_sha256": hashlib.sha256(stream.getvalue()).hexdigest(),
        }

    def center_path(self, index: int) -> Path:
        """Return the file of a moved center. It is derived from an image of the data set, so it is not committed."""
        return self.folder / "centers" / f"{index}.npy"

    def confirmed(self, pair: dict[str, object]) -> dict[str, object]:
        """Draw the million proposals of both ends of one fixed pair."""
        index = int(str(pair["index"]))
        content = self.center_path(index).read_bytes()
        if hashlib.sha256(content).hexdigest() != pair["center_sha256"]:
            raise SystemExit(f"the center of image {index} was changed after the pairs were fixed.")
        moved: NDArray[np.float32] = np.load(io.BytesIO(content), allow_pickle=False)
        result: Confirmation = confirm(
            self.counter,
            self.images.center(index),
            moved,
            original=int(str(pair["original"])),
            changed=int(str(pair["target"])),
            trials=self.trials,
            sigma=self.table.key.sigma,
            delta=DELTA,
            members=PAIRS,
            run=f"boundary {self.table.key.hash}",
            seed=self.seed,
            index=index,
        )
        kept = {"index": index, "is_changed": result.is_changed, "is_verified": result.is_verified}
        return {**kept, **asdict(result)}


def run(study: Boundary) -> None:
    """Search, screen, fix the pairs, confirm them, and write the summary."""
    known = study.stored("head")
    if known is not None and known != study.head:
        raise SystemExit(f"{study.folder} belongs to another study. Use another folder.")
    study.store("head", study.head)
    chosen = candidates(study.table)
    screens = []
    for row, lead in chosen:
        name = f"screen-{row.index}"
        screens.append(study.stored(name) or study.store(name, {**study.screened(row), "lead": lead}))
        print(f"screened image {row.index}: margin {screens[-1]['margin']}", flush=True)
    ranked = sorted(screens, key=lambda item: (-int(str(item["margin"])), int(str(item["index"]))))
    pairs = [item for item in ranked if int(str(item["margin"])) > 0][:PAIRS]
    # Written before the first confirmation: order, labels and centers are fixed from here on.
    fixed = study.stored("pairs") or study.store("pairs", {"pairs": pairs})
    if fixed != {"pairs": pairs}:
        raise SystemExit("the fixed pairs are not those that the screens give.")
    confirmations = []
    for pair in pairs:
        name = f"confirmation-{pair['index']}"
        confirmations.append(study.stored(name) or study.store(name, study.confirmed(pair)))
        print(f"confirmed image {pair['index']}: verified {confirmations[-1]['is_verified']}", flush=True)
    summary = {
        **study.head,
        "network": study.results.name,
        "sigma": study.table.key.sigma,
        "opened": study.opened,
        "family": family_size(PAIRS, study.table.key.num_classes),
        "screens": screens,
        "confirmations": confirmations,
        "verified": sum(bool(item["is_verified"]) for item in confirmations),
    }
    write_atomically(study.results / "boundary.json", (json.dumps(summary, indent=1) + "\n").encode())
    print(f"wrote {study.results / 'boundary.json'}: {summary['verified']} of {len(pairs)} pairs verified")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", required=True, help="a shipped network")
    parser.add_argument("--int8", action="store_true", help="its 8-bit form, with gradients of the float one")
    parser.add_argument("--opened", default="thresholds", help="the counts that choose the candidates")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--proposals", type=int, default=256)
    parser.add_argument("--screen", type=int, default=50_000)
    parser.add_argument("--trials", type=int, default=1_000_000, help="fresh proposals at each end of a pair")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--seed", type=int, default=20261119)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    run(Boundary(arguments))


if __name__ == "__main__":
    main()
