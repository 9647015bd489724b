"""The short names of our parts: each can be imported, and a protocol that says it another way learns the name."""

from __future__ import annotations

import re

import pytest
from toy_protocol import protocol, text

from ccfs.files.toml import read_toml
from ccfs.protocol.model import ProtocolError, parse_protocol
from ccfs.protocol.registry import PARTS, accepted, short_name, target
from ccfs.runs.build import part_targets, resolve

NAMES = [(kind, name) for kind, table in PARTS.items() for name in table]


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_registry_name_has_one_spelling_and_can_be_imported(kind, name):
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert accepted(kind, name) == name
    assert callable(resolve("part", target(kind, name)))


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_registry_refuses_our_module_path_and_says_the_short_name(kind, name):
    path = target(kind, name)
    if path.startswith("ccfs"):
        with pytest.raises(ValueError, match=rf"by its short name, got '{re.escape(path)}': write '{name}'$"):
            accepted(kind, path)
    assert short_name(kind, path) == name


@pytest.mark.parametrize("path", ["ccfs:certify_policy", "ccfs.nothing:make", "ccfs.report:write_report"])
def test_registry_refuses_our_module_path_that_has_no_name(path):
    with pytest.raises(ValueError, match=r"by its short name, .* the names here are accept-all, box, lidar-box"):
        accepted("verifier", path)


@pytest.mark.parametrize("path", ["mine:Part", "mine.deep:Part.make", "ccfs_mine:Part", "_a:_b"])
def test_registry_leaves_code_of_the_users_own_alone(path):
    assert accepted("verifier", path) == target("verifier", path) == path


@pytest.mark.parametrize(
    "path", ["", ":", "a:", ":b", "a:b:c", "a b:c", "a:b\n", "ä:b", "a-b:c", "LIDAR-BOX", "lidar-box "]
)
def test_registry_refuses_what_is_neither_a_name_nor_a_path(path):
    with pytest.raises(ValueError, match="must be one of accept-all, box, lidar-box"):
        accepted("verifier", path)


def test_registry_names_belong_to_their_kind():
    assert target("controller", "navigator") != target("fallback", "navigator")
    with pytest.raises(ValueError, match="must be one of safety-gymnasium, gymnasium, gymnasium-anew, corridor, chain"):
        accepted("environment", "lidar-box")


OLD = [
    ('make = "corridor"', "ccfs.envs.toys.corridor:make", "environment.make", "corridor"),
    ('make = "steering"', "ccfs.envs.toys.corridor:make_steering", "controllers.0.make", "steering"),
    ('make = "box"', "ccfs.runtime.components:BoxVerifier", "program.verifier.make", "box"),
    ('make = "center"', "ccfs.runtime.components:CenterFallback", "program.fallbacks.0.make", "center"),
    ('event = "no-cost-until-goal"', "ccfs.runs.events:NoCostUntilGoal", "events.0.event", "no-cost-until-goal"),
    ('rule = "constant"', "ccfs.attacks.rules:ConstantShift", "attacks.0.rule", "constant"),
]


@pytest.mark.parametrize(("line", "path", "key", "name"), OLD)
def test_protocol_refuses_our_module_path_and_says_the_short_name(line, path, key, name):
    content = read_toml(text(x=(line, f'{line.partition(" ")[0]} = "{path}"')))
    with pytest.raises(ProtocolError, match=rf"^p: `{key}`: must name a part of ccfs .* write '{name}'\.$"):
        parse_protocol(content, where="p")


def test_protocol_hash_holds_no_module_path_of_ours(tmp_path):
    made = protocol(tmp_path)
    assert "ccfs." not in made.canonical
    assert all(path.startswith("ccfs.") for paths in part_targets(made).values() for path in paths)
