"""Load a study's script, and check what every stored study promises: whole files, small rows, figures, a README."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"
NOT_DERIVED = {"command", "packages", "oracle", "processor_seconds"}


def load(name: str) -> ModuleType:
    """Import `experiments/<name>/run.py` under a name of its own."""
    known = sys.modules.get(f"study_{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"study_{name}", EXPERIMENTS / name / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def derived(name: str) -> dict:
    """Return the part of a stored summary that its rows determine."""
    stored = json.loads((EXPERIMENTS / name / "summary.json").read_text(encoding="utf-8"))
    return {key: value for key, value in stored.items() if key not in NOT_DERIVED}


def summary(name: str) -> dict:
    """Return a stored summary."""
    return json.loads((EXPERIMENTS / name / "summary.json").read_text(encoding="utf-8"))


def check_stored_files(name: str, study: ModuleType) -> None:
    """Checksums hold and cover every data file; the command is recorded; data files stay below 2 MB."""
    folder = EXPERIMENTS / name
    assert study.records.broken_seals(folder) == []
    sealed = {line.split("  ", 1)[1] for line in (folder / "checksums.txt").read_text().splitlines()}
    data = {path.name for suffix in ("*.csv", "*.parquet", "*.json") for path in folder.glob(suffix)}
    assert sealed == data
    assert all((folder / file).stat().st_size < 2_000_000 for file in sealed)
    assert summary(name)["command"].startswith(f"python experiments/{name}/run.py")


def check_seal_finds_a_changed_byte(name: str, study: ModuleType, folder: Path) -> None:
    """A copy with one changed byte must be named."""
    for file in (EXPERIMENTS / name).glob("*.*"):
        if file.suffix in {".csv", ".parquet", ".json", ".txt"}:
            (folder / file.name).write_bytes(file.read_bytes())
    assert study.records.broken_seals(folder) == []
    content = bytearray((folder / "summary.json").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "summary.json").write_bytes(bytes(content))
    assert study.records.broken_seals(folder) == ["summary.json"]


def check_picture(path: Path) -> None:
    """A PNG of a readable size that is not one flat colour."""
    from matplotlib.image import imread

    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width >= 600
    assert height >= 400
    assert float(np.std(imread(path))) > 0.05


def check_readme(name: str, *numbers: str) -> None:
    """The README's table shows these numbers, which the caller formats from the stored summary."""
    text = (EXPERIMENTS / name / "README.md").read_text(encoding="utf-8")
    missing = [number for number in numbers if number not in text]
    assert missing == []


def pick(rows: dict[str, np.ndarray], index: int) -> dict[str, object]:
    """Return one row of a table."""
    return {name: column[index] for name, column in rows.items()}


def check_same_row(stored: dict[str, object], computed: dict[str, object], *, rtol: float) -> None:
    """Numbers agree to `rtol` (other machines round differently), everything else exactly."""
    assert set(stored) == set(computed)
    for key, value in computed.items():
        if isinstance(value, float):
            np.testing.assert_allclose(float(stored[key]), value, rtol=rtol, atol=1e-15, err_msg=key)
        else:
            assert stored[key] == value, key
