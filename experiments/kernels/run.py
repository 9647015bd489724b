"""Kernels that keep the Gaussian comparison, on convex partitions: certified radii against where labels really change.

    python experiments/kernels/run.py [--seed 20260805] [--out experiments/kernels] [--redraw]

For 30 skylines x 2 centers, each kernel's certificate is set beside the nearest label change of that same kernel,
searched on rays around the center and refined. `--redraw` makes the figure from the stored rows.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import mpmath as mp
import numpy as np
from scipy.optimize import brentq, minimize_scalar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import skylines
from _shared import commands, figures, records
from _shared.oracle import DIGITS, Oracle, relative_error
from matplotlib.patches import Circle, Rectangle

from ccfs.certificates.conditional import diameter_kl_radius, odds_radius
from ccfs.certificates.filtered import joint_mass_radius, substituted_radius
from ccfs.certificates.kernels import FixedMixture, fixed_repair, set_diameter

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/kernels/run.py"
ROWS, FIGURE = "rows.csv", "kernels.png"
SKYLINES, CENTERS = 30, 2
RAYS, STEP, FARTHEST = 48, 0.04, 2.0
# Population probabilities are doubles; moved outward by this much of themselves, as `FixedMixture.radius` does.
ALLOWANCE = 1e-9
CERTIFICATES = (
    ("repair", "gaussian"),
    ("fixed", "gaussian"),
    *((f"anchored {tau}", "pinsker") for tau in skylines.TEMPERATURES),
    ("conditioning", "joint mass"),
    ("conditioning", "odds"),
    ("conditioning", "diameter KL"),
    ("conditioning", "substituted, UNSOUND"),
)
Record = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    seed: int = field(default=20260805, metadata={"help": "root seed of skylines and centers"})
    sample: int = field(default=24, metadata={"help": "probabilities recomputed at 50 digits"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})
    redraw: bool = field(default=False, metadata={"help": "only draw the figure, from the stored rows"})


def nearest_change(probabilities: skylines.Probabilities, center: skylines.Array) -> float:
    """Return the least distance found at which the two labels tie; infinite when no ray meets one within FARTHEST.

    An upper bound on the true distance: a certificate must not exceed it.
    """

    def lead(points: skylines.Array) -> skylines.Array:
        values = probabilities(points)
        return np.asarray(values[..., 1] - values[..., 0])

    def along(angle: float, reach: float) -> float:
        unit = np.asarray([math.cos(angle), math.sin(angle)])
        grid = np.arange(0.0, reach + STEP, STEP)
        signs = np.sign(lead(center + grid[:, None] * unit))
        changed = np.flatnonzero(signs[1:] * signs[0] <= 0.0)
        if changed.size == 0:
            return math.inf
        first = int(changed[0])
        return float(brentq(lambda t: float(lead(center + t * unit)), grid[first], grid[first + 1], xtol=2e-13))

    angles = np.linspace(0.0, 2.0 * np.pi, RAYS, endpoint=False)
    units = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    grid = np.arange(0.0, FARTHEST, STEP)
    signs = np.sign(lead(center + grid[:, None, None] * units))
    changed = signs[1:] * signs[0] <= 0.0
    if not changed.any():
        return math.inf
    first = np.where(changed.any(axis=0), changed.argmax(axis=0), len(grid))
    reach = float(grid[first.min() + 1])
    candidates = np.flatnonzero(first <= first.min() + 1)
    distances = [along(float(angles[ray]), reach + STEP) for ray in candidates]
    best = float(angles[candidates[int(np.argmin(distances))]])
    gap = 2.0 * np.pi / RAYS
    refined = minimize_scalar(
        lambda angle: min(along(angle, reach + STEP), FARTHEST),
        bounds=(best - gap, best + gap),
        method="bounded",
        options={"xatol": 1e-3, "maxiter": 12},
    )
    return min(float(refined.fun), min(distances))


def certified(skyline: skylines.Skyline, center: skylines.Array, kernel: str, certificate: str) -> float:
    """Return one certificate's radius at a center."""
    if kernel == "fixed":
        mixture = FixedMixture(components=skyline.components, weights=skyline.weights)
        return mixture.radius(center, skyline.regions, skyline.labels)
    if certificate == "pinsker":
        anchored = skyline.anchored(center, float(kernel.split()[1]))
        return anchored.radius(center, skyline.regions, skyline.labels)
    if kernel == "repair":
        top, runner = _outward(skyline.repair(center))
        return fixed_repair(sigma=skylines.SIGMA).radius(top, runner)
    if certificate == "joint mass":
        return joint_mass_radius(*_outward(skyline.joint_masses(center)), skylines.SIGMA)
    top, runner = _outward(skyline.conditioning(center))
    if certificate == "substituted, UNSOUND":
        return substituted_radius(top, runner, skylines.SIGMA)
    diameter = set_diameter(skyline.components)
    rule = odds_radius if certificate == "odds" else diameter_kl_radius
    return rule(top, runner, sigma=skylines.SIGMA, diameter=diameter)


def center_rows(number: int, place: int, seed: int) -> list[Record]:
    """Compute every certificate at one center, beside the nearest label change of its own kernel."""
    skyline, center = skylines.draw(number, seed), skylines.center(number, seed, place)
    kernels = skyline.kernels(center)
    boundary = {name: nearest_change(probabilities, center) for name, probabilities in kernels.items()}
    return [
        {
            "skyline": number,
            "columns": skyline.components.count,
            "place": place,
            "kernel": kernel,
            "certificate": certificate,
            "top_probability": float(kernels[kernel](center).max()),
            "radius": certified(skyline, center, kernel, certificate),
            "boundary": boundary[kernel],
        }
        for kernel, certificate in CERTIFICATES
    ]


def compute(seed: int) -> records.Table:
    """Compute every row."""
    rows = [row for n in range(SKYLINES) for place in range(CENTERS) for row in center_rows(n, place, seed)]
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def summarise(rows: records.Table) -> Record:
    """Derive the summary from the rows alone."""
    found: dict[str, Record] = {}
    for kernel, certificate in CERTIFICATES:
        here = (rows["kernel"] == kernel) & (rows["certificate"] == certificate)
        radius, boundary = rows["radius"][here], rows["boundary"][here]
        met = np.isfinite(boundary)
        share = radius[met] / boundary[met]
        found[f"{kernel}: {certificate}"] = {
            "centers": int(here.sum()),
            "label_change_located": int(met.sum()),
            "crosses": int((radius > boundary).sum()),
            "median_radius": float(np.median(radius)),
            "median_share_of_boundary": float(np.median(share)),
            "greatest_share_of_boundary": float(share.max()),
        }
    return {"rows": len(rows["radius"]), "certificates": found}


def sample_errors(rows: records.Table, seed: int, sample: int) -> dict[str, float]:
    """Recompute top probabilities of the mixtures and of conditioning at 50 digits."""
    worst: dict[str, float] = {}
    for index in np.random.default_rng([seed, SKYLINES]).choice(len(rows["radius"]), size=sample, replace=False):
        number, place, kernel = int(rows["skyline"][index]), int(rows["place"][index]), str(rows["kernel"][index])
        skyline, center = skylines.draw(number, seed), skylines.center(number, seed, place)
        with mp.workdps(DIGITS):
            point = [mp.mpf(float(x)) for x in center]
            pieces = Oracle(skyline.regions.lows, skyline.regions.highs, skylines.SIGMA).box_masses(point)
            pairs = list(zip(pieces[::2], pieces[1::2], strict=True))
            if kernel == "repair":
                # A clip moves the lateral coordinate into its column and keeps the order in the other.
                levels = [(mp.mpf(float(y)) - point[1]) / skylines.SIGMA for y in skyline.regions.highs[::2, 1]]
                pairs = [(mp.ncdf(level), mp.ncdf(-level)) for level in levels]
            shares = [mp.mpf(float(w)) for w in skyline.weights]
            if kernel not in ("repair", "fixed"):
                # At the anchor itself every temperature has the weights of conditioning.
                shares = [sum(pair) / mp.fsum(pieces) for pair in pairs]
            values = [mp.mpf(0), mp.mpf(0)]
            for box, (share, pair) in enumerate(zip(shares, pairs, strict=True)):
                for piece, mass in enumerate(pair):
                    values[skyline.labels[2 * box + piece]] += share * mass / sum(pair)
        error = relative_error(float(rows["top_probability"][index]), max(values))
        worst[kernel] = max(worst.get(kernel, 0.0), error)
    return dict(sorted(worst.items()))


def figure(rows: records.Table, seed: int, path: Path) -> None:
    """Panel A: one skyline with radii at a center. Panel B: every radius as a share of its own boundary."""
    drawn, (left, right) = figures.panels(2, width=10.4, height=4.6)
    number, place = 1, 0
    skyline, center = skylines.draw(number, seed), skylines.center(number, seed, place)
    for low, high, label in zip(skyline.regions.lows, skyline.regions.highs, skyline.labels, strict=True):
        color = figures.BLUE if label else figures.GREEN
        left.add_patch(Rectangle(tuple(low), *(high - low), facecolor=color, alpha=0.25, edgecolor="none"))
    left.plot(*center, "o", color=figures.INK, ms=4)
    warm, cold = ("#e3b04b", figures.ORANGE, "#a8571c"), (figures.INK, "#6c5aa8", "#9d8fd1")
    colors = (figures.BLUE, figures.GREEN, *warm, *cold, figures.RED)
    names = [f"{kernel}: {certificate}" for kernel, certificate in CERTIFICATES]
    for level, ((kernel, certificate), color) in enumerate(zip(CERTIFICATES, colors, strict=True)):
        here = (rows["kernel"] == kernel) & (rows["certificate"] == certificate)
        share = np.minimum(rows["radius"][here] / rows["boundary"][here], 3.0)
        jitter = np.random.default_rng(level).uniform(-0.22, 0.22, size=share.size)
        right.scatter(share, level + jitter, s=9, alpha=0.6, lw=0, color=color)
        shown = here & (rows["skyline"] == number) & (rows["place"] == place)
        left.add_patch(Circle(tuple(center), float(rows["radius"][shown][0]), fill=False, edgecolor=color, lw=1.4))
    left.set_xlim(-1.1, 1.1)
    left.set_ylim(skyline.components.lows[:, 1].min() - 0.1, skyline.components.highs[:, 1].max() + 0.1)
    left.set_aspect("equal")
    left.set_title("A  radii at one center")
    left.set_xlabel("$z_1$")
    left.set_ylabel("$z_2$")
    right.axvline(1.0, color=figures.INK, lw=1.0, ls="--")
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set_xlim(0.0, None)
    right.set_xlabel("radius / nearest label change of the same kernel")
    right.set_title("B  beyond 1 is wrong")
    figures.save(drawn, path)


def main(words: list[str] | None = None) -> None:
    """Run the study, store it, and print what matters."""
    arguments = commands.parse(Arguments, __doc__.splitlines()[0], words)
    out = Path(arguments.out)
    if not arguments.redraw:
        out.mkdir(parents=True, exist_ok=True)
        records.write_table(out / ROWS, compute(arguments.seed))
        rows = records.read_table(out / ROWS)
        worst = sample_errors(rows, arguments.seed, arguments.sample)
        print(f"worst relative error against 50 digits, {arguments.sample} probabilities: {worst}")
        oracle = {"digits": DIGITS, "sampled_rows": arguments.sample, "worst_relative_error": worst}
        records.write_summary(out, {**summarise(rows), "oracle": oracle}, command=commands.spelled(SCRIPT, arguments))
        records.seal(out, (ROWS, records.SUMMARY))
    figure(records.read_table(out / ROWS), arguments.seed, out / FIGURE)
    print(f"wrote {out}")


def _outward(values: skylines.Array) -> tuple[float, float]:
    return float(values.max()) * (1.0 - ALLOWANCE), min(float(values.min()) * (1.0 + ALLOWANCE), 1.0)


if __name__ == "__main__":
    main()
