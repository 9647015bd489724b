"""Make the pages of the site that are not in docs/: from the README, the studies, the notebooks and the code.

mkdocs runs this as its hook.
Nothing here lists commands, documents or modules. New ones have their place in the reference by themselves.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tools of the site are not installed where its tests run
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "experiments/**/README.md",
    "experiments/**/RESULTS.md",
)
PICTURES = ("experiments/**/*.png", "experiments/**/*.svg")
# Rooms of the API reference, in the order in which a reader meets them.
ROOMS = (
    "certificates",
    "runtime",
    "attacks",
    "controllers",
    "envs",
    "protocol",
    "runs",
    "results",
    "study",
    "audit",
    "images",
)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the studies, the API reference and pages that mkdocs.yml does not list to the navigation."""
    listed = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for section in config.nav or ():
        if "How to" in section:
            unlisted = (path for path in sorted((ROOT / "docs").glob("*.md")) if f"{path.name}\n" not in listed)
            section["How to"] += [{title(path): path.name} for path in unlisted]
        if "Studies" in section:
            section["Studies"] += [{title(path): name} for name, path in outside() if name.startswith("experiments/")]
        if "Project" in section:
            decisions = sorted((ROOT / "docs/decisions").glob("[a-z]*.md"))
            section["Project"] += [{title(path): f"decisions/{path.name}"} for path in decisions]
        if "Reference" in section:
            section["Reference"] += [
                {"Python": "reference/ccfs.md"},
                *({f"ccfs.{room}": f"reference/{room}.md"} for room in ROOMS),
            ]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is generated, and put a page in the place of each notebook."""
    from mkdocs.structure.files import File

    for name, path in outside():
        content = path.read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=moved(content, path.relative_to(ROOT).as_posix(), name)))
    for path in sorted({path for pattern in PICTURES for path in ROOT.glob(pattern)}):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        for name, part in notebook_parts(Path(str(file.abs_src_path)), file.src_uri.removesuffix(".ipynb")):
            files.append(File.generated(config, name, content=part))
    for name, text in {"reference/commands.md": commands(), "reference/documents.md": documents(), **modules()}.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page in docs/ that leave docs/ into links of the site."""
    return moved(markdown, f"docs/{page.file.src_uri}", page.file.src_uri) if page.file.abs_src_path else markdown


def outside() -> Iterator[tuple[str, Path]]:
    """Yield the pages that stand outside of docs/, each with its place in the site."""
    for path in sorted({path for pattern in OUTSIDE for path in ROOT.glob(pattern)}):
        yield str(place(path.relative_to(ROOT).as_posix())), path


def place(name: str) -> str | None:
    """Return where a file of the repository is in the site, or None if it is not there."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", name.removeprefix("docs/"))
    return name if name in published() else None


@cache
def published() -> frozenset[str]:
    """Return the files outside of docs/ that are in the site."""
    return frozenset(
        path.relative_to(ROOT).as_posix() for pattern in (*OUTSIDE, *PICTURES) for path in ROOT.glob(pattern)
    )


def moved(markdown: str, source: str, target: str) -> str:
    """Return a page with its links as they are seen from its place in the site.

    A link to a file that is not in the site becomes its text: there is no public address of the source yet.
    """

    def link(found: re.Match[str]) -> str:
        text, goal = found[1], found[2]
        path, mark, anchor = goal.partition("#")
        if not path or re.match(r"[a-z]+:", goal):
            return found[0]
        there = place(os.path.normpath(PurePosixPath(source).parent / path))
        if there is None:
            return text.removeprefix("!")[1:-1]
        return f"{text}({os.path.relpath(there, PurePosixPath(target).parent)}{mark}{anchor})"

    return _LINK.sub(link, markdown)


def title(path: Path) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.M)
    if found is None:
        raise ValueError(f"{path}: must have a heading.")
    return found[1].replace("`", "")


def notebook_parts(path: Path, name: str) -> Iterator[tuple[str, str | bytes]]:
    """Yield the page of an executed notebook and its pictures."""
    pieces: list[str] = []
    pictures = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(moved(source, f"docs/{name}.ipynb", f"{name}.md"))
            continue
        pieces.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
            if "image/png" in data:
                pictures += 1
                yield f"{name}-{pictures}.png", base64.b64decode(data["image/png"])
                pieces.append(f"![what the cell above draws]({PurePosixPath(name).name}-{pictures}.png)")
            elif "text/html" in data:
                # Without the frame's own style, the table looks like every other one of the site.
                pieces.append(re.sub(r"<style.*?</style>|(?<=<table) [^>]*", "", data["text/html"], flags=re.S))
            else:
                pieces.append(
                    f'```text title="Output"\n{"".join(output.get("text", data.get("text/plain", ""))).rstrip()}\n```'
                )
    yield f"{name}.md", "\n\n".join(pieces) + "\n"


def commands() -> str:
    """Return the reference of the command line, as typer writes it from the application itself."""
    import typer
    from typer.cli import get_docs_for_click

    from ccfs.cli.main import app

    command = typer.main.get_command(app)
    groups = [command]
    for group in groups:
        for one in group.commands.values():
            one.short_help = " ".join((one.help or "").partition("\n\n")[0].split())  # typer would cut it to 45 letters
            groups += [one] if hasattr(one, "commands") else []
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="ccfs", title="Commands")
    return re.sub(r"^\*\*(Usage|Arguments|Options|Commands)\*\*:$", r"**\1**", text, flags=re.M)


def documents() -> str:
    """Return the keys of every document that CCFS writes."""
    from ccfs.schema import DOCUMENTS, markdown

    parts = [
        "# Documents",
        "Every file in JSON that CCFS writes, key by key. `ccfs schema KIND` prints the same as JSON Schema.",
    ]
    for kind in DOCUMENTS:
        parts += [f"## `{kind}`", re.sub(r"^#", "##", markdown(kind).strip(), flags=re.M)]
    return "\n\n".join(parts) + "\n"


def modules() -> dict[str, str]:
    """Return the pages of the API reference: what `import ccfs` offers, and each room with its modules."""
    import ccfs

    lines = ["# ccfs", "What `import ccfs` offers.", "| name | what it is |\n| --- | --- |"]
    for name in ccfs.__all__:
        if name != "__version__":
            one = getattr(ccfs, name)
            first = (one.__doc__ or "").strip().partition("\n")[0].replace("|", "\\|")
            lines[-1] += f"\n| [`{name}`][{one.__module__}.{one.__qualname__}] | {first} |"
    pages = {"reference/ccfs.md": "\n\n".join([*lines, "::: ccfs.policy"]) + "\n"}
    for room in ROOMS:
        package = import_module(f"ccfs.{room}")
        names = [name for name in _names(package.__name__, package.__path__) if _is_public(name)]
        first = (package.__doc__ or "").strip()
        pages[f"reference/{room}.md"] = f"# ccfs.{room}\n\n{first}\n\n" + "\n".join(f"::: {name}\n" for name in names)
    return pages


def _names(package: str, path: list[str]) -> Iterator[str]:
    for found in iter_modules(path):
        name = f"{package}.{found.name}"
        if found.ispkg:
            yield from _names(name, [str(Path(place) / found.name) for place in path])
        else:
            yield name


def _is_public(name: str) -> bool:
    """Return whether a module of ours offers something. Its own names begin with no underscore."""
    if any(part.startswith("_") for part in name.split(".")):
        return False
    relative = name.removeprefix("ccfs.").replace(".", "/") + ".py"
    path = next(path for path in (ROOT / relative, ROOT / "ccfs" / relative) if path.is_file())
    return "__all__ = [" in path.read_text(encoding="utf-8")
