"""How many model calls stopping early saves: draw until a radius is certified or hopeless, against a fixed number.

    python experiments/images/anytime.py --network mnist-small-sigma1 --int8 --images 50

Both use the same delta per image and the same greatest number of proposals, on noise of their own. It prints and stores
one line per image, and continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from ccfs.certificates.filtered import JointMassCertificate
from ccfs.files.atomic import write_atomically
from ccfs.images import ConfidenceFilter, FilteredSmoother, NoFilter, load_images
from ccfs.images.counts import model_digest
from ccfs.images.folder import Asked
from ccfs.images.networks import ZOO

RESULTS = Path(__file__).resolve().parent / "results"
DELTA, SELECTION, MOST, SEED = 0.001, 100, 10_000, 20261120


def summary(rows: list[dict[str, int | bool]]) -> dict[str, float]:
    """Return what the lines say together. The calls of the selection are the same for both and are not counted."""
    used, allowed = sum(int(row["trials"]) for row in rows), MOST * len(rows)
    return {
        "images": len(rows),
        "certified_fixed": sum(bool(row["fixed"]) for row in rows),
        "certified_anytime": sum(bool(row["anytime"]) for row in rows),
        "proposals_fixed": allowed,
        "proposals_anytime": used,
        "saved": 1.0 - used / allowed,
    }


def main() -> None:
    """Read the command line, and go through the images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", required=True, help="a shipped network")
    parser.add_argument("--int8", action="store_true", help="its 8-bit form")
    parser.add_argument("--filter", choices=("none", "confidence"), default="none")
    parser.add_argument("--images", type=int, default=50, help="test images, from the first on")
    parser.add_argument("--multiple", type=float, default=1.0, help="the wanted radius, in multiples of sigma")
    parser.add_argument("--batch", type=int, default=250, help="proposals per model call and between two looks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = json.loads((ZOO / arguments.network / "card.json").read_text(encoding="utf-8"))["recipe"]
    sigma = float(recipe["sigma"])
    asked = Asked(dataset=recipe["dataset"], network=arguments.network, sigma=sigma, int8=arguments.int8)
    model, images = asked.model_of(), load_images(recipe["dataset"], "test")
    rule = NoFilter() if arguments.filter == "none" else ConfidenceFilter(0.9)
    smoother = FilteredSmoother(model, sigma, rule, len(images.classes), seed=SEED)
    head = {
        "network_sha256": model_digest(model),
        "filter": arguments.filter,
        "sigma": sigma,
        "radius": arguments.multiple * sigma,
        "delta": DELTA,
        "seed": SEED,
        "most": MOST,
        "batch": arguments.batch,
    }
    name = f"{arguments.network}-int8" if arguments.int8 else arguments.network
    path = arguments.results / name / f"anytime-{arguments.filter}.json"
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    rows = stored["rows"] if {key: stored.get(key) for key in head} == head else []
    for index in range(len(rows), arguments.images):
        image, sizes = images.center(index).transpose(2, 0, 1), (SELECTION, MOST, DELTA, arguments.batch)
        fixed = smoother.certify(image, *sizes, index=index)
        early = smoother.certify_until(image, *sizes, radius=float(head["radius"]), index=index)
        answers = [
            isinstance(answer, JointMassCertificate) and answer.radius > head["radius"]
            for answer in (fixed, early.answer)
        ]
        rows.append({"index": index, "fixed": answers[0], "anytime": answers[1], "trials": early.trials})
        content = {**head, **summary(rows), "rows": rows}
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    print(json.dumps(summary(rows)))


if __name__ == "__main__":
    main()
