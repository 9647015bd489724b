"""Tuning on the corridor, whose success probability is known, so that the best setting is known too."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from toy_protocol import contents
from typer.testing import CliRunner

from ccfs.certificates.bounds import Bound
from ccfs.certificates.schedule import ProposalSchedule, Schedule
from ccfs.cli.main import app
from ccfs.envs.toys.corridor import nominal_probability
from ccfs.protocol.errors import ProtocolError
from ccfs.protocol.model import load_protocol
from ccfs.runs.executors import serial_engine
from ccfs.study.plan import CountDesign
from ccfs.study.tune import Tuning, load_tuning, tune

SIGMAS = (0.04, 0.25, 1.2)
TEXT = """
name = "steer"
seed = 5
horizon = 6
batch = 64

[trials]
cohort = { first = 0, count = 300 }
used_before = [7000]

[claim]
delta = 0.01
target = 0.6
bound = "cohort"

[environment]
make = "corridor"
arguments = { horizon = 6, post = 0.8 }

[[controllers]]
name = "steering"
make = "steering"

[[schedules]]
name = "one"
action = { count = 1, sigma = 0.2 }

[program]
verifier = { make = "accept-all" }

[[events]]
name = "passes"
event = "goal-before-cost"

[[attacks]]
name = "push"
rule = "constant"
budget = 0.1
arguments = { direction = [1.0] }

[tune]
trials = 40
seeds = { first = 3000000000, count = 400 }
wanted = { event = "stays", rate = 0.5 }
events = [{ name = "stays", event = "not-terminated" }]

[tune.sweep]
"schedules.one.action.sigma" = [0.04, 0.25, 1.2]
"""


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def written(folder, content=TEXT):
    path = folder / "study.toml"
    path.write_text(content)
    return path


def true_budget(sigma):
    """The expected budget of 300 trials if the rate is the corridor's own."""
    rate = nominal_probability(horizon=6, post=0.8, start=0.0, gain=0.2, sigma=sigma, kappa=1.0)
    design = CountDesign(
        schedule=Schedule(action=ProposalSchedule(count=1, sigma=sigma)), target=0.6, delta=0.01, family=1,
        bound=Bound.COHORT, stage="action", rates=np.array([rate]),
    )  # fmt: skip
    return design.expected(300), rate


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    answer = call("tune", written(folder), "-o", folder / "out", "--workers", 1)
    assert answer.exit_code == 0, answer.output
    return folder, answer


@pytest.mark.slow
def test_tune_picks_the_setting_that_the_truth_says_is_best(done):
    folder, answer = done
    record = Tuning.from_bytes((folder / "out/tuning.json").read_bytes(), where="tuning.json")
    truth = {sigma: true_budget(sigma) for sigma in SIGMAS}
    best = max(SIGMAS, key=lambda sigma: truth[sigma][0])
    assert best == 0.25  # not an end of the sweep
    for one in record.settings:
        _, rate = truth[one.values["schedules.one.action.sigma"]]
        # Five standard deviations: a correct program fails here with probability below 1e-5. The seed is fixed.
        assert abs(one.successes - rate * one.trials) <= 5 * (one.trials * rate * (1 - rate)) ** 0.5 + 1
    (chosen,) = (one for one in record.settings if one.name == record.chosen)
    assert chosen.values == {"schedules.one.action.sigma": best}
    assert chosen.is_on_front
    assert "Picked c001 (sigma = 0.25)" in answer.output


@pytest.mark.slow
def test_tune_halves_the_settings_and_doubles_the_trials(done):
    folder, _ = done
    record = Tuning.from_bytes((folder / "out/tuning.json").read_bytes(), where="tuning.json")
    assert sorted((one.rounds, one.trials) for one in record.settings) == [(1, 40), (2, 120), (2, 120)]
    assert sorted(path.name for path in (folder / "out/pilots").iterdir()) == ["round-0", "round-1"]


@pytest.mark.slow
def test_certifying_protocol_names_every_pilot_and_shares_no_seed_and_no_noise(done):
    folder, _ = done
    record = Tuning.from_bytes((folder / "out/tuning.json").read_bytes(), where="tuning.json")
    protocol = load_protocol(folder / "out/protocol.toml")
    assert protocol.hash == record.protocol
    pilots = [json.loads(path.read_text()) for path in sorted((folder / "out/pilots").rglob("protocol.json"))]
    assert len(pilots) == 5
    assert all(pilot["attacks"] == [] for pilot in pilots)
    used = {part.protocol for part in protocol.trials.used_before if not isinstance(part, int)}
    assert used == {digest for one in record.settings for digest in one.pilots}
    assert len(used) == 5
    assert 7000 in protocol.trials.used_before
    seeds = {
        seed
        for pilot in pilots
        for seed in range(pilot["trials"]["cohort"]["first"], sum(pilot["trials"]["cohort"].values()))
    }
    assert seeds == set(range(3_000_000_000, 3_000_000_120))
    assert seeds.isdisjoint(protocol.trials.seeds)
    # The noise of a trial is keyed by the hash, and no pilot has the hash of the certifying run.
    assert protocol.hash not in used
    assert [event.name for event in protocol.events] == ["passes"]
    assert [attack.name for attack in protocol.attacks] == ["push"]
    assert protocol.schedules[0].action.sigma == 0.25


@pytest.mark.slow
def test_tune_again_changes_nothing_and_an_interrupted_one_resumes_to_the_same_bytes(done, tmp_path):
    folder, first = done
    before = contents(folder / "out")
    again = call("tune", folder / "study.toml", "-o", folder / "out", "--workers", 1)
    assert (again.exit_code, again.output) == (0, first.output)
    assert contents(folder / "out") == before
    made = load_tuning(folder / "study.toml")

    class StopError(Exception):
        pass

    planned, done_now, done_before = [], [], []

    def advance(trials):
        done_now.append(trials)
        if (tmp_path / "out/pilots/round-0/c002").exists():
            raise StopError

    with pytest.raises(StopError):
        tune(made, tmp_path / "out", serial_engine(), begin=planned.append, advance=advance)
    assert not (tmp_path / "out/protocol.toml").exists()
    kept, done_now[:] = sum(done_now), []
    tune(made, tmp_path / "out", serial_engine(), advance=done_now.append, found=done_before.append)
    assert contents(tmp_path / "out") == before
    # The time left is right only if all rounds are planned at once, and earlier trials do not count for the rate.
    assert planned == [sum(done_now) + sum(done_before)]
    assert sum(done_before) == kept > 0


@pytest.mark.slow
def test_tune_writes_no_protocol_without_the_wanted_rate(tmp_path):
    content = TEXT.replace('event = "stays", rate = 0.5', 'event = "passes", rate = 1.0').replace(
        "[0.04, 0.25, 1.2]", "[1.2]"
    )
    answer = call("tune", written(tmp_path, content), "-o", tmp_path / "out", "--workers", 1)
    assert answer.exit_code == 1
    assert "No setting has the wanted rate 1 of passes" in answer.output
    assert (tmp_path / "out/tuning.json").is_file()
    assert not (tmp_path / "out/protocol.toml").exists()


@pytest.mark.slow
def test_tune_takes_whole_tables_and_leaves_out_what_is_no_protocol(tmp_path):
    content = TEXT.replace(
        '"schedules.one.action.sigma" = [0.04, 0.25, 1.2]',
        '"schedules.one.action" = [{ count = 1, sigma = 0.2 }, { count = 4, sigma = 0.2, multiplier = 9.0 }]',
    ).replace("trials = 40", "trials = 10")
    answer = call("tune", written(tmp_path, content), "-o", tmp_path / "out", "--workers", 1, "--json")
    found = json.loads(answer.output)
    assert len(found["settings"]) == 1
    assert ["multiplier" in why for why in found["left_out"].values()] == [True]


@pytest.mark.slow
def test_tune_of_a_law_draws_its_pilots_and_names_their_hashes(tmp_path):
    content = TEXT.replace("cohort = { first = 0, count = 300 }", "initial_law = 300")
    content = content.replace('"cohort"', '"clopper-pearson"').replace("trials = 40", "trials = 10")
    content = content.replace("seeds = { first = 3000000000, count = 400 }\n", "")
    assert call("tune", written(tmp_path, content), "-o", tmp_path / "out", "--workers", 1).exit_code == 0
    protocol = load_protocol(tmp_path / "out/protocol.toml")
    used = [part for part in protocol.trials.used_before if not isinstance(part, int)]
    assert len(used) == 5
    assert all(part.seeds == () for part in used)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trials = 40", "trials = 0", "[tune]: `trials`"),
        ("trials = 40", "trials = 40\nwrong = 1", "unknown key `wrong`"),
        ("first = 3000000000", "first = 299", "must be disjoint from `used_before`"),
        ("count = 400 }\nwanted", "count = 100 }\nwanted", "`tune.seeds` must hold at least 120 seeds, got 100"),
        ("seeds = { first = 3000000000, count = 400 }\n", "", "`tune.seeds` must be given"),
        ('wanted = { event = "stays"', 'wanted = { event = "none"', "`tune.wanted.event` must be one of passes, stays"),
        ('events = [{ name = "stays"', 'events = [{ name = "passes"', "must be one of passes, passes, got 'stays'"),
        ("trials = 40", 'trials = 40\ncertify = "stays"', "`tune.certify` must be one of passes, got 'stays'"),
        ("[0.04, 0.25, 1.2]", "[]", "sweep"),
        (
            '\n\n[claim]\ndelta = 0.01\ntarget = 0.6\nbound = "cohort"',
            '\ndraws = { pilot = 0, main = 4 }\n\n[claim]\ndelta = 0.01\ntarget = 0.6\nbound = "stratified"',
            "must be a rule for counts while tuning",
        ),
    ],
)
def test_tuning_file_refuses(tmp_path, old, new, message):
    assert old in TEXT
    with pytest.raises(ProtocolError) as caught:
        load_tuning(written(tmp_path, TEXT.replace(old, new)))
    assert message in str(caught.value)


def test_tuning_of_a_law_refuses_pilot_seeds_and_says_to_leave_them_out(tmp_path):
    content = TEXT.replace("cohort = { first = 0, count = 300 }", "initial_law = 300")
    with pytest.raises(ProtocolError, match=r"`tune\.seeds` must be left out, because the initial law draws them"):
        load_tuning(written(tmp_path, content.replace('"cohort"', '"clopper-pearson"')))


def test_example_of_the_page_is_read(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs/studies.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S)
    made = load_tuning(written(tmp_path, TEXT.partition("[tune]")[0] + example))
    assert made.wanted == ("reaches", 0.6)
    assert len(made.combinations()) == 8


def test_protocol_reader_says_who_reads_the_table(tmp_path):
    with pytest.raises(ProtocolError, match="the table `tune` is for `ccfs tune`"):
        load_protocol(written(tmp_path))


def test_tuning_file_needs_its_table(tmp_path):
    with pytest.raises(ProtocolError, match=r"must have a table \[tune\]"):
        load_tuning(written(tmp_path, TEXT.partition("[tune]")[0]))


def test_sweep_must_name_a_place_of_the_protocol(tmp_path):
    made = load_tuning(written(tmp_path, TEXT.replace("schedules.one.action.sigma", "schedules.two.action.sigma")))
    with pytest.raises(ProtocolError, match=r"must name places of the protocol, got 'schedules.two.action.sigma'"):
        tune(made, tmp_path / "out", serial_engine())
    assert not (tmp_path / "out").exists()
