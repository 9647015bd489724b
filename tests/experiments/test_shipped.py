"""The studies of the wheel: their names, what is kept of them, and `ccfs study` on a few trials."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from ccfs import experiments
from ccfs.cli import shipped
from ccfs.cli.main import app
from ccfs.files.parquet import parquet_bytes
from ccfs.protocol.model import load_protocol
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.store import Store


def test_studies_are_named_as_their_protocols_and_the_table_is_kept():
    found = experiments.studies()
    assert [one.name for one in found] == [load_protocol(one.protocol).name for one in found]
    assert found[0].name == "goal2"
    assert found[0].kept is not None


def test_study_refuses_another_name():
    with pytest.raises(ValueError, match=r"`NAME` must be one of goal2, goal2-ablation.*, got 'goal3'"):
        experiments.study("goal3")


def test_paper_rows_fit_the_arms_of_the_table():
    study = experiments.study("goal2")
    arms = {(arm.controller.name, arm.schedule.name) for arm in load_protocol(study.protocol).arms}
    assert study.paper_rows().keys() == arms


@pytest.mark.slow
def test_study_list_names_every_study():
    printed = CliRunner().invoke(app, ["study", "list"])
    assert printed.exit_code == 0
    assert all(one.name in printed.stdout for one in experiments.studies())


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A study of a small environment in the place of a shipped one: its trial lines are those that it will have."""
    from ccfs.cli.demo import TEXT

    protocol = tmp_path / "demo.toml"
    text = TEXT.replace("initial_law = 500", "initial_law = 80").partition("[[attacks]]")[0]
    protocol.write_text(text, encoding="utf-8")
    paper = tmp_path / "paper.csv"
    cells = ",".join(f"p{number}" for number in range(7))
    paper.write_text(f"controller,proposals,a,b,c,d,e,f,g\nsteering,one,{cells}\n", encoding="utf-8")
    made = experiments.Study(name="demo", protocol=protocol, kept=None, paper=paper)
    monkeypatch.setattr(experiments, "study", lambda name: made)
    return made


@pytest.mark.slow
def test_study_run_prints_the_table_with_the_paper_and_writes_the_report(small, tmp_path):
    done = CliRunner().invoke(app, ["study", "run", "demo", "-o", str(tmp_path / "run"), "--workers", "1"])
    assert done.exit_code in (0, 1), done.output
    lines = [line for line in done.stdout.splitlines() if " paper " in line and "steering" in line]
    assert len(lines) == 1
    assert "p0" in lines[0]
    assert (tmp_path / "run" / "report.html").is_file()
    assert "compared with nothing" in done.stdout

    store = Store(tmp_path / "run")
    ours = trial_lines(store, store.protocol())
    kept = tmp_path / "trajectories.parquet"
    study = experiments.Study(name="demo", protocol=small.protocol, kept=kept, paper=None)
    kept.write_bytes(parquet_bytes(ours))
    assert study.compared(store) == (ours.num_rows, 0)
    assert "all with the same trace hash" in shipped._comparison(study, store)
    other = ours.set_column(ours.schema.get_field_index("chain"), "chain", pa.array(["0" * 64] * ours.num_rows))
    kept.write_bytes(parquet_bytes(other))
    assert "with ANOTHER trace hash" in shipped._comparison(study, store)


def test_comparison_says_if_nothing_is_kept():
    assert "with nothing" in shipped._comparison(SimpleNamespace(kept=None), None)
