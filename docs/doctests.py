"""Show the doctests of docstrings as code in the API reference: an extension of griffe, which reads the sources."""

from __future__ import annotations

import re

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +.*)*", re.M)


class Doctests(griffe.Extension):
    """Puts a fence around every doctest. Markdown would take its `>>>` for a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = _DOCTEST.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
