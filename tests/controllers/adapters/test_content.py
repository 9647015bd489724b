"""The bytes behind a digest: no two different values or sequences of parts give the same ones."""

from __future__ import annotations

import numpy as np

from ccfs.controllers import from_callable
from ccfs.controllers.adapters.content import framed, value_content


def test_name_and_content_do_not_run_into_each_other() -> None:
    assert from_callable(np.tanh, "a;b", content=b"c").digest != from_callable(np.tanh, "a", content=b"b;c").digest
    assert framed("a", b"b") + framed("c", b"") != framed("a", b"b" + framed("c", b""))
    values = (1, 1.0, True, "1", b"1", None, 0.0, -0.0, (1,), ((1,),), np.ones(1), np.ones((1, 1)), np.float64(1.0))
    assert len({value_content("x", value) for value in values}) == len(values)
