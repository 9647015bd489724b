from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.files.frames import csv_table, html_table, latex_table, markdown_table
from ccfs.files.toml import TomlError, read_toml, toml_text

HOSTILE = "a_b & 50% $x$ <script>alert(1)</script> | \\ \u202e"


def test_csv_table_is_read_back_by_the_standard_library():
    rows = [["a,b", 'say "x"'], [HOSTILE, "line\nbreak"]]
    assert list(csv.reader(io.StringIO(csv_table(["one", "two"], rows)))) == [["one", "two"], *rows]


def test_csv_table_has_what_pandas_reads_as_numbers_where_people_read_signs():
    import pandas

    text = csv_table(["arm", "B"], [["a", "0.1"], ["b", "–"], ["c–d", "∞"]])
    found = pandas.read_csv(io.StringIO(text))
    assert found["arm"].tolist() == ["a", "b", "c–d"]
    assert found["B"].fillna(-1.0).tolist() == [0.1, -1.0, math.inf]


def test_html_and_latex_and_markdown_escape_what_would_be_read_as_code():
    made = html_table(["head"], [[HOSTILE]], caption=HOSTILE)
    assert "<script>" not in made
    assert "\u202e" not in made
    latex = latex_table(["head"], [[HOSTILE]], title="two\nlines").splitlines()
    assert latex[:2] == [r"% two\x0alines", r"\begin{tabular}{l}"]  # a title cannot leave its comment
    assert latex[5].startswith(r"a\_b \& 50\% \$x\$ <script>")
    assert markdown_table(["head"], [["a|b"]]).splitlines()[2] == r"| a\|b |"


KEYS = st.text('ab.-é "\n', min_size=1, max_size=4)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.booleans() | NUMBERS | st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_toml_text_is_read_back_as_the_same(content):
    assert read_toml(toml_text(content)) == content


@pytest.mark.parametrize("value", [math.nan, math.inf, None, object()])
def test_toml_text_refuses_what_a_protocol_does_not_hold(value):
    with pytest.raises(TypeError, match="TOML holds"):
        toml_text({"a": value})


@pytest.mark.parametrize("part", ["a.", "1.", "a . ", '"a,".', "1 .", "'='."])
def test_read_toml_refuses_keys_of_very_many_parts_at_once(part):
    """The parser's time grows with the square of their number: this one would take it an hour."""
    for text in (f"{part * 300_000}b = 1", f"[{part * 300_000}b]", f"x = {{ {part * 300_000}b = 1 }}"):
        with pytest.raises(TomlError, match="dotted keys"):
            read_toml(text)


def test_read_toml_reads_long_lists_of_numbers_and_long_texts():
    content = {"numbers": [0.5, 1e-3] * 20_000, "text": "One. Two. 3.5. " * 300, "a": {"b": {"c": 1.5}}}
    assert read_toml(toml_text(content)) == content
    assert read_toml("a.b.c = 1.5") == {"a": {"b": {"c": 1.5}}}
