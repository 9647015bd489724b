"""Trials that do not repeat are refused without a certificate, and honest parts are not."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

from ccfs.protocol.model import parse_protocol
from ccfs.results.certify import certify
from ccfs.runs.executors import process_engine, serial_engine
from ccfs.runs.generators import drawn_from, generators_now, own_generators
from ccfs.runs.manifest import MANIFEST
from ccfs.runs.repeats import repeated, repeats, spread
from ccfs.runs.run import run
from ccfs.runs.store import PremiseError, RunError, Store
from ccfs.runtime.remade import generators_kept


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


def test_sixteen_trials_of_a_small_arm_run_again_the_first_and_the_last_among_them(tmp_path, monkeypatch):
    """Each runs twice, because `Line` holds a generator."""
    seen = []
    monkeypatch.setattr("faulty.Seeded.seen", seen)
    run(study("faulty:Seeded", trials=40), tmp_path / "run", serial_engine(), where="test")
    assert len(seen) == 40 + 2 * 16
    assert (seen[40], seen[-1]) == (seen[0], seen[39])


@pytest.mark.parametrize("trials", [1, 2, 15, 16, 17, 18, 100, 640, 10_000])
def test_repeated_trials_are_the_declared_share_with_first_and_last(trials):
    found = repeated(trials, b"chain")
    assert found == sorted(set(found))
    assert (found[0], found[-1], len(found)) == (0, trials - 1, repeats(trials))
    assert found == repeated(trials, b"chain")
    assert trials <= 18 or found != repeated(trials, b"another chain")


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_repeated_trials_miss_a_share_as_rarely_as_promised(share):
    """Bad trials are every 1/share-th one, as a memory with a period would have it. Simulated over 4,000 chains.

    The promise is (1 - q) ** k. First and last are always among the repeated trials, and no bad one is either of them.
    So the k - 2 drawn ones count. Five standard errors are allowed for.
    """
    trials, period = 400, round(1.0 / share)
    bad = set(range(2, trials - 1, period))
    missed = sum(bad.isdisjoint(repeated(trials, seed.to_bytes(4, "big"))) for seed in range(4000)) / 4000
    promised = (1.0 - len(bad) / (trials - 2)) ** (repeats(trials) - 2)
    assert missed <= promised + 5.0 * (promised * (1.0 - promised) / 4000) ** 0.5


@pytest.mark.parametrize(
    "part",
    [
        {"env": "faulty:Entropy"},
        {"env": "faulty:Entropy", "at": 3},
        {"env": "faulty:Idler"},
        {"controller": "faulty:IdlingPush"},
    ],
)
def test_a_generator_of_a_part_is_named_even_if_it_changes_nothing(part, tmp_path):
    """The last two draw from a fixed seed and use nothing. Fresh parts draw the same, so no trace differs."""
    message = refused(study(**part, batch=16), tmp_path / "run")
    assert "random numbers are drawn from `" in message
    assert "own`, which no reset sets: the same trial leaves it in two states" in message


CLOSED, KEPT = np.random.default_rng(3), (random.Random(2),)


class Slotted:
    __slots__ = ("dice",)

    def __init__(self):
        self.dice = np.random.PCG64(1)


class Shared:
    dice = np.random.RandomState(1)


def closing():
    dice = random.Random(1)
    return lambda trace: dice.random()


@pytest.mark.parametrize(
    ("part", "place"),
    [
        (lambda trace: CLOSED.random(), "CLOSED"),
        (closing(), "part.dice"),
        (CLOSED.normal, "part"),
        (lambda trace, dice=KEPT: dice, "part[0][0]"),
        ({"a": (1, {"b": random.Random(1)})}, "part['a'][1]['b']"),
        (Slotted(), "part.dice"),
        (Shared(), "part.dice"),
        (partial(Shared), "part.dice"),
    ],
)
def test_own_generators_finds_generators_wherever_python_holds_them(part, place):
    assert list(own_generators({"part": part})) == [place]


def test_own_generators_walks_past_a_class_without_a_module():
    names: dict[str, object] = {}
    # Made where no `__name__` is known, as compiled code makes its classes.
    exec("made = type('Handle', (), {})()", names)
    assert not hasattr(type(names["made"]), "__module__")
    assert list(own_generators({"part": [names["made"], np.random.default_rng(0)]})) == ["part[1]"]


def test_own_generators_leaves_shared_ones_and_plain_objects_alone():
    assert own_generators({"part": [random.random, np.random.rand, Slotted, random, {"a": 1}, object(), steps]}) == {}


class _Homeless(type):
    """Makes classes that do not know their module, as SWIG does."""

    @property
    def __module__(cls):
        raise AttributeError("__module__")


def test_own_generators_passes_over_a_class_without_a_module():
    class Swig(metaclass=_Homeless):
        pass

    with pytest.raises(AttributeError):
        _ = Swig.__module__
    made = Swig()
    made.generator = np.random.default_rng(1)
    assert list(own_generators({"part": made})) == ["part.generator"]


def steps():
    return random.random() + np.random.rand()  # noqa: NPY002


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
