from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfs.files.frames import csv_table, html_table, latex_table, markdown_table
from ccfs.files.toml import read_toml, toml_text

HOSTILE = "a_b & 50% $x$ <script>alert(1)</script> | \\ \u202e"


def test_csv_table_is_read_back_by_the_standard_library():
    rows = [["a,b", 'say "x"'], [HOSTILE, "line\nbreak"]]
    assert list(csv.reader(io.StringIO(csv_table(["one", "two"], rows)))) == [["one", "two"], *rows]


def test_html_and_latex_and_markdown_escape_what_would_be_read_as_code():
    made = html_table(["head"], [[HOSTILE]], caption=HOSTILE)
    assert "<script>" not in made
    assert "\u202e" not in made
    latex = latex_table(["head"], [[HOSTILE]]).splitlines()[4]
    assert latex.startswith(r"a\_b \& 50\% \$x\$ <script>")
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
