"""An SVG file of a chart has the colours of the style sheet as attributes, and its legend."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from ccfs.report.charts import Chart, glyph
from ccfs.report.standalone import standalone

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def chart():
    made = Chart(x_range=(0.0, 1.0), y_range=(0.0, 1.0), label="a <label>", x_label="x", y_label="y")
    made.line([(0.0, 0.0), (1.0, 1.0)], "curve s1 dash1", "rises")
    made.rectangle((0.0, 0.5), (0.0, 0.5), "cell", share=0.5)
    made.shapes.append(glyph(5, 1.0, 1.0))
    return made


def test_standalone_resolves_classes_as_the_light_style_sheet_does(chart):
    root = ElementTree.fromstring(standalone(chart, "a title", ()))
    line = next(path for path in root.iter(f"{SVG}path") if path.get("stroke-dasharray") == "8 3")
    assert (line.get("stroke"), line.get("fill"), line.get("stroke-width")) == ("#c2410c", "none", "2.4")
    # Half of #c2570c and half of #f6f8fa.
    assert next(root.iter(f"{SVG}rect")).get("fill") in {"#dca883"}
    # The open glyph has the colour of the group around it.
    assert [path.get("stroke") for path in root.iter(f"{SVG}path") if path.get("d").startswith("M1.0")] == ["#be185d"]
    assert (root.find(f"{SVG}title").text, root.find(f"{SVG}desc").text) == ("a title", "a <label>")
    assert {text.get("font-size") for text in root.iter(f"{SVG}text")} == {"12px"}


def test_standalone_writes_the_legend_below_and_breaks_its_lines(chart):
    legend = (
        ("line s0", "a long name " * 3, ""),
        ("p0", "another long name " * 3, "5%"),
        ("mark 2", "third", ""),
        ("", "4: no sign", ""),
    )
    root = ElementTree.fromstring(standalone(chart, "t", legend))
    texts = {text.text: float(text.get("y")) for text in root.iter(f"{SVG}text") if text.get("y")}
    places = [texts[name] for name in texts if "name" in name or name in ("third", "4: no sign")]
    assert all(place > chart.height for place in places)
    assert len(set(places)) > 1
    assert float(root.get("height")) > max(places)
    assert "another long name another long name another long name  5%" in texts


def test_chart_csv_pads_rows_and_keeps_every_digit(chart):
    chart.rows.append(("whisker", 0.1, 1 / 3, 0.2, 0.4))
    lines = chart.csv().splitlines()
    assert lines[0] == "series,x,y,low or radius,high"
    assert lines[1] == "rises,0.0,0.0,,"
    assert lines[-1] == "whisker,0.1,0.3333333333333333,0.2,0.4"
