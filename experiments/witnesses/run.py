"""The paper's three exact witnesses: points in exact fractions, curves in doubles, one figure each from stored numbers.

    python experiments/witnesses/run.py [--out experiments/witnesses] [--redraw]

`points.json` holds the proved enclosures of `ccfs witness`; the other files hold curves that only illustrate them.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import mpmath as mp
import numpy as np
from scipy.optimize import brentq

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _shared import commands, figures, records
from _shared.oracle import DIGITS, Oracle, quantile, relative_error
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle
from matplotlib.ticker import MaxNLocator

from ccfs.certificates.conditional import forward_kl_radius, renyi_radius
from ccfs.certificates.filtered import joint_mass_radius, substituted_radius
from ccfs.certificates.occupancy import BoxUnion
from ccfs.gallery.witness import document, pages

HERE = Path(__file__).resolve().parent
SCRIPT = "experiments/witnesses/run.py"
POINTS, TAILS, EDGE, BANDS = "points.json", "confidence_filter.csv", "l_shape.csv", "two_band.csv"
PICTURES = ("confidence_filter.png", "l_shape.png", "two_band.png")
CENTER, SHIFTED, THRESHOLD, HEIGHT, SCALE = 0.65, 0.66, 0.633, 0.49, 0.15
TWO_TAILS = BoxUnion([[-np.inf], [1.0]], [[-1.0], [np.inf]], 1.0)
L_SHAPE = BoxUnion([[0.0, 0.0], [THRESHOLD, 0.0], [0.0, 0.5]], [[THRESHOLD, 0.5], [1.0, 0.5], [0.5, 1.0]], SCALE)
L_LABELS = (0, 1, 0)
TWO_BANDS = BoxUnion([[-np.inf, -1.0], [-np.inf, 0.9]], [[np.inf, -0.9], [np.inf, 1.0]], 1.0)
Record = dict[str, object]
Points = dict[tuple[str, str], tuple[Fraction, Fraction]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What the command accepts."""

    sample: int = field(default=24, metadata={"help": "curve points recomputed at 50 digits, per curve"})
    out: str = field(default=str(HERE), metadata={"help": "folder to write to"})
    redraw: bool = field(default=False, metadata={"help": "only draw the figures, from the stored numbers"})


def confidence_curve() -> records.Table:
    """Return, over centers, the conditional probability of label zero and both radii around the center."""
    rows: list[Record] = []
    for center in np.linspace(-0.4, 0.4, 81).round(3).tolist():
        left, right = (float(mass) for mass in TWO_TAILS.label_masses([center], (0, 1)))
        rows.append({"center": center, "label_zero": left / (left + right), **_radii(left, right, 1.0)})
    return _columns(rows)


def decision_edge() -> records.Table:
    """Return the curve of centers at which the L-shape's event has conditional probability one half."""

    def lead(first: float, second: float) -> float:
        inside, outside = L_SHAPE.log_label_masses([first, second], L_LABELS)
        return float(inside - outside)

    heights = np.linspace(0.44, 0.54, 51).round(4).tolist()
    rows = [{"second": y, "first": float(brentq(lead, 0.0, 2.0, args=(y,), xtol=2e-13))} for y in heights]
    return _columns(rows)


def band_curves() -> records.Table:
    """Return the radii of the two-band family over the exact boundary distance."""
    rows: list[Record] = []
    for distance in np.linspace(0.005, 0.5, 100).round(4).tolist():
        lower, upper = (float(mass) for mass in TWO_BANDS.label_masses([0.0, -distance], (0, 1)))
        p, q = lower / (lower + upper), upper / (lower + upper)
        covariance = {
            "forward_kl": forward_kl_radius(p, q, sigma=1.0, covariance_ratio=1.0),
            "renyi": renyi_radius(p, q, sigma=1.0, covariance_ratio=1.0),
        }
        rows.append({"boundary": distance, "top_probability": p, **_radii(lower, upper, 1.0), **covariance})
    return _columns(rows)


def summarise(proved: Points, tables: dict[str, records.Table]) -> Record:
    """Derive the summary from the stored numbers alone."""
    bands, tails = tables[BANDS], tables[TAILS]
    at = int(np.argmin(np.abs(bands["boundary"] - 0.1)))
    center = int(np.argmin(np.abs(tails["center"] + 0.1)))
    height = int(np.argmin(np.abs(tables[EDGE]["second"] - HEIGHT)))
    return {
        "enclosures": len(proved),
        "confidence_filter": {name: float(tails[name][center]) for name in ("label_zero", "joint", "substituted")},
        "l_shape": {"boundary_first": float(tables[EDGE]["first"][height])},
        "two_band": {
            name: float(bands[name][at]) for name in ("top_probability", "joint", "forward_kl", "renyi", "substituted")
        },
        "two_band_sound_radii_beyond_boundary": int(
            sum((bands[name] > bands["boundary"]).sum() for name in ("joint", "forward_kl", "renyi"))
        ),
        "two_band_substituted_beyond_boundary": int((bands["substituted"] > bands["boundary"]).sum()),
        "two_band_points": len(bands["boundary"]),
    }


def sample_errors(tables: dict[str, records.Table], sample: int) -> dict[str, float]:
    """Recompute random curve points at 50 digits and return the worst relative errors."""
    rng, errors = np.random.default_rng(1), []
    with mp.workdps(DIGITS):
        for index in rng.choice(len(tables[BANDS]["boundary"]), size=sample, replace=False):
            row = {name: float(column[index]) for name, column in tables[BANDS].items()}
            low, high = Oracle([[-1.0], [0.9]], [[-0.9], [1.0]], 1.0).box_masses([-mp.mpf(row["boundary"])])
            p, q = low / (low + high), high / (low + high)
            cost = p * mp.log(2 * p) + q * mp.log(2 * q)
            exact = {
                "joint": (quantile(low) - quantile(high)) / 2,
                "substituted": (quantile(p) - quantile(q)) / 2,
                "forward_kl": mp.sqrt(2 * cost),
            }
            errors.append({name: relative_error(row[name], value) for name, value in exact.items()})
    return {name: max(error[name] for error in errors) for name in errors[0]}


def read_points(path: Path) -> Points:
    """Read the proved enclosures, by witness and quantity."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {
        (page["name"], entry["name"]): (Fraction(entry["lower_exact"]), Fraction(entry["upper_exact"]))
        for page in content["witnesses"]
        for entry in page["quantities"]
    }


def draw_confidence_filter(proved: Points, tables: dict[str, records.Table], path: Path) -> None:
    """Draw the conditional vote over centers, and the two intervals around a."""
    drawn, (left, right) = figures.panels(2, width=9.6, height=3.4)
    tails = tables[TAILS]
    a = -0.1
    for low, high, color, label in ((-2.6, -1.0, figures.GREEN, "label 0"), (1.0, 2.6, figures.BLUE, "label 1")):
        grid = np.linspace(low, high, 200)
        left.fill_between(grid, np.exp(-0.5 * (grid - a) ** 2), color=color, alpha=0.35, lw=0, label=f"kept, {label}")
    grid = np.linspace(-2.6, 2.6, 400)
    left.plot(grid, np.exp(-0.5 * (grid - a) ** 2), color=figures.INK, lw=1.0)
    left.plot([a], [0.0], "o", color=figures.INK, ms=4, clip_on=False)
    left.annotate("a", (a, 0.03), ha="center")
    left.set_yticks([])
    left.set_ylim(0.0, 1.35)
    left.set_xlabel("proposal u")
    left.set_title("A  what the filter keeps")
    left.legend(loc="upper right", ncols=2)
    right.plot(tails["center"], tails["label_zero"], color=figures.INK, lw=1.4)
    right.axhline(0.5, color=figures.GREY, lw=0.8, ls=":")
    right.axvline(0.0, color=figures.INK, lw=1.0, ls="--")
    for name, level, color, label in (
        ("substituted_radius", 0.30, figures.RED, "substituted radius: crosses"),
        ("joint_mass_radius", 0.24, figures.GREEN, "joint-mass radius: ends at the boundary"),
    ):
        radius = float(proved["confidence-filter", name][0])
        right.plot([a - radius, a + radius], [level, level], "|-", color=color, lw=2.0, ms=9, label=label)
    right.plot([0.01], [0.30], "D", color=figures.INK, ms=4, label="b = 0.01: the other label wins")
    right.plot([a], [float(proved["confidence-filter", "top_probability"][0])], "o", color=figures.INK, ms=5)
    right.set_ylim(0.15, 1.0)
    right.set_xlabel("center")
    right.set_ylabel("conditional probability of label 0")
    right.set_title("B  the label changes at zero")
    right.legend(loc="upper right", frameon=True, facecolor="white", edgecolor="none", framealpha=1.0)
    figures.save(drawn, path)


def draw_l_shape(proved: Points, tables: dict[str, records.Table], path: Path) -> None:
    """Draw support, event and displacement, then the neighbourhood of a with the decision boundary."""
    drawn, (left, right) = figures.panels(2, width=9.6, height=4.4)
    for axes in (left, right):
        _l_shape_patches(axes)
        axes.plot([CENTER], [HEIGHT], "o", color=figures.INK, ms=4)
        axes.plot([SHIFTED], [HEIGHT], "D", color=figures.RED, ms=4)
        axes.set_xlabel("$z_1$")
        axes.set_aspect("equal")
    left.set_ylabel("$z_2$")
    left.text(0.22, 0.72, "E", ha="center", fontsize=13)
    left.text(0.82, 0.2, "K without E", ha="center")
    left.annotate("a, b", (CENTER, HEIGHT), (CENTER + 0.06, HEIGHT + 0.09), arrowprops={"arrowstyle": "-", "lw": 0.7})
    left.set_xlim(-0.05, 1.05)
    left.set_ylim(-0.05, 1.05)
    left.set_title("A  support and event")
    radius = float(proved["l-shape", "substituted_radius"][0])
    right.add_patch(Circle((CENTER, HEIGHT), radius, fill=False, edgecolor=figures.RED, lw=1.6))
    right.plot(tables[EDGE]["first"], tables[EDGE]["second"], color=figures.INK, lw=1.4, ls="--")
    right.annotate("a", (CENTER, HEIGHT), (-11, 4), textcoords="offset points")
    right.annotate("b", (SHIFTED, HEIGHT), (6, 4), textcoords="offset points")
    right.plot([], [], color=figures.RED, lw=1.6, label="substituted radius")
    right.plot([], [], color=figures.INK, lw=1.4, ls="--", label="conditional decision boundary")
    right.set_xlim(CENTER - 0.022, CENTER + 0.022)
    right.set_ylim(HEIGHT - 0.022, HEIGHT + 0.022)
    right.xaxis.set_major_locator(MaxNLocator(5))
    right.set_title("B  the label changes inside")
    right.legend(loc="lower left", facecolor="white", frameon=True, edgecolor="none", framealpha=0.85)
    figures.save(drawn, path)


def draw_two_band(proved: Points, tables: dict[str, records.Table], path: Path) -> None:
    """Draw the radii over the boundary distance, with the proved points at 0.1."""
    drawn, (axes,) = figures.panels(1, width=6.4, height=4.3)
    bands = tables[BANDS]
    axes.plot(bands["boundary"], bands["boundary"], color=figures.INK, lw=1.2, ls="--", label="exact boundary")
    for name, quantity, color, label in (
        ("substituted", "substituted_radius", figures.RED, "substituted (unsound)"),
        ("renyi", "", figures.ORANGE, "conditional Rényi, sound"),
        ("forward_kl", "covariance_radius", figures.BLUE, "conditional forward KL, sound"),
        ("joint", "joint_mass_radius", figures.GREEN, "joint mass, sound"),
    ):
        axes.plot(bands["boundary"], bands[name], color=color, lw=1.6, label=label)
        if quantity:
            axes.plot([0.1], [float(proved["two-band", quantity][0])], "o", color=color, ms=5)
    axes.set_xlim(0.0, 0.5)
    axes.set_ylim(0.0, 0.62)
    axes.set_xlabel("distance δ of the center from the decision boundary")
    axes.set_ylabel("radius")
    axes.set_title("Two bands: points at δ = 0.1 are proved in fractions")
    axes.legend(loc="upper left")
    figures.save(drawn, path)


def main(words: list[str] | None = None) -> None:
    """Compute and store the numbers, then draw from what was stored."""
    arguments = commands.parse(Arguments, __doc__.splitlines()[0], words)
    out = Path(arguments.out)
    if not arguments.redraw:
        out.mkdir(parents=True, exist_ok=True)
        (out / POINTS).write_text(document(pages()) + "\n", encoding="utf-8")
        for name, maker in ((TAILS, confidence_curve), (EDGE, decision_edge), (BANDS, band_curves)):
            records.write_table(out / name, maker())
        proved, tables = read(out)
        worst = sample_errors(tables, arguments.sample)
        print(f"worst relative error against 50 digits, {arguments.sample} points: {worst}")
        oracle = {"digits": DIGITS, "sampled_points": arguments.sample, "worst_relative_error": worst}
        summary = {**summarise(proved, tables), "oracle": oracle}
        records.write_summary(out, summary, command=commands.spelled(SCRIPT, arguments))
        records.seal(out, (POINTS, TAILS, EDGE, BANDS, records.SUMMARY))
    proved, tables = read(out)
    for name, draw in zip(PICTURES, (draw_confidence_filter, draw_l_shape, draw_two_band), strict=True):
        draw(proved, tables, out / name)
    print(f"wrote {out}")


def read(folder: Path) -> tuple[Points, dict[str, records.Table]]:
    """Read the proved points and every stored curve."""
    return read_points(folder / POINTS), {name: records.read_table(folder / name) for name in (TAILS, EDGE, BANDS)}


def _radii(top: float, runner: float, sigma: float) -> Record:
    """Return joint-mass and substituted radius of the greater of two joint masses."""
    high, low = max(top, runner), min(top, runner)
    total = high + low
    return {
        "joint": joint_mass_radius(high, low, sigma),
        "substituted": substituted_radius(high / total, low / total, sigma),
    }


def _columns(rows: list[Record]) -> records.Table:
    return {name: np.asarray([row[name] for row in rows]) for name in rows[0]}


def _l_shape_patches(axes: Axes) -> None:
    for low, high, label in zip(L_SHAPE.lows, L_SHAPE.highs, L_LABELS, strict=True):
        color = figures.BLUE if label else figures.GREEN
        axes.add_patch(Rectangle(tuple(low), *(high - low), facecolor=color, alpha=0.28, lw=0))


if __name__ == "__main__":
    main()
