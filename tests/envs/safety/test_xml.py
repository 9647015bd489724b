"""Our XML reader and writer against xmltodict, on the worlds that are built with it."""

from __future__ import annotations

import pytest
import xmltodict

from ccfs.envs.safety import xml
from ccfs.envs.safety.fast import LightBuilder

# NumPy's word on how stock reads a joint number, in every robot but Point.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0:DeprecationWarning")


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["SafetyPointButton2-v0", "SafetyCarPush1-v0", "SafetyDoggoGoal1-v0"])
def test_xml_equals_xmltodict(env_id, build):
    env = build(LightBuilder, env_id)
    env.reset(seed=1)
    world = env.task.world
    assert xml.unparse(world.xml) == xmltodict.unparse(world.xml) == world.xml_string
    for text in (world.xml_string, world.agent_base_xml):
        assert xml.parse(text) == xmltodict.parse(text)


def test_xml_quotes_what_must_be_quoted():
    document = {"a": {"@b": 'x<y&"z"\t', "@n": 3, "c": [None, {"@d": "1"}]}}
    assert xml.unparse(document) == xmltodict.unparse(document)


def test_xml_refuses_character_data():
    with pytest.raises(ValueError, match="`text` must have no character data, got 'words'"):
        xml.parse("<a>words</a>")
