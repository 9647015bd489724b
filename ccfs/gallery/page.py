"""The gallery page: for drawn retained sets, where conditioning is safe and where the usual radius lies."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from ccfs import __version__
from ccfs.certificates.occupancy import EventVerdict
from ccfs.certificates.rounding import lower_text
from ccfs.gallery.plots import COLOURS, STYLE, event_plot, occupancy_plot, radii_plot, ratio_plot
from ccfs.gallery.shape import EXAMPLE, Shape
from ccfs.gallery.study import MOVE, ROUNDING, Study, study
from ccfs.gallery.witness import Quantity, WitnessPage

__all__ = ["page", "write_page"]


def write_page(path: Path, shapes: Sequence[Shape], *, witnesses: Sequence[WitnessPage] = ()) -> None:
    """Compute and write the page; nothing in it is fetched from anywhere."""
    content = page([study(shape) for shape in shapes], witnesses=witnesses)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def page(studies: Sequence[Study], *, witnesses: Sequence[WitnessPage] = ()) -> str:
    """Return the page: an introduction, a section a shape, the proved witnesses, and how to draw one's own."""
    colours = "".join(f".c{n} {{ --c: var(--s{n}); }}\n" for n in range(COLOURS))
    sections = "\n".join(_section(found) for found in studies)
    proved = "\n".join(_proved(witness) for witness in witnesses)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>When conditioning is safe</title><style>{STYLE}{colours}</style></head><body>
<h1>When conditioning is safe, and when the usual radius lies</h1>
<p>A proposal is drawn from a Gaussian around a <b>center</b>. A filter keeps it only inside the <b>retained set</b>,
drawn here as boxes; the label of most kept proposals is the decision. How far may the center move before the decision
changes? The ordinary formula answers for events of the Gaussian. Putting the shares <em>among kept proposals</em> into
it gives the <b>substituted radius</b>. That is right for convex sets; for others it can promise more than it keeps.</p>
{sections}
{proved}
<section><h2>Draw your own</h2><p>Write boxes into a file and run
<code>ccfs witness --html page.html --shape shape.toml</code>. One or two dimensions, labels as integers.</p>
<pre>{escape(EXAMPLE)}</pre>
<p class="scale">Maps and radii of drawn shapes are population values in double precision; sound radii are rounded down
after an allowance of one part in 10⁹ for them. ccfs {__version__}.</p></section>
</body></html>
"""


def _section(found: Study) -> str:
    shape = found.shape
    center = ", ".join(f"{value:g}" for value in shape.center.tolist())
    rows = "\n".join(
        f'<tr><td>{radius.name}</td><td class="n">{lower_text(radius.value, 6)}</td>'
        f'<td class="{"good" if radius.is_sound else "bad"}">{"sound" if radius.is_sound else "UNSOUND"}</td>'
        f'<td class="why">{escape(radius.reason)}</td></tr>'
        for radius in found.radii
    )
    kind = "good" if not found.broken else "bad"
    figures = "\n".join(
        f"<figure><h3>{title}</h3>{drawing}<figcaption>{caption}</figcaption></figure>"
        for title, drawing, caption in (
            ("Radii at the center", radii_plot(found), _radii_words(found)),
            ("Occupancy", occupancy_plot(found), _occupancy_words(found)),
            ("Λ, the local ratio", ratio_plot(found), _ratio_words(found)),
            ("Where events break the comparison", event_plot(found), _event_words(found)),
        )
    )
    return f"""<section><h2>{escape(shape.title)}</h2>
<p>{escape(shape.words)} Noise scale {shape.boxes.sigma:g}, center ({center}).</p>
<p class="verdict {kind}">{_verdict(found)}</p>
<div class="scroll"><table><thead><tr><th>radius</th><th>value</th><th></th><th>why</th></tr></thead><tbody>
{rows}</tbody></table></div>
<div class="plots">{figures}</div></section>"""


def _verdict(found: Study) -> str:
    share = f"among these, label {found.label} has {found.probability:.4g}"
    kept = f"Of all proposals, {found.occupancy:.4g} are kept; {share}."
    if found.change is None:
        reason = "there is only one label" if len(set(found.shape.labels)) == 1 else "none was found within 4 sigma"
        return f"{kept} The decision does not change nearby: {reason}."
    where = f"The nearest change of label that was found is {found.change_distance:.4g} away."
    if any(not radius.is_sound for radius in found.broken):
        return f"{kept} {where} <b>It is inside the substituted radius, which promises too much.</b>"
    if found.shape.boxes.is_convex:
        return f"{kept} {where} The set is convex, so every radius below is a certificate, the substituted one too."
    return f"{kept} {where} The substituted radius does not reach it here, by luck and not by a theorem."


def _radii_words(found: Study) -> str:
    is_marked = found.change is not None and found.shape.boxes.dim == 2
    change = " × marks the nearest change of label found." if is_marked else ""
    return (
        '<span class="good">Solid</span>: sound radii. <span class="bad">Dashed</span>: unsound. '
        f"Dotted: where the decision changes as the center moves.{change} Drawn close to the center."
    )


def _occupancy_words(found: Study) -> str:
    return (
        "The share of proposals that survive the filter, over centers. Where it is small, a large majority among "
        f"survivors is little Gaussian mass. At the chosen center it is {found.occupancy:.4g}."
    )


def _ratio_words(found: Study) -> str:
    if found.local_ratio > 1.0 + ROUNDING:
        said = "above 1: a tiny move changes the kept law more than it changes the Gaussian"
    else:
        said = "not above 1: tiny moves from here are no worse than the Gaussian's; that says nothing of other centers"
    return f"Greatest variance of the kept law over σ². At the chosen center {found.local_ratio:.4g}, {said}."


def _event_words(found: Study) -> str:
    words = {EventVerdict.HOLDS: "holds", EventVerdict.FAILS: "fails", EventVerdict.UNDECIDED: "undecided"}
    told = ", ".join(f"{name} {words[verdict]}" for name, verdict in found.events)
    return (
        f"Red: for a move of {MOVE:g}σ along an axis, some event breaks the Gaussian comparison. Elsewhere no sampled "
        f"event does. Decided at the chosen center: {told}."
    )


def _proved(witness: WitnessPage) -> str:
    rows = "".join(
        f'<tr><td>{escape(item.symbol)}</td><td class="n">{_enclosure(item)}</td></tr>' for item in witness.quantities
    )
    claims = "".join(
        f'<li><span class="good">proved</span> {escape(check.claim)}</li>'
        if check.holds
        else f'<li><span class="bad">NOT PROVED</span> {escape(check.claim)}</li>'
        for check in witness.checks
    )
    head = "<thead><tr><th>quantity</th><th>enclosure</th></tr></thead>"
    return f"""<section><h2>Proved in fractions: {escape(witness.title)}</h2><p>{escape(witness.setting)}</p>
<p>{escape(witness.shows)}</p><ul>{claims}</ul>
<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div></section>"""


def _enclosure(quantity: Quantity) -> str:
    if quantity.is_exact:
        return f"{quantity.value.lower} exactly"
    lower, upper = quantity.value.decimals(12)
    return f"[{lower}, {upper}]"
