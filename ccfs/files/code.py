"""Digests of code: what a Python source does, without its comments, docstrings and layout."""

from __future__ import annotations

import ast
import hashlib
import warnings
from pathlib import Path

__all__ = ["code_content", "code_digest", "file_code_digest", "parsed"]

# The first bytes of what is hashed. Whoever changes how a tree is written below must change this too.
_FORMAT = b"ccfs-code-1\0"
_LEFT_OUT = frozenset({"kind", "type_comment", "type_ignores", "ctx"})


def file_code_digest(path: Path) -> str:
    """Return the digest of a file: of its code if it is Python, otherwise of its bytes.

    A folder is an installed package, which has a version of its own. The names and bytes of its modules count.
    """
    if path.is_dir():
        files = sorted((file.relative_to(path).as_posix(), file) for file in path.rglob("*.py"))
        return _sha256(
            b"folder\0" + b"".join(f"{name}\0{_sha256(file.read_bytes())}\n".encode() for name, file in files)
        )
    content = path.read_bytes()
    return code_digest(content) if path.suffix == ".py" else _sha256(b"bytes\0" + content)


def code_digest(source: bytes) -> str:
    """Return the SHA-256 (hex) of what a Python source does, the same on every supported Python version.

    Comments, docstrings, blank lines and layout do not count. A source that mentions `__doc__` keeps its docstrings,
    because they are then values. A source that cannot be parsed counts by its bytes.

    >>> code_digest(b"x = 1_000  # many") == code_digest(b"x=1000")
    True
    >>> code_digest(b"x = 1") == code_digest(b"x = 2")
    False
    """
    tree = parsed(source)
    if tree is None:
        return _sha256(b"bytes\0" + source)
    return _sha256(b"tree\0" + code_content(tree, has_docstrings=b"__doc__" in source))


def parsed(source: bytes | str) -> ast.Module | None:
    """Return the syntax tree of a source, None if it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape warns on some versions only, and is the same string on all
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def code_content(tree: ast.AST, *, has_docstrings: bool = False) -> bytes:
    """Return the bytes that stand for a syntax tree.

    They do not depend on the Python version. Empty fields are left out, because newer versions have more of them.
    Strings are written as their UTF-8 bytes. Neighbouring texts in an f-string are joined.

    Args:
        tree: the node to write, with everything below it.
        has_docstrings: keep statements that are only a constant, such as docstrings.
    """
    written: list[bytes] = []
    pending: list[bytes | ast.AST] = [tree]  # a stack, because a long sum is a tree too deep for recursion
    while pending:
        item = pending.pop()
        if isinstance(item, bytes):
            written.append(item)
        elif isinstance(item, ast.Constant):
            written.append(_constant(item.value))
        else:
            pending.extend(reversed(_pieces(item, has_docstrings=has_docstrings)))
    return b"".join(written)


def _pieces(node: ast.AST, *, has_docstrings: bool) -> list[bytes | ast.AST]:
    """Return a node's bytes with the nodes below it in their places."""
    pieces: list[bytes | ast.AST] = [f"({type(node).__name__}".encode()]
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if isinstance(node, ast.JoinedStr):
            value = _joined(node.values)
        elif isinstance(value, list) and not has_docstrings:
            value = [item for item in value if not _does_nothing(item)]
        elif isinstance(value, ast.JoinedStr) and name == "format_spec" and not _joined(value.values):
            value = None  # `{x:}` is `{x}`
        if value is None or value == [] or name in _LEFT_OUT:
            continue
        pieces.append(f" {name}=".encode())
        if isinstance(value, list):
            pieces += [b"[", *(_piece(item) for item in value), b"]"]
        else:
            pieces.append(_piece(value))
    return [*pieces, b")"]


def _piece(value: object) -> bytes | ast.AST:
    if value is None:
        return b"<none>"  # no key before `**x` or no default, which is not the constant None
    return value if isinstance(value, ast.AST) else _constant(value)


def _constant(value: object) -> bytes:
    """Return a constant after its type. A text is written as length and bytes, since `repr` differs by version."""
    if isinstance(value, str):
        content = value.encode("utf-8", "surrogatepass")
        return f"<str {len(content)} ".encode() + content + b">"
    if isinstance(value, bytes):
        return f"<bytes {len(value)} ".encode() + value + b">"
    told = hex(value) if type(value) is int else repr(value)
    return f"<{type(value).__name__} {told}>".encode()


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Return the pieces of an f-string with neighbouring texts joined and without empty ones."""
    made: list[ast.expr] = []
    for value in values:
        if not isinstance(value, ast.Constant):
            made.append(value)
        elif value.value:
            last = made[-1] if made else None
            if isinstance(last, ast.Constant):
                made[-1] = ast.Constant(value=str(last.value) + str(value.value))
            else:
                made.append(value)
    return made


def _does_nothing(item: object) -> bool:
    """Return whether an element of a body is `pass` or only a constant, as a docstring is."""
    return isinstance(item, ast.Pass) or (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(_FORMAT + content).hexdigest()
