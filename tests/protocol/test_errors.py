from __future__ import annotations

import importlib

import pytest
from toy_protocol import protocol

from ccfs.controllers import from_sb3
from ccfs.protocol.errors import ProtocolError, advice_on_arguments, advice_on_import, advice_on_kind
from ccfs.runs.build import check


def error_of(module):
    with pytest.raises(ImportError) as caught:
        importlib.import_module(module)
    return caught.value


def test_advice_on_import_is_given_for_a_module_of_ones_own_only():
    told = " Put 'no_such_module' beside the protocol file, or give its folder with --modules, or install it."
    assert advice_on_import("no_such_module:make", error_of("no_such_module")) == told
    assert advice_on_import("no_such_module.inner:make", error_of("no_such_module.inner")) == told
    assert advice_on_import("ccfs.nothing:make", error_of("ccfs.nothing")) == ""
    assert advice_on_import("mine:make", error_of("no_such_module")) == ""  # mine was found, and imports what is absent
    assert advice_on_import("mine:make", ValueError("raised at import")) == ""


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Verifier", "It must have `accepts(observation, actions)`."),
        ("Fallback", "It must have `action(observation, center)`."),
        ("Event", "It must have `holds(trace)`."),
        ("ShiftRule", "It must have `reset()` and `shift(history, rng, *, allowance)`."),
    ],
)
def test_advice_on_kind_says_what_is_needed(kind, words):
    assert words in advice_on_kind(kind)


def test_advice_on_kind_is_silent_about_other_kinds():
    assert advice_on_kind("Env") == ""


def test_advice_on_arguments_lists_what_is_taken_only_if_they_do_not_fit():
    told = " It takes: path_or_model, normalizer=None, env=None, observation_space=None, action_space=None, frames=1."
    assert advice_on_arguments(from_sb3, {"source": "ppo.zip"}) == told
    assert advice_on_arguments(from_sb3, {}) == told
    assert advice_on_arguments(from_sb3, {"path_or_model": "ppo.zip"}) == ""
    assert advice_on_arguments(lambda: None, {"x": 1}) == " It takes: nothing."
    assert advice_on_arguments(dict, {"x": 1}) == ""  # has no signature that Python could show


@pytest.mark.parametrize("asked", ["trace", "observation"])
def test_advice_on_arguments_tells_a_function_from_its_factory(asked):
    function = {"trace": lambda trace: True, "observation": lambda observation: observation}[asked]
    assert advice_on_arguments(function, {}).endswith(f"not a function of the {asked}.")
    assert advice_on_arguments(function, {asked: 1}) == ""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('make = "steering"', 'make = "no_such_module:make"', "`controllers.0.make` must name something"),
        ('make = "steering"', 'make = "no_such_module:make"', " Put 'no_such_module' beside"),
        ("arguments = { gain = 0.2 }", "arguments = { gian = 0.2 }", " It takes: gain=0.2."),
        ('make = "center"', 'make = "toys:AcceptAll"', " It must have `action(observation, center)`."),
        ('event = "no-cost-until-goal"', 'event = "toys:holds"', "not a function of the trace."),
    ],
)
def test_protocol_error_ends_with_the_advice(tmp_path, old, new, words):
    made = protocol(tmp_path, x=(old, new))
    with pytest.raises(ProtocolError) as caught:
        check(made, where="p.toml")
    assert words in str(caught.value)
