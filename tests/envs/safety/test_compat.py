"""The import of Safety-Gymnasium: the cure changes no color, and a missing package is explained."""

from __future__ import annotations

import sys

import pytest

from ccfs.envs.safety import compat

pytestmark = pytest.mark.slow


def test_the_cure_changes_no_color_and_is_needed_only_for_colors():
    color = compat.stock("assets.color").COLOR
    assert all(hash(value) == hash(value) for value in color.values())
    assert color["goal"].tolist() == [0, 1, 0, 1]
    assert len(color) == 13


def test_a_missing_package_is_explained(monkeypatch):
    monkeypatch.delitem(sys.modules, "safety_gymnasium")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"not installed.*extra `safety`.*--no-deps safety-gymnasium==1.0.0"):
        compat.stock()
