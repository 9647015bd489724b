"""The paper's three exact witnesses as text: proved enclosures, the claims that follow, and what each shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ccfs import __version__
from ccfs.certificates.rational import Interval
from ccfs.certificates.witnesses import (
    ConfidenceFilterWitness,
    LShapeWitness,
    StrictCheck,
    TwoBandWitness,
    confidence_filter,
    l_shape,
    two_band,
)

__all__ = ["SCHEMA", "Quantity", "WitnessPage", "document", "pages", "render"]

SCHEMA = "ccfs.witness/1"
PLACES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """One number of a witness: its field name, the paper's symbol and its enclosure (a point when known exactly)."""

    name: str
    symbol: str
    value: Interval

    @property
    def is_exact(self) -> bool:
        """Whether the number is known as a fraction, not only enclosed."""
        return self.value.width == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessPage:
    """One witness ready to be shown: its setting, what it shows, its numbers and its claims."""

    name: str
    title: str
    setting: str
    shows: str
    quantities: tuple[Quantity, ...]
    checks: tuple[StrictCheck, ...]

    @property
    def is_proved(self) -> bool:
        """Whether the enclosures prove every claim."""
        return all(check.holds for check in self.checks)


def pages() -> tuple[WitnessPage, ...]:
    """Compute the three witnesses now, in exact fractions, and set words beside them."""
    return (
        _page(
            "confidence-filter",
            confidence_filter(),
            title="Confidence filter: renormalising hides the boundary",
            setting="Noise of scale 1 on a line. A proposal u is kept when its softmax confidence exceeds 0.9, that is "
            "when |u| > 1: label zero left, label one right. Centers a = -0.1 and b = 0.01.",
            shows="The radius computed from conditional probabilities promises label zero at b, and label one wins "
            "there. The joint-mass radius, computed from unnormalised masses, ends exactly at the boundary.",
            symbols={
                "displacement": "|b - a|",
                "boundary_distance": "boundary distance",
                "joint_mass_radius": "r_mass(a)",
                "joint_mass_radius_enclosed": "r_mass(a) by Φ⁻¹ of Φ",
                "top_probability": "p_0(a)",
                "substituted_radius": "r_cond(a), unsound",
                "top_probability_shifted": "p_0(b)",
            },
        ),
        _page(
            "l-shape",
            l_shape(),
            title="L-shape: a compact, connected set is no protection",
            setting="Noise of scale 3/20, kept inside [0, 1] x [0, 1/2] together with [0, 1/2] x [1/2, 1]. Centers "
            "a = (0.65, 0.49) and b = (0.66, 0.49); the event E is z_1 <= 0.633.",
            shows="A shift of 0.01 moves the conditioned law further than it moves the Gaussian, in KL, in total "
            "variation and on one event; the label changes strictly inside the substituted radius.",
            symbols={
                "displacement": "‖a - b‖",
                "kl": "KL(Q_a‖Q_b)",
                "gaussian_kl": "Gaussian KL",
                "variance_ratio": "Var_a(Z_1) / σ²",
                "total_variation": "TV(Q_a, Q_b)",
                "gaussian_total_variation": "Gaussian TV",
                "event_nominal": "Q_a(E)",
                "event_shifted": "Q_b(E)",
                "event_excess": "Q_a(E) - Φ(1/15)",
                "crossing": "x_*, densities cross",
                "substituted_radius": "r_cond(a), unsound",
            },
        ),
        _page(
            "two-band",
            two_band(),
            title="Two bands: covariance certifies what mass cannot",
            setting="Noise of scale 1 in the plane, kept where the second coordinate lies in [-1, -0.9] or [0.9, 1], "
            "labelled by band. Center a = (0, -0.1), exactly 0.1 from the boundary.",
            shows="The kept set is not convex, yet conditioning never widens the law, so a covariance radius is sound "
            "and more than twice the joint-mass one. The substituted radius is still too large: divergence bounds "
            "do not imply the event comparison.",
            symbols={
                "boundary_distance": "boundary distance",
                "retained_mass": "G_a(K)",
                "top_probability": "p_-(a)",
                "joint_mass_radius": "r_mass(a)",
                "covariance_radius": "r_cov(a)",
                "substituted_radius": "r_cond(a), unsound",
            },
        ),
    )


def document(witnesses: Sequence[WitnessPage]) -> str:
    """Return the witnesses as one JSON document: decimals rounded outward beside the exact fractions."""
    content = {
        "schema": SCHEMA,
        "version": __version__,
        "arithmetic": "exact fractions, remainders proved, rounding outward",
        "is_proved": all(page.is_proved for page in witnesses),
        "witnesses": [
            {
                "name": page.name,
                "title": page.title,
                "setting": page.setting,
                "shows": page.shows,
                "quantities": [_entry(quantity) for quantity in page.quantities],
                "checks": [{"claim": check.claim, "holds": check.holds} for check in page.checks],
            }
            for page in witnesses
        ],
    }
    return json.dumps(content, indent=2)


def render(witnesses: Sequence[WitnessPage], console: Console) -> None:
    """Print the witnesses for a person."""
    for page in witnesses:
        console.print(Text(page.title, style="bold"))
        console.print(Text(page.setting))
        table = Table("quantity", "proved enclosure", box=None, padding=(0, 2, 0, 0))
        for quantity in page.quantities:
            table.add_row(Text(quantity.symbol), Text(_shown(quantity)))
        console.print(table)
        for check in page.checks:
            mark = Text("proved      ", style="green") if check.holds else Text("NOT PROVED  ", style="bold red")
            console.print(mark + Text(check.claim))
        console.print(Text(f"What it shows: {page.shows}\n"))
    console.print("Computed just now in exact fractions: no floating-point number was used.")


def _page(
    name: str,
    witness: ConfidenceFilterWitness | LShapeWitness | TwoBandWitness,
    *,
    title: str,
    setting: str,
    shows: str,
    symbols: Mapping[str, str],
) -> WitnessPage:
    values: dict[str, Interval | Fraction] = {field.name: getattr(witness, field.name) for field in fields(witness)}
    return WitnessPage(
        name=name,
        title=title,
        setting=setting,
        shows=shows,
        quantities=tuple(
            Quantity(name=key, symbol=symbols[key], value=Interval.of(value)) for key, value in values.items()
        ),
        checks=witness.checks,
    )


def _entry(quantity: Quantity) -> dict[str, str | bool]:
    lower, upper = quantity.value.decimals(PLACES)
    return {
        "name": quantity.name,
        "symbol": quantity.symbol,
        "is_exact": quantity.is_exact,
        "lower": lower,
        "upper": upper,
        "lower_exact": str(quantity.value.lower),
        "upper_exact": str(quantity.value.upper),
    }


def _shown(quantity: Quantity) -> str:
    if quantity.is_exact:
        return f"{quantity.value.lower} exactly"
    lower, upper = quantity.value.decimals(PLACES)
    return f"[{lower}, {upper}]"
