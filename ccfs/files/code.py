"""Digests of code: what a Python source does, without its comments, docstrings and layout."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ccfs.files.digests import files_below

__all__ = ["code_content", "code_digest", "code_files", "definitions_digest", "file_code_digest", "parsed"]

# The first bytes of what is hashed. Whoever changes how a tree is written below must change this too.
_FORMAT = b"ccfs-code-1\0"
_LEFT_OUT = frozenset({"kind", "type_comment", "type_ignores", "ctx"})
# What an import can load: sources, compiled modules without source, and libraries of machine code.
_CODE = (".py", ".pyc", ".so", ".pyd")
# Python 3.10 and 3.11 count the depth of a tree in one place for all threads. If another one parses in between, which
# happens while garbage is collected, they raise SystemError though nothing is wrong with the source.
_TRIES = 100


def code_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a package that an import can load, those behind links too.

    Not the caches of compiled sources: `from_source` of `ccfs/files/imports.py` does without them.
    """
    for path in files_below(folder, lambda inner: inner.name != "__pycache__" and not inner.name.startswith(".")):
        if path.suffix in _CODE:
            yield path


def file_code_digest(path: Path) -> str:
    """Return the digest of a file: of its code if it is Python, otherwise of its bytes.

    A folder is an installed package, which has a version of its own. The names and bytes of its modules count.
    """
    if path.is_dir():
        files = sorted((file.relative_to(path).as_posix(), file) for file in code_files(path))
        return _sha256(
            b"folder\0" + b"".join(f"{name}\0{_sha256(file.read_bytes())}\n".encode() for name, file in files)
        )
    content = path.read_bytes()
    return code_digest(content) if path.suffix == ".py" else _sha256(b"bytes\0" + content)


@lru_cache(maxsize=512)  # a command asks for the same sources again and again
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


@lru_cache(maxsize=64)
def definitions_digest(source: bytes, names: tuple[str, ...]) -> str:
    """Return the digest of what some definitions of a source can reach: themselves and all that they mention.

    Other definitions beside them may come, go and change. A statement at the top of the source counts if a name that it
    defines is mentioned, also as an attribute or a text, in a statement that counts. A statement that defines no name,
    such as an `if`, always counts.

    *Assumes* that a definition, its decorators included, changes nothing that stands beside it. This is for files that
    keep to that, such as our own.

    >>> source = b"def one():\\n    return TWO\\nTWO = 2\\ndef three():\\n    return 3"
    >>> definitions_digest(source, ("one",)) == definitions_digest(source.replace(b"3", b"4"), ("one",))
    True
    >>> definitions_digest(source, ("one",)) == definitions_digest(source.replace(b"2", b"4"), ("one",))
    False
    """
    tree = parsed(source)
    if tree is None:
        return _sha256(b"bytes\0" + source)
    mentioned = set(names)
    kept: list[ast.stmt] = []
    tree.body = [single for item in tree.body for single in _singles(item)]
    pending = list(tree.body)
    while True:
        reached = [item for item in pending if (defined := _defined(item)) is None or defined & mentioned]
        if not reached:
            break
        kept += reached
        pending = [item for item in pending if item not in reached]
        mentioned.update(name for item in reached for name in _mentioned(item))
    tree.body = [item for item in tree.body if item in kept]
    return _sha256(b"definitions\0" + code_content(tree, has_docstrings=b"__doc__" in source))


def _singles(item: ast.stmt) -> list[ast.stmt]:
    """Return an import as one import for each name, so that only those count that are mentioned."""
    if isinstance(item, ast.Import):
        return [ast.Import(names=[alias]) for alias in item.names]
    if isinstance(item, ast.ImportFrom):
        return [ast.ImportFrom(module=item.module, names=[alias], level=item.level) for alias in item.names]
    return [item]


def _defined(item: ast.stmt) -> set[str] | None:
    """Return the names that a statement defines, None if it may do more than that."""
    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {item.name}
    if isinstance(item, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in item.names}
    if isinstance(item, ast.ImportFrom):
        names = {alias.asname or alias.name for alias in item.names}
        return None if "*" in names or item.module == "__future__" else names
    targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
    found = {target.id for target in targets if isinstance(target, ast.Name)}
    return found if len(found) == len(targets) > 0 else None


def _mentioned(item: ast.stmt) -> Iterable[str]:
    for node in ast.walk(item):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.Global):
            yield from node.names


def parsed(source: bytes | str) -> ast.Module | None:
    """Return the syntax tree of a source, None if it is not Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape warns on some versions only, and is the same string on all
            for _ in range(_TRIES):
                with suppress(SystemError):
                    return ast.parse(source)
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
