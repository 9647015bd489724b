"""Trials that do not repeat are refused without a certificate, and honest parts are not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ccfs.protocol.model import parse_protocol
from ccfs.results.certify import certify
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.generators import drawn_from, generators_kept, generators_now
from ccfs.runs.manifest import MANIFEST
from ccfs.runs.repeats import FRESH, spread
from ccfs.runs.run import run
from ccfs.runs.store import PremiseError, RunError, Store


def study(env="toys:Line", controller="toys:Push", verifier="accept-all", *, batch=4, trials=16, **arguments):
    """A protocol of 16 short trials. `arguments` are those of the part that is not the default."""

    def part(make, default):
        return {"make": make, "arguments": {} if make == default else arguments}

    content = {
        "name": "repeats",
        "seed": 3,
        "horizon": 4,
        "batch": batch,
        "trials": {"initial_law": trials},
        "claim": {"delta": 0.05, "target": 0.5, "bound": "clopper-pearson"},
        "environment": part(env, "toys:Line"),
        "controllers": [{"name": "push", **part(controller, "toys:Push")}],
        "schedules": [{"name": "one", "action": {"count": 1, "sigma": 0.2}}],
        "program": {"verifier": part(verifier, "accept-all")},
        "events": [{"name": "acts", "event": "no-abstention"}],
    }
    return parse_protocol(content, where="test")


def refused(made, root, engine=None):
    """Run a protocol that must be refused. Return the message, after checking that nothing can be certified."""
    with pytest.raises(RunError) as caught:
        run(made, root, engine or serial_engine(), where="test")
    assert not (root / MANIFEST).exists()
    assert not (root / "certificates").exists()
    with pytest.raises(RunError, match=r"manifest.json: is missing"):
        certify(Store(root))
    return str(caught.value)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (study("faulty:Episodes", after=1), "step 0, reward. The environment behaved differently."),
        (study("faulty:Episodes", after=3, at=3), "step 3, reward. The environment behaved differently."),
        (study("faulty:Episodes", every=2), "step 0, reward. The environment behaved differently."),
        (study("faulty:Entropy"), "step 0, reward. The environment behaved differently."),
        (study("faulty:Entropy", at=3), "step 3, reward. The environment behaved differently."),
        (study("faulty:Coin"), "step 0, reward. The environment behaved differently."),
        (study("faulty:Coin", batch=1), "step 0, reward. The environment behaved differently."),
        (study("faulty:Coin", batch=16), "step 0, reward. The environment behaved differently."),
        (study(controller="faulty:Remembering"), "center. The controller answered differently."),
        (study(controller="faulty:Remembering", after=15), "step 3, center. The controller answered differently."),
        (study(verifier="faulty:Grumpy"), "source. The verifier or a fallback answered differently."),
    ],
    ids=lambda value: value.controllers[0].make + value.environment.make if hasattr(value, "environment") else "",
)
def test_a_memory_or_a_random_number_of_ones_own_is_refused(made, words, tmp_path):
    message = refused(made, tmp_path / "run")
    assert words in message
    assert "gives another trace when it is run again with everything made anew" in message
    assert message.endswith("Nothing is certified.")


@pytest.mark.parametrize(("env", "name"), [("faulty:Global", "numpy"), ("faulty:Idle", "Python's `random`")])
def test_a_shared_generator_that_moved_is_named(env, name, tmp_path):
    """The second one changes nothing, so its trials do repeat. They still draw what no reset seed sets."""
    message = refused(study(env), tmp_path / "run")
    assert name in message
    assert "which their reset seed does not set" in message


@pytest.mark.parametrize("every", [2, 3, 4])
def test_a_shared_generator_that_only_some_trials_draw_from_is_named(every, tmp_path):
    assert "Python's `random`" in refused(study("faulty:SometimesIdle", every=every), tmp_path / "run")


@pytest.mark.parametrize("env", ["toys:Line", "faulty:Reseeding"])
def test_parts_that_repeat_are_not_refused(env, tmp_path):
    store = run(study(env), tmp_path / "run", serial_engine(), where="test")
    assert len(certify(store)) == 1


@pytest.mark.slow
def test_a_memory_is_found_by_worker_processes_too(tmp_path):
    message = refused(study("faulty:Episodes", after=2), tmp_path / "run", process_engine(2))
    assert "The environment behaved differently." in message


def test_a_finished_run_is_not_checked_again_and_a_refused_one_is(tmp_path, monkeypatch):
    calls = []
    real = run.__globals__["refuse_other_repeats"]
    monkeypatch.setitem(run.__globals__, "refuse_other_repeats", lambda *a: calls.append(1) or real(*a))
    for _ in range(2):
        run(study(), tmp_path / "good", serial_engine(), where="test")
    assert len(calls) == 1
    bad = study("faulty:Episodes", after=1)
    for _ in range(2):
        refused(bad, tmp_path / "bad")
    assert len(calls) == 3


def test_at_most_eight_trials_of_an_arm_run_again(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("faulty.Seeded.seen", seen)
    run(study("faulty:Seeded", trials=40), tmp_path / "run", serial_engine(), where="test")
    assert len(seen) == 40 + FRESH
    assert (seen[40], seen[-1]) == (seen[0], seen[39])


def test_a_refusal_is_a_run_error_and_names_the_run(tmp_path):
    assert issubclass(PremiseError, RunError)
    assert refused(study("faulty:Coin"), tmp_path / "run").startswith(f"{tmp_path / 'run'}: trial ")


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 100, 1000])
def test_spread_has_the_first_and_the_last_and_no_number_twice(count):
    found = spread(count, 8)
    assert len(found) == min(count, 8) == len(set(found))
    assert (found[0], found[-1]) == (0, count - 1)
    assert found == sorted(found)


def draws(*, python=0, numpy=0, seed=None):
    def run_once():
        if seed is not None:
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
        [random.random() for _ in range(python)]
        np.random.rand(numpy)  # noqa: NPY002

    return run_once


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (draws(), None),
        (draws(python=1), ("Python's `random`",)),
        (draws(numpy=3), ("numpy's `np.random`",)),
        (draws(python=2, numpy=1), ("Python's `random`", "numpy's `np.random`")),
        (draws(python=2, numpy=1, seed=5), ()),
        (draws(seed=5), ()),
        (lambda: np.random.default_rng().random(), None),  # moves nothing that is shared
    ],
)
def test_drawn_from_tells_draws_from_seeding_and_restores_everything(call, names):
    before = generators_now()
    assert drawn_from(call) == names
    assert generators_now() == before


@pytest.mark.extras
def test_generator_of_torch_is_watched_if_torch_is_imported():
    import torch

    before = generators_now()
    assert drawn_from(lambda: torch.rand(1)) == ("torch's default generator",)
    assert drawn_from(lambda: torch.manual_seed(3)) == ()
    assert generators_now() == before
    with generators_kept():
        torch.rand(2)
    assert generators_now() == before
