"""A chart as an SVG file of its own: colours from the style sheet as plain attributes, and the legend inside.

Programs that set papers know no style sheets with variables. So the few forms of rules that `style.css` uses for charts
are resolved here, in the light colours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree

from markupsafe import Markup

from ccfs.files.terminal import printable
from ccfs.report.charts import Chart, glyph

__all__ = ["standalone"]

_ATTRIBUTES = frozenset(
    {
        *("fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "stroke-opacity"),
        *("opacity", "font-size", "font-weight", "paint-order"),
    }
)
_NAME = re.compile(r"[a-z]*(?:\.[\w-]+)*")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_MIX = re.compile(r"color-mix\(in srgb, #(\w{6}) ([\d.]+)%, #(\w{6})\)")
_FONT = "system-ui, 'Helvetica Neue', Arial, sans-serif"
_LINE, _SWATCH, _LETTER = 18.0, 26.0, 6.6  # pixels: height of a line, room of a swatch, width of a letter
Place = tuple[str, frozenset[str]]
"""An element's name and classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """One selector of the style sheet: names and classes that must be found inside one another, and what they set."""

    path: tuple[Place, ...]
    settings: tuple[tuple[str, str], ...]

    @property
    def weight(self) -> tuple[int, int]:
        """How specific it is. Of two rules the more specific one holds, and of equal ones the later."""
        return sum(len(classes) for _, classes in self.path), sum(bool(name) for name, _ in self.path)

    def fits(self, places: Sequence[Place]) -> bool:
        """Return whether the rule is about the last of nested elements."""
        if not _is_like(places[-1], self.path[-1]):
            return False
        wanted = list(self.path[:-1])
        for place in places[:-1]:
            if wanted and _is_like(place, wanted[0]):
                wanted.pop(0)
        return not wanted


def standalone(chart: Chart, title: str, legend: Sequence[tuple[str, str, str]]) -> bytes:
    """Return the chart as an SVG file that needs nothing else."""
    root = ElementTree.fromstring(str(chart.svg()))
    height = chart.height
    for shape in _legend(chart, legend):
        root.append(ElementTree.fromstring(str(shape)))
    if legend:
        height += _LINE * _rows(chart, legend)[-1][1] + 2 * _LINE
    _style(root, (), {})
    del root.attrib["role"], root.attrib["aria-label"]
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("viewBox", f"0 0 {chart.width:g} {height:g}")
    root.set("width", f"{chart.width:g}")
    root.set("height", f"{height:g}")
    root.set("font-family", _FONT)
    for place, (name, text) in enumerate((("title", title), ("desc", chart.label))):
        told = ElementTree.Element(name)
        told.text = printable(text)
        root.insert(place, told)
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode").encode()


def _rows(chart: Chart, legend: Sequence[tuple[str, str, str]]) -> list[tuple[float, int]]:
    """Return where each entry of the legend begins: pixels from the left, and the number of its line."""
    found, at, line = [], 10.0, 0
    for _, name, share in legend:
        width = _SWATCH + _LETTER * (len(name) + len(share) + 1) + 12.0
        if at > 10.0 and at + width > chart.width:
            at, line = 10.0, line + 1
        found.append((at, line))
        at += width
    return found


def _legend(chart: Chart, legend: Sequence[tuple[str, str, str]]) -> list[Markup]:
    """Return the legend below the chart."""
    made = []
    for (style, name, share), (x, line) in zip(legend, _rows(chart, legend), strict=True):
        y = chart.height + _LINE * (line + 1)
        if style.startswith("mark "):
            made.append(glyph(int(style.removeprefix("mark ")), x + 9, y - 4))
        elif style.startswith("line "):
            made.append(Markup('<path class="curve {}" d="M{:g} {:g}h18"/>').format(style, x, y - 4))
        elif style:
            made.append(
                Markup('<rect class="area {}" x="{:g}" y="{:g}" width="12" height="12"/>').format(style, x, y - 10)
            )
        words = printable(f"{name} {share}".strip())
        left = x + (_SWATCH if style else 0.0)
        made.append(Markup('<text class="note" x="{:g}" y="{:g}">{}</text>').format(left, y, words))
    return made


def _style(element: ElementTree.Element, above: tuple[Place, ...], variables: Mapping[str, str]) -> None:
    """Turn classes into attributes, here and in everything inside."""
    places = (*above, (element.tag, frozenset(element.attrib.pop("class", "").split())))
    own = dict(part.split(":", 1) for part in element.attrib.pop("style", "").split(";") if part)
    settings = _settings(places)
    variables = {**variables, **{name: value for name, value in settings if name.startswith("--")}, **own}
    for name, value in settings:
        if name in _ATTRIBUTES:
            element.set(name, _resolved(value, variables))
    for inner in element:
        _style(inner, places, variables)


@cache
def _settings(places: tuple[Place, ...]) -> tuple[tuple[str, str], ...]:
    found = sorted((rule for rule in _rules() if rule.fits(places)), key=lambda rule: rule.weight)
    return tuple(dict(setting for rule in found for setting in rule.settings).items())


def _resolved(value: str, variables: Mapping[str, str]) -> str:
    """Return a value of the style sheet without variables and mixtures of colours."""
    while found := _VARIABLE.search(value):
        value = value.replace(found[0], variables.get(found[1]) or _colours()[found[1]])
    return _MIX.sub(lambda found: _mixed(found[1], float(found[2]) / 100.0, found[3]), value)


def _mixed(first: str, share: float, second: str) -> str:
    pairs = zip(bytes.fromhex(first), bytes.fromhex(second), strict=True)
    return "#" + bytes(round(share * a + (1.0 - share) * b) for a, b in pairs).hex()


def _is_like(place: Place, wanted: Place) -> bool:
    return wanted[0] in ("", place[0]) and wanted[1] <= place[1]


@cache
def _sheet() -> tuple[tuple[str, dict[str, str]], ...]:
    """Return selectors and settings of the style sheet, in their order, without what depends on the screen."""
    text = (files("ccfs.report") / "templates" / "style.css").read_text(encoding="utf-8")
    text = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", text)
    found = []
    for selectors, body in _RULE.findall(text):
        settings = dict(part.split(":", 1) for part in body.split(";") if ":" in part)
        clean = {name.strip(): " ".join(value.split()) for name, value in settings.items()}
        found += [(selector.strip(), clean) for selector in selectors.split(",")]
    return tuple(found)


@cache
def _colours() -> dict[str, str]:
    return next(settings for selector, settings in _sheet() if selector == ":root")


@cache
def _rules() -> tuple[_Rule, ...]:
    made = []
    for selector, settings in _sheet():
        parts = selector.split()
        if all(_NAME.fullmatch(part) for part in parts):
            path = tuple((part.split(".")[0], frozenset(part.split(".")[1:])) for part in parts)
            made.append(_Rule(path=path, settings=tuple(settings.items())))
    return tuple(made)
