"""Run the tutorials and store them as executed notebooks: python docs/notebooks.py [NAME...] (make notebooks).

The source of a tutorial is its .py file, in jupytext's percent form. Its .ipynb file is only written here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).with_name("tutorials")


def cells(path: Path) -> nbformat.NotebookNode:
    """Return the notebook of a source, without outputs. Its ids do not change from call to call."""
    notebook = jupytext.read(path)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
    return notebook


def executed(path: Path) -> nbformat.NotebookNode:
    """Run a source and return its notebook with what it printed and drew."""
    notebook = cells(path)
    NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
    for cell in notebook.cells:
        # What goes to stderr are warnings and progress bars. They differ from machine to machine.
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    for source in sorted(FOLDER.glob("*.py")):
        if not sys.argv[1:] or source.stem in sys.argv[1:]:
            nbformat.write(executed(source), source.with_suffix(".ipynb"))
            print(source.with_suffix(".ipynb"), flush=True)
