from __future__ import annotations

import hashlib
import math

import pytest

from ccfs.files.digests import canonical_json, file_digest, text_digest


def test_canonical_json_is_one_text_whatever_the_order_of_keys():
    assert canonical_json({"b": [1, 0.5, None], "a": "é"}) == '{"a":"\\u00e9","b":[1,0.5,null]}'
    assert canonical_json({"a": 1, "b": 2}) == canonical_json({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_canonical_json_refuses_what_json_has_no_number_for(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": [value]})


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1])
def test_file_digest_covers_every_byte(tmp_path, size):
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(content[:size])
    assert file_digest(tmp_path / "file") == hashlib.sha256(content[:size]).hexdigest()


def test_text_digest_is_that_of_the_utf8_bytes():
    # The standard's test vector for "abc" (FIPS 180-4).
    assert text_digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert text_digest("é") == hashlib.sha256(b"\xc3\xa9").hexdigest()
