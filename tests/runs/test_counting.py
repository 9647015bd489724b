from __future__ import annotations

import pytest
from toy_protocol import protocol, text

from ccfs.certificates.binomial import bonferroni
from ccfs.certificates.bounds import Bound
from ccfs.results.certify import certify
from ccfs.runs.counting import is_enough, shortfall
from ccfs.runs.executors import serial_engine
from ccfs.runs.run import run
from ccfs.runs.store import RunError


def test_is_enough_waits_for_the_last_of_several_events(tmp_path):
    law = ("cohort = { first = 100, count = 400 }", "initial_law = 400")
    stop = ('bound = "cohort"', 'bound = "anytime"\nstop_at_budget = 0.05')
    second = ("[[attacks]]", '[[events]]\nname = "acts"\nevent = "no-abstention"\n\n[[attacks]]')
    made = protocol(tmp_path, trials=400, a=law, b=stop, c=second)
    arm = made.arms[0]
    assert is_enough(made, arm, {"safe": [True] * 400, "acts": [True] * 400})
    for safe, acts in ((400, 200), (200, 400), (0, 0)):
        found = {"safe": [i < safe for i in range(400)], "acts": [i < acts for i in range(400)]}
        assert not is_enough(made, arm, found)


@pytest.mark.parametrize("bound", list(Bound))
@pytest.mark.parametrize(("delta", "family", "target"), [(0.001, 1, 0.9), (0.05, 60, 0.5), (0.2, 3, 0.99)])
def test_shortfall_names_the_least_number_that_could_certify(bound, delta, family, target):
    message = shortfall(1, delta=delta, family=family, target=target, bound=bound)
    least = int(message.partition("at least ")[2].split()[0])
    share = bonferroni(delta, family)
    assert bound.lower(least, least, delta=share) >= target > bound.lower(least - 1, least - 1, delta=share)
    assert shortfall(least, delta=delta, family=family, target=target, bound=bound) is None


def test_shortfall_says_when_no_protocol_has_so_many_trials():
    message = shortfall(5, delta=0.001, family=1, target=1.0 - 1e-9, bound=Bound.HOEFFDING)
    assert message.endswith("more than 1000000 trials are needed")
    with pytest.raises(ValueError, match="`target`"):
        shortfall(5, delta=0.001, family=1, target=float("nan"), bound=Bound.COHORT)


@pytest.mark.parametrize("most", [1, 3, 4])
def test_an_event_with_a_memory_is_refused_and_nothing_is_certified(tmp_path, most):
    """The four trials of the first batch would count as `most` successes, whatever happened in them."""
    own = f'event = "faulty:Counting"\narguments = {{ most = {most} }}'
    made = protocol(tmp_path, trials=4, event=('event = "no-cost-until-goal"', own))
    store = run(made, tmp_path / "run", serial_engine(), where="p")
    with pytest.raises(RunError, match=r"the event 'safe' gave two answers about trial [0-3].*no memory"):
        certify(store)
    assert not list(store.root.rglob("safe.json"))


@pytest.mark.parametrize("traces", ["", 'traces = "hashes"\n'])
def test_an_event_with_coins_of_its_own_is_refused_although_it_nearly_always_holds(tmp_path, traces):
    """It holds with probability 0.98, so the answers about four trials mostly agree. The coins are found themselves."""
    own = ('event = "no-cost-until-goal"', 'event = "faulty:Lucky"')
    attack = (text().partition("[[attacks]]")[1] + text().partition("[[attacks]]")[2], "")
    made = protocol(tmp_path, trials=4, event=own, batch=("batch = 4", f"{traces}batch = 4"), attack=attack)
    with pytest.raises(RunError, match=r"draws random numbers from _COINS|gave two answers") as caught:
        certify(run(made, tmp_path / "run", serial_engine(), where="p"))
    assert "Nothing is certified." in str(caught.value)
    assert not list((tmp_path / "run").rglob("safe.json"))
