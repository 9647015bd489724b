from __future__ import annotations

import hashlib
import math

import pytest

from ccfs.files.digests import canonical_json, file_digest, files_below, folder_digest, text_digest


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


def test_folder_digest_covers_names_and_bytes_behind_links_too(tmp_path):
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_text("1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b").write_text("2")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "loop").symlink_to(folder)
    assert [path.relative_to(folder).as_posix() for path in files_below(folder)] == ["inner/a", "link/b"]
    seen = {folder_digest(folder, most=2)}
    with pytest.raises(ValueError, match="must hold at most 1 files"):
        folder_digest(folder, most=1)
    (tmp_path / "elsewhere" / "b").write_text("3")
    seen.add(folder_digest(folder, most=2))
    (folder / "inner" / "a").rename(folder / "a")
    seen.add(folder_digest(folder, most=2))
    assert len(seen) == 3


def test_text_digest_is_that_of_the_utf8_bytes():
    # The standard's test vector for "abc" (FIPS 180-4).
    assert text_digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert text_digest("é") == hashlib.sha256(b"\xc3\xa9").hexdigest()
