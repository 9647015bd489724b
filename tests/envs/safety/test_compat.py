"""The import of Safety-Gymnasium: it works by itself, the cure changes no color, a missing package is explained."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ccfs.envs.safety import compat

pytestmark = pytest.mark.slow


def test_the_cure_changes_no_color_and_is_needed_only_for_colors():
    color = compat.stock("assets.color").COLOR
    assert all(hash(value) == hash(value) for value in color.values())
    assert color["goal"].tolist() == [0, 1, 0, 1]
    assert len(color) == 13


@pytest.mark.parametrize(
    "code",
    [
        "import safety_gymnasium; safety_gymnasium.make('SafetyPointGoal1-v0')",
        "import omnisafe; from omnisafe.utils.command_app import app; app(['train', '--help'])",
    ],
)
def test_safety_gymnasium_and_omnisafe_import_without_us(code, tmp_path):
    """A process of its own that names nothing of ours. Before, this was a traceback on Python 3.11."""
    made = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def test_the_cure_leaves_dataclasses_and_other_modules_alone(tmp_path):
    code = (
        "import dataclasses, inspect; before = inspect.getsource(dataclasses), dict(vars(dataclasses))\n"
        "import sys, gymnasium\n"
        "assert not any(name.startswith('safety_gymnasium') for name in sys.modules)\n"
        "import safety_gymnasium, safety_gymnasium.assets.geoms as geoms\n"
        "assert (inspect.getsource(dataclasses), dict(vars(dataclasses))) == before\n"
        "from ccfs.envs.safety.compat import _ColorLoader\n"
        "ours = [n for n, m in sys.modules.items() if isinstance(getattr(m, '__loader__', None), _ColorLoader)]\n"
        "assert ours == ['safety_gymnasium.assets.color'], ours\n"
        "assert type(geoms.Goal().color).__name__ == 'HashableArray'\n"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def test_a_missing_package_is_explained(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"not installed\. On.*'ccfs-rl\[safety\]'.*--no-deps safety-gymnasium"):
        compat.stock()


def test_a_python_without_wheels_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(compat.sys, "version_info", (3, 12, 1))
    with pytest.raises(ImportError, match=r"has no wheels for this Python.*On Python 3.10 or 3.11"):
        compat.stock()
