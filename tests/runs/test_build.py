"""Parts of a protocol as live objects: whatever a user's own factory returns goes through the one intake."""

from __future__ import annotations

import numpy as np
import pytest
from toy_protocol import protocol

from ccfs.controllers import NumpyActor, from_callable
from ccfs.protocol.errors import ProtocolError
from ccfs.runs.build import build_controller

HELPER = object()


def push(observation):
    return 0.1 * np.ones(1)


def made_of(monkeypatch, tmp_path, policy):
    import toys

    monkeypatch.setattr(toys, "made_here", lambda: policy, raising=False)
    loaded = protocol(tmp_path, change=('steering"\narguments = { gain = 0.2 }', 'toys:made_here"'))
    return build_controller(loaded, loaded.arms[0])


def test_build_controller_takes_a_function_and_a_path(monkeypatch, tmp_path):
    made = made_of(monkeypatch, tmp_path, push)
    assert made.center(np.zeros(2)).tolist() == [0.1]
    assert made.digest == from_callable(push, "policy").digest
    actor = NumpyActor(weights=(np.ones((1, 2)),), biases=(np.zeros(1),), activation="tanh")
    actor.save(tmp_path / "actor.npz")
    assert made_of(monkeypatch, tmp_path, tmp_path / "actor.npz") == actor


def test_build_controller_refuses_what_has_no_digest_or_is_no_policy(monkeypatch, tmp_path):
    with pytest.raises(
        ProtocolError, match=r"`controllers\.0\.make` must give a controller whose digest .*content=\.\.\."
    ):
        made_of(monkeypatch, tmp_path, lambda observation: (HELPER, push(observation))[1])
    with pytest.raises(ProtocolError, match=r"`controllers\.0\.make` must give a policy, got 3: `policy` must be"):
        made_of(monkeypatch, tmp_path, 3)
