"""Settings for every test: hypothesis draws the same cases on each run and is never failed for being slow."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("repeatable")
