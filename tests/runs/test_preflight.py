"""What cannot work is refused before the first trial, in one line, without touching any trial; endings are told."""

from __future__ import annotations

import random
import re

import faulty
import numpy as np
import pytest
from toy_protocol import contents
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.protocol.model import ProtocolError, load_protocol
from ccfs.results.certify import certify
from ccfs.results.derive import endings
from ccfs.runs.events import AllOf, CostAtMost, GoalBeforeCost, NoAbstention, NoCostUntilGoal, ReturnAtLeast
from ccfs.runs.executors import serial_engine
from ccfs.runs.preflight import needs_cost, needs_goal, preflight
from ccfs.runs.run import run
from ccfs.runtime.components import AcceptAll, BoxVerifier, FixedFallback
from ccfs.runtime.program import CausalProgram, FallbackEntry

TEXT = """
name = "plain"
seed = 7
horizon = 3
batch = 4

[trials]
{trials}

[claim]
delta = 0.05
target = {target}
bound = "{bound}"

[environment]
make = "{env}"
{environment}

[[controllers]]
name = "push"
make = "toys:Push"

{controller}
[[schedules]]
name = "two"
action = {{ count = 2, sigma = 0.2 }}

[program]
verifier = {{ make = "{verifier}", arguments = {{ {arguments} }} }}
{program}

[[events]]
name = "fine"
event = "{event}"
"""
DEFAULTS = {
    "trials": "cohort = { first = 100, count = 6 }",
    "target": 0.5,
    "bound": "cohort",
    "env": "toys:Line",
    "environment": "",
    "controller": "",
    "verifier": "accept-all",
    "arguments": "",
    "program": "",
    "event": "no-cost-until-goal",
}


def write(folder, **changed):
    path = folder / "p.toml"
    path.write_text(TEXT.format(**{**DEFAULTS, **changed}))
    return path


def load(folder, **changed):
    return load_protocol(write(folder, **changed))


def second(arguments):
    return f'[[controllers]]\nname = "own"\nmake = "faulty:Center"\narguments = {{ {arguments} }}\n'


ACCEPTED = r"must return a NumPy array of dtype bool and shape \(n,\) for n actions"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"verifier": "faulty:Raising"},
            rf"^p: `program.verifier` faulty:Raising {ACCEPTED}, but it raised ValueError: boom and more\.$",
        ),
        ({"verifier": "faulty:Exiting"}, rf"{ACCEPTED}, but it raised SystemExit: 3\.$"),
        ({"verifier": "faulty:Answering"}, rf"{ACCEPTED}, got None \(NoneType\) for 2 actions\.$"),
        ({"verifier": "faulty:Answering", "arguments": "answer = true"}, rf"{ACCEPTED}, got True \(bool\) for 2"),
        ({"verifier": "faulty:Answering", "arguments": 'kind = "list"'}, r"got \[True, True\] \(list\) for 2"),
        ({"verifier": "faulty:Answering", "arguments": 'kind = "scalar"'}, r"got .*True[_)]* \(bool_?\) for 2 actions"),
        ({"verifier": "faulty:Answering", "arguments": 'kind = "float"'}, r"got array\(\[1., 1.\]\) \(ndarray\)"),
        ({"verifier": "faulty:Answering", "arguments": 'kind = "square"'}, r"got array\(.*\) \(ndarray\) for 2"),
        ({"verifier": "faulty:Answering", "arguments": 'kind = "one"'}, r"got array\(.*\) \(ndarray\) for 2 actions"),
        ({"verifier": "faulty:Forgetful"}, "faulty:Forgetful must take an observation, but it raised KeyError"),
        (
            {"verifier": "box", "arguments": "low = [-1.0], high = [1.0]"},
            "`verifier` must have the action's dimension, 2, got a BoxVerifier of dimension 1",
        ),
        ({"program": 'candidate_map = { make = "faulty:make_narrow" }'}, "`program.candidate_map` must return"),
        ({"controller": second("breaks = true")}, r"`controllers.1` faulty:Center .* RuntimeError: no weights\.$"),
        ({"controller": second("center = [0.0]")}, r"`center` must be numbers of shape \(2,\), got \(0.0,\)"),
        ({"controller": second("")}, r"`center` must be numbers of shape \(2,\), got None"),
        ({"controller": second("center = [nan, 0.0]")}, "`controllers.1.arguments"),
        ({"env": "faulty:Quiet"}, r"`environment` faulty:Quiet must report a cost .* 'fine' .* 'cost' .* \['risk'\]"),
        ({"env": "faulty:Quiet", "event": "goal-before-cost"}, r"`environment.cost` names the key"),
        (
            {"environment": "arguments = { breaks_at = 0 }"},
            "`environment` toys:Line must take a first step, but it raised RuntimeError: the simulation diverged",
        ),
        (
            {"event": "faulty:Misspelt"},
            r"`events.0` faulty:Misspelt must answer a trace, but it raised AttributeError: .* 'rewards'\.$",
        ),
        (
            {"env": "faulty:Seeded", "environment": "arguments = { above = -1 }"},
            "must reset to an observation of finite numbers, but it raised AssertionError: too great",
        ),
        (
            {"env": "faulty:Seeded", "environment": "arguments = { nan = true }"},
            r"must reset to an observation of finite numbers, got array\(\[",
        ),
    ],
)
def test_preflight_refuses_what_would_fail_in_every_trial(tmp_path, changed, words):
    with pytest.raises(ProtocolError, match=words) as caught:
        preflight(load(tmp_path, **changed), where="p")
    assert "\n" not in str(caught.value)


def test_preflight_refuses_a_center_that_is_not_a_number(tmp_path, monkeypatch):
    monkeypatch.setattr("toys.Push.center", lambda self, observation: np.array([np.nan, 0.0]))
    with pytest.raises(ProtocolError, match=r"`center` must be finite, got array\(\[nan, 0.\]\) .* from `controllers"):
        preflight(load(tmp_path), where="p")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"verifier": "faulty:Once"},
        {"env": "faulty:Quiet", "environment": 'cost = "risk"'},
        {"env": "faulty:Quiet", "event": "no-abstention"},
        {"environment": "arguments = { six = true }"},
        {"env": "faulty:Seeded", "environment": "arguments = { refused = [3_000_999_999, 3_000_999_998] }"},
        {"env": "faulty:Seeded", "environment": "arguments = { above = 2_147_483_647 }"},
        # An honest abstention is no mistake, and tells nothing about the cost.
        {
            "env": "faulty:Quiet",
            "verifier": "box",
            "arguments": "low = [5.0, 5.0], high = [6.0, 6.0]",
        },
    ],
)
def test_preflight_accepts_what_can_work(tmp_path, changed):
    preflight(load(tmp_path, **changed), where="p")


@pytest.mark.parametrize(
    ("trials", "expected"),
    [
        ("cohort = { first = 100, count = 6 }", 3_000_999_999),
        ("cohort = { first = 3_000_999_998, count = 6 }", 3_000_999_997),
        ("cohort = [3_000_999_999, 3_000_999_997, 1, 2, 3, 4]", 3_000_999_998),
    ],
)
def test_preflight_resets_with_no_seed_of_the_cohort(tmp_path, monkeypatch, trials, expected):
    monkeypatch.setattr(faulty.Seeded, "seen", [])
    preflight(load(tmp_path, env="faulty:Seeded", trials=trials), where="p")
    assert set(faulty.Seeded.seen) == {expected}


def test_preflight_puts_the_shared_generators_back(tmp_path):
    made = load(tmp_path, env="faulty:Global")
    before = random.getstate(), np.random.get_state()[1:3]  # noqa: NPY002
    preflight(made, where="p")
    after = random.getstate(), np.random.get_state()[1:3]  # noqa: NPY002
    assert before[0] == after[0]
    assert before[1][0].tolist() == after[1][0].tolist()
    assert before[1][1] == after[1][1]


def test_run_command_gives_the_bytes_of_a_run_without_preflight(tmp_path):
    path = write(tmp_path, verifier="faulty:Once")
    certify(run(load_protocol(path), tmp_path / "plain", serial_engine(), where="p"))
    call("run", path, "-o", tmp_path / "run", "--workers", 1)
    assert contents(tmp_path / "run") == contents(tmp_path / "plain")


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_run_command_refuses_in_one_line_and_writes_nothing(tmp_path):
    path = write(tmp_path, verifier="faulty:Answering")
    result = call("run", path, "-o", tmp_path / "run", "--workers", 1)
    assert (result.exit_code, (tmp_path / "run").exists()) == (2, False)
    assert result.output.startswith(f"{path}: `program.verifier` faulty:Answering must return")
    assert len(result.output.splitlines()) == 1


def test_run_command_refuses_a_claim_that_no_outcome_certifies(tmp_path):
    """Oracle: 0.05^(1/299) = 0.99003 and 0.05^(1/298) = 0.98999."""
    path = write(tmp_path, trials="initial_law = 20", target=0.99, bound="clopper-pearson")
    result = call("run", path, "-o", tmp_path / "run", "--workers", 1)
    words = "even 20 of 20 would certify only 0.8608, below the target 0.99; at least 299 trials are needed."
    assert result.output == f"{path}: `claim` must be one that its trials can certify, but {words}\n"
    assert (result.exit_code, (tmp_path / "run").exists()) == (2, False)


def test_run_command_only_notes_it_for_a_quick_look(tmp_path):
    path = write(tmp_path)
    result = call("run", path, "-o", tmp_path / "run", "--workers", 1, "--seeds", 2)
    assert result.exit_code == 1
    assert "note: this quick look cannot certify its claim: even 2 of 2 would certify only 0.2236" in result.stderr
    assert re.search(r"fine .* 2 of 2 .* 0\.2236 .*not certified", result.stdout)
    assert "push/two: 2 of 2 ran all steps." in result.stdout


ABSTAINING = {"verifier": "box", "arguments": "low = [5.0, 5.0], high = [6.0, 6.0]"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            ABSTAINING,
            [
                "push/two: 6 of 6 abstained, first at step 0.",
                "push/two, fine: 6 of 6 nominal trials failed because no action was accepted.",
            ],
        ),
        (
            {"environment": "arguments = { breaks_at = 2 }"},
            [
                "push/two: 6 of 6 crashed: RuntimeError (6 trials), first at step 2.",
                "push/two, fine: 6 of 6 nominal trials failed because something raised an exception.",
            ],
        ),
        (
            {"environment": "arguments = { nan_at = 3 }"},
            [
                "push/two: 6 of 6 met a number that is not finite, first at step 3.",
                "push/two, fine: 6 of 6 nominal trials failed because a number was not finite.",
            ],
        ),
        (
            {"environment": "arguments = { steps = 1 }"},
            [
                "push/two: 6 of 6 were truncated by the environment.",
                "push/two, fine: 6 of 6 nominal trials failed because the environment truncated the episode.",
            ],
        ),
        (
            {"environment": "arguments = { ends_at = 1 }"},
            [
                "push/two: 6 of 6 were terminated by the environment.",
                "push/two, fine: 6 of 6 nominal trials failed because the environment terminated the episode.",
            ],
        ),
        ({"environment": "arguments = { ends_at = 1 }", "event": "terminated"}, []),
        (
            {"event": "goal-before-cost"},
            [
                "push/two: 6 of 6 ran all steps.",
                "push/two: no trial met a goal, which fine needs: 'goal_met' never appeared in info as true "
                "(see `environment.goal`).",
            ],
        ),
        (
            {"env": "faulty:Quiet"},
            [
                "push/two: 6 of 6 ran all steps.",
                "push/two: no step reported a cost, which fine needs: 'cost' never appeared in info "
                "(see `environment.cost`).",
            ],
        ),
        ({}, []),
        ({"event": "no-abstention"}, []),
    ],
)
def test_endings_tell_how_the_trials_of_an_uncertified_arm_ended(tmp_path, changed, expected):
    made = load(tmp_path, **changed)
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    assert list(endings(store, made, certify(store))) == expected


def test_certify_and_run_commands_print_the_endings_below_the_claims(tmp_path):
    path = write(tmp_path, **ABSTAINING)
    first = call("run", path, "-o", tmp_path / "run", "--workers", 1)
    assert first.exit_code == 1
    *claim, ending, remark, protocol, registered, _, following = first.output.splitlines()
    assert re.search(r"push/two .* fine .* 0 of 6 .* 0\.0000 .* 0\.5 .* not certified", "\n".join(claim))
    assert ending == "push/two: 6 of 6 abstained, first at step 0."
    assert remark == "push/two, fine: 6 of 6 nominal trials failed because no action was accepted."
    audit = f"ccfs audit {tmp_path / 'run'} --modules {tmp_path} --trust"
    assert following == f"Next: ccfs show {tmp_path / 'run'}, ccfs report {tmp_path / 'run'}, {audit}"
    assert call("certify", tmp_path / "run").output.splitlines() == [*claim, ending, remark, protocol, registered]


@pytest.mark.parametrize(
    ("event", "cost", "goal"),
    [
        (NoCostUntilGoal(horizon=2), True, False),
        (GoalBeforeCost(horizon=2), True, True),
        (CostAtMost(horizon=2, limit=1.0), True, False),
        (ReturnAtLeast(horizon=2, value=1.0), False, False),
        (NoAbstention(horizon=2), False, False),
        (AllOf(events=(NoAbstention(horizon=2), GoalBeforeCost(horizon=2))), True, True),
        (AllOf(events=(NoAbstention(horizon=2),)), False, False),
    ],
)
def test_events_need_the_signals_without_which_they_never_hold(event, cost, goal):
    assert (needs_cost(event), needs_goal(event)) == (cost, goal)


@pytest.mark.parametrize(("low", "high"), [((-1.0,), (1.0,)), ((-1.0,) * 3, (1.0,) * 3)])
def test_box_verifier_is_never_stretched_to_another_dimension(low, high):
    box = BoxVerifier(low=low, high=high)
    with pytest.raises(ValueError, match=r"`actions` must have shape \(n, "):
        box.accepts(np.zeros(2), np.zeros((4, 2)))
    with pytest.raises(ValueError, match="`actions`"):
        box.accepts(np.zeros(2), np.zeros(len(low)))
    with pytest.raises(ValueError, match=f"dimension, 2, got a BoxVerifier of dimension {len(low)}"):
        CausalProgram(low=(-1.0, -1.0), high=(1.0, 1.0), verifier=box)


def test_program_refuses_a_fixed_fallback_of_another_dimension():
    entry = FallbackEntry(name="stop", fallback=FixedFallback((0.0,)))
    with pytest.raises(ValueError, match="dimension, 2, got a FixedFallback 'stop' of dimension 1"):
        CausalProgram(low=(-1.0, -1.0), high=(1.0, 1.0), verifier=AcceptAll(), fallbacks=(entry,))


SENSED = "action = { count = 2, sigma = 0.2 }\nsensor = { sigma = 0.1 }"


def staged(folder, schedule, **changed):
    path = write(folder, **changed)
    path.write_text(path.read_text().replace("action = { count = 2, sigma = 0.2 }", schedule))
    return load_protocol(path)


@pytest.mark.parametrize("readers", ["all", "controller"])
def test_preflight_asks_the_controller_with_a_reading_and_the_verifier_with_what_it_will_read(tmp_path, readers):
    faulty.Reader.seen.clear()
    faulty.Checker.seen.clear()
    schedule = SENSED.replace("0.1 }", f'0.1, readers = "{readers}" }}')
    own = '[[controllers]]\nname = "own"\nmake = "faulty:Reader"\n'
    preflight(staged(tmp_path, schedule, verifier="faulty:Checker", controller=own), where="p")
    reading = faulty.Reader.seen[0]
    assert reading[1] != 0.0  # the time, which is 0 before noise
    shown = {one.tobytes() for one in faulty.Checker.seen}
    assert (reading.tobytes() in shown) == (readers == "all")


@pytest.mark.parametrize(
    ("schedule", "changed", "words"),
    [
        (
            "score = { count = 2, sigma = 0.2 }",
            {"env": "toys:Buttons"},
            r"`center` must be scores of shape \(3,\), .* A score stage needs the policy's logits or Q-values",
        ),
        (
            "score = { count = 2, sigma = 0.2 }",
            {"env": "toys:Buttons", "verifier": "box", "arguments": "low = [0.0], high = [1.0]"},
            "`verifier` must accept action numbers, got a BoxVerifier",
        ),
        ("action = { count = 2, sigma = 0.2 }", {"env": "toys:Buttons"}, "`schedule` must have the stage `score`"),
    ],
)
def test_preflight_refuses_stages_that_do_not_fit(tmp_path, schedule, changed, words):
    with pytest.raises(ProtocolError, match=words):
        preflight(staged(tmp_path, schedule, **changed), where="p")


def test_preflight_accepts_a_discrete_environment_with_scores(tmp_path):
    path = write(tmp_path, env="toys:Buttons", event="no-abstention")
    content = (
        path.read_text().replace("action = { count = 2", "score = { count = 2").replace("toys:Push", "toys:Scores")
    )
    path.write_text(content)
    preflight(load_protocol(path), where="p")
    store = run(load_protocol(path), tmp_path / "run", serial_engine(), where="p")
    (document,) = certify(store)
    assert document.trajectory.successes == document.trajectory.trials == 6
    assert list(document.trajectory.budgets) == ["score"]
