"""Digests of code: the same for the same behaviour on every Python version, another for another behaviour."""

from __future__ import annotations

import ast
import gc
import sys
from pathlib import Path

import pytest

from ccfs.files.code import code_digest, definitions_digest, file_code_digest, parsed

# What Python versions parse differently, f-strings above all. Each version that runs this test must find the digest.
TRICKY = Path(__file__).with_name("tricky_sample.txt").read_bytes()
DIGEST = "701fd484e631055ee3f5a410c9b28b4f4cf5b4502908a9d8767b7fff58080a4b"
SAME = [
    ("x = 1  # one", "x=1"),
    ("x = 1_000", "x = 1000"),
    ("x = 0x10", "x = 16"),
    ("def f():\n    'told'\n    return 1", "def f():\n\n    return 1"),
    ("def f():\n    'told'", "def f(): pass"),
    ("'module'\nx = 1\n'of x'", "x = 1"),
    ("class A:\n    'told'\n    x = 1", "class A:\n    x = 1"),
    ("class A:\n    'told'", "class A: ..."),
    ("x = ('a'\n     'b')", "x = 'ab'"),
    ('x = "a"', "x = 'a'"),
    ("x = u'a'", "x = 'a'"),
    ("f(a,\n  b,)", "f(a, b)"),
    ("x = f'{a:}'", "x = f'{a}'"),
    ("x = f'a' 'b' f'{c}'", "x = f'ab{c}'"),
    ("x = 1\r\ny = 2\r\n", "x = 1\ny = 2\n"),
    ("if x:\n    y = 1\nelse:\n    pass", "if x:\n    y = 1"),
    ("x = '\\d'", "x = '\\\\d'"),
]
OTHER = [
    ("x = 'a'", "x = 'b'"),
    ("f('text')", "f()"),
    ("def f():\n    return 'told'", "def f():\n    return"),
    ("x = 1", "x = 1.0"),
    ("x = 1", "x = True"),
    ("x = 'a'", "x = b'a'"),
    ("x = 'a'", "x = a"),
    ("x = None", "x = ..."),
    ("x = {**y}", "x = {None: y}"),
    ("def f(*, a, b): pass", "def f(*, a=None, b): pass"),
    ("def f(a, b=1): pass", "def f(a=1, b=1): pass"),
    ("def f(a, /): pass", "def f(a): pass"),
    ("x = f'{a}'", "x = f'{a!r}'"),
    ("x = f'{a:>3}'", "x = f'{a:<3}'"),
    ("x = f'{a}'", "x = '{a}'"),
    ("x = a < b", "x = a <= b"),
    ("x = a - b", "x = b - a"),
    ("x = [a, b]", "x = (a, b)"),
    ("async def f(): pass", "def f(): pass"),
    ("from a import b", "from .a import b"),
    ("import a", "import a as b"),
    ("x: int = 1", "x = 1"),
    ("@d\ndef f(): pass", "def f(): pass"),
    ("if a:\n    b()\n    c()", "if a:\n    b()\nc()"),
    ("x = 'é'", "x = 'e\\u0301'"),
    ("x = f(__doc__)\n'told'", "x = f(__doc__)\n'told otherwise'"),
    ("def f(): yield", "def f(): pass"),
    ("match x:\n    case 1: y = 1", "match x:\n    case -1: y = 1"),
    ("match x:\n    case None: y = 1", "match x:\n    case True: y = 1"),
    ("match x:\n    case A(b=1): y = 1", "match x:\n    case A(1): y = 1"),
    ("x[1:2]", "x[1:2:None]"),
]


def digest(text):
    return code_digest(text.encode())


def test_code_digest_of_a_tricky_sample_is_one_constant():
    assert parsed(TRICKY) is not None
    assert code_digest(TRICKY) == DIGEST


@pytest.mark.parametrize(("one", "other"), SAME)
def test_code_digest_leaves_out_what_does_nothing(one, other):
    assert digest(one) == digest(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_code_digest_tells_other_code(one, other):
    assert parsed(one.encode()) is not None
    assert parsed(other.encode()) is not None
    assert digest(one) != digest(other)


def test_code_digest_of_a_deep_tree_and_of_odd_texts():
    assert digest(" + ".join("x" * 1 for _ in range(2000))) != digest(" + ".join("x" for _ in range(2001)))
    assert digest("x = '\\ud800'") != digest("x = '\\ud801'")


def test_code_digest_of_what_is_no_python_counts_bytes(tmp_path):
    assert digest("print 'x'  # a") != digest("print 'x'  # b")
    assert digest("x = 1\0") != digest("x = 1")
    for name in ("weights.bin", "module.so", "notes.txt"):
        path = tmp_path / name
        path.write_bytes(b"x = 1  # a")
        first = file_code_digest(path)
        path.write_bytes(b"x = 1  # b")
        assert file_code_digest(path) != first
    assert file_code_digest(path) != digest("x = 1  # b")


def test_code_digest_with_warnings_as_errors_is_the_same():
    with pytest.warns(match="invalid escape"):
        compile("x = '\\d'", "f", "exec")
    assert parsed(b"x = '\\d'") is not None


REACHED = """
from __future__ import annotations
import math, json
LIMIT = math.pi
OTHER = 3
def one():
    return LIMIT + two()
def two():
    return 1
def three():
    return OTHER
class Four:
    def call(self):
        return globals()["three"]()
"""


@pytest.mark.parametrize(
    ("names", "old", "new", "is_other"),
    [
        (("one",), "LIMIT = math.pi", "LIMIT = math.e", True),
        (("one",), "return 1", "return 2", True),
        (("one",), "import math, json", "import json", True),
        (("one",), "import math, json", "import math, random", False),
        (("one",), "OTHER = 3", "OTHER = 4", False),
        (("one",), "class Four", "class Five", False),
        (("one",), "def three", "def two():\n    return 9\ndef three", True),  # the later one counts
        (("one",), "OTHER = 3", "if OTHER:\n    LIMIT = 1", True),
        (("one",), "OTHER = 3", "one.limit = 1", True),
        (("one",), "OTHER = 3", "from elsewhere import *", True),
        (("one",), "from __future__ import annotations", "", True),
        (("Four",), "OTHER = 3", "OTHER = 4", True),  # through a text
        (("Four",), "return 1", "return 2", False),
        (("one", "three"), "OTHER = 3", "OTHER = 4", True),
    ],
)
def test_definitions_digest_covers_what_the_names_reach_and_nothing_else(names, old, new, is_other):
    assert old in REACHED
    before = definitions_digest(REACHED.encode(), names)
    assert (definitions_digest(REACHED.replace(old, new, 1).encode(), names) != before) is is_other


def test_definitions_digest_leaves_out_comments_and_counts_bytes_where_nothing_can_be_parsed():
    assert definitions_digest(b"# a\nx = 1", ("x",)) == definitions_digest(b"x = 1  # b", ("x",))
    assert definitions_digest(b"x = = 1", ("x",)) != definitions_digest(b"x = =  1", ("x",))
    assert definitions_digest(b"x = 1", ("x",)) != code_digest(b"x = 1")


def test_source_is_parsed_though_another_one_is_parsed_in_between():
    """Python 3.10 and 3.11 then raise SystemError. It happens where garbage is collected, in a worker of Dask."""
    source, parses = b"x = [[1, 2], {'a': (3, 4)}]\n" * 500, []

    def parse(*_):
        if len(parses) < 20:
            parses.append(ast.parse("x = 1"))

    gc.callbacks.append(parse)
    try:
        tree = parsed(source)
    finally:
        gc.callbacks.remove(parse)
    assert len(parses) > 2 or sys.version_info >= (3, 12)  # where garbage is collected between two calls only
    assert tree is not None
    assert len(tree.body) == 500
