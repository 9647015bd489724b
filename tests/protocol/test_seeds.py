from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from toy_protocol import protocol

from ccfs.protocol.model import ProtocolError
from ccfs.protocol.seeds import TrialsSpec, UsedRange

HASH = "ab" * 32


def kept_run(folder, made):
    folder.mkdir(parents=True)
    (folder / "protocol.json").write_text(made.canonical)


def using(folder, used):
    folder.mkdir(parents=True, exist_ok=True)
    return protocol(folder, x=("count = 10 }", f"count = 10 }}\nused_before = [{used}]"))


def test_protocol_used_before_takes_ranges_of_any_size_and_keeps_them(tmp_path):
    used = "[{ first = 2147483648, count = 2147483648 }, 17, { first = 110, count = 5 }]"
    made = protocol(tmp_path, x=("count = 10 }", f"count = 10 }}\nused_before = {used}"))
    assert [made.trials.seeds[i] for i in (0, 9)] == [100, 109]
    kept = '"used_before":[{"count":2147483648,"first":2147483648},17,{"count":5,"first":110}]'
    assert kept in made.canonical
    assert kept in made.first(2).canonical


def test_protocol_keeps_plain_seeds_as_they_are_written(tmp_path):
    made = protocol(tmp_path, x=("count = 10 }", "count = 10 }\nused_before = [3, 5]"))
    assert '"used_before":[3,5]' in made.canonical


@pytest.mark.parametrize(
    ("used", "message"),
    [
        (f'{{ protocol = "{HASH}", seeds = [3, {{ first = 95, count = 6 }}] }}', r"both hold 100\b"),
        (f'{{ protocol = "{HASH}" }}', "`used_before` must give the `seeds` of protocol abab"),
        ('{ protocol = "ab", seeds = [3] }', r"`trials.used_before.0.protocol`: string should match"),
        ("{ seeds = [3] }", r"key `trials.used_before.0.protocol` is missing"),
        (f'{{ protocol = "{HASH}", seeds = ["3"] }}', r"`trials.used_before.0.seeds.0`"),
        ('{ run = "nowhere" }', r"`trials.used_before.0.run` must be a run folder, but .*nowhere"),
        ("{ run = 3 }", r"`trials.used_before.0` must give `run`, a folder, and nothing else"),
        ('{ run = "a", seeds = [3] }', r"`trials.used_before.0` must give `run`, a folder, and nothing else"),
    ],
)
def test_protocol_used_before_refuses_what_it_cannot_check(tmp_path, used, message):
    with pytest.raises(ProtocolError, match=message) as caught:
        using(tmp_path, used)
    assert str(caught.value).startswith(f"{tmp_path / 'protocol.toml'}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_protocol_used_before_reads_a_run_and_keeps_no_path(tmp_path):
    pilot = protocol(tmp_path, x=("first = 100, count = 10", "first = 40, count = 8"))
    kept_run(tmp_path / "runs" / "pilot", pilot)
    kept_run(tmp_path / "deep" / "elsewhere", pilot)
    one = using(tmp_path, '{ run = "runs/pilot" }')
    other = using(tmp_path / "deep" / "study", '{ run = "../elsewhere" }')
    written = using(tmp_path, f'{{ protocol = "{pilot.hash}", seeds = [{{ first = 40, count = 8 }}] }}')
    assert one.hash == other.hash == written.hash
    assert "pilot" not in one.canonical
    kept_run(tmp_path / "same", protocol(tmp_path, x=("count = 10 }", "count = 8 }")))
    with pytest.raises(ProtocolError, match="both hold 100 to 107"):
        using(tmp_path, '{ run = "same" }')


def test_protocol_used_before_reads_the_drawn_seeds_of_a_law(tmp_path):
    cohort, law = "cohort = { first = 100, count = 10 }", "initial_law = 3"
    pilot = protocol(tmp_path, x=(cohort, law), y=('bound = "cohort"', 'bound = "clopper-pearson"'))
    drawn = {pilot.streams(arm, trial).reset_seed for arm in pilot.arms for trial in range(3)}
    kept_run(tmp_path / "law", pilot)
    assert using(tmp_path, '{ run = "law" }').trials.used_before[0].seeds == tuple(sorted(drawn))
    with pytest.raises(ProtocolError, match=f"both hold {min(drawn)}"):
        protocol(tmp_path, x=(cohort, f'cohort = [{min(drawn)}, 5]\nused_before = [{{ run = "law" }}]'))


def test_protocol_of_a_law_may_name_a_protocol_by_its_hash_alone(tmp_path):
    cohort, law = "cohort = { first = 100, count = 10 }", f'initial_law = 10\nused_before = [{{ protocol = "{HASH}" }}]'
    made = protocol(tmp_path, x=(cohort, law), y=('bound = "cohort"', 'bound = "clopper-pearson"'))
    assert made.trials.used_before[0].protocol == HASH


@settings(deadline=None)
@given(
    cohort=st.sets(st.integers(0, 40), min_size=1),
    ranges=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), max_size=4),
)
def test_protocol_cohort_is_refused_exactly_when_it_meets_a_used_range(cohort, ranges):
    # Oracle: the ranges written out as sets.
    spent = {seed for first, count in ranges for seed in range(first, first + count)}
    given = {"cohort": tuple(cohort), "used_before": tuple(UsedRange(first=f, count=c) for f, c in ranges)}
    if cohort & spent:
        with pytest.raises(ValidationError, match=rf"both hold {min(cohort & spent)}\b"):
            TrialsSpec(**given)
    else:
        TrialsSpec(**given)
