from __future__ import annotations

import subprocess
import sys

import typer.main

from ccfs.cli.main import app


def test_python_dash_m_is_the_command():
    answer = subprocess.run([sys.executable, "-m", "ccfs", "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("ccfs ")
    refused = subprocess.run([sys.executable, "-m", "ccfs", "nothing"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "Usage: ccfs " in refused.stderr


def test_commands_are_listed_in_order_of_work_and_none_is_lost():
    group = typer.main.get_command(app)
    listed = group.list_commands(None)
    assert listed[:4] == ["demo", "run", "report", "table"]
    assert sorted(listed) == sorted(group.commands)
