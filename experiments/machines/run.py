"""Run the same trajectories on imitated processors and count whose hash chains agree.

    python experiments/machines/run.py [--trials 16] [--horizon 500] [--out summary.json]
    python experiments/machines/run.py --table FOLDER [--out table.json]

The trajectories are the first trials of each of the six arms of `experiments/goal2/protocol.toml`, without attack, with
exact observations and with the resolution that the protocol declares. Each imitated processor is a child process whose
numpy, matrix library or C library is told to leave some vector instructions unused. The native run of the same
machine is the reference. The command also measures how far raw observations differ, and how often one lies so close to
a tie of the rounding that the difference could matter.

With `--table` the whole table, attacked trials included, runs on the most different of these processors into FOLDER. An
interrupted run goes on there. Its hash chains are compared with the kept ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

import gymnasium
import numpy as np

from ccfs.files.parquet import read_parquet
from ccfs.protocol.model import Protocol, load_protocol, parse_protocol
from ccfs.results.trial_lines import trial_lines
from ccfs.runs.build import build_arm
from ccfs.runs.store import Store
from ccfs.runs.trial import StopRule, run_trial

HERE = Path(__file__).parent
PROTOCOL = HERE.parent / "goal2" / "protocol.toml"
KEPT = HERE.parent / "goal2" / "results" / "table" / "trajectories.parquet"
OLD = "numpy without AVX2 and FMA3, OpenBLAS for Nehalem"
TRIAL = ("controller", "schedule", "attack", "trial")
AVX512 = ["AVX512F", "AVX512CD", "AVX512_SKX", "AVX512_CLX", "AVX512_CNL", "AVX512_ICL", "AVX512_SPR"]


def processors() -> dict[str, dict[str, str]]:
    """Return the environment variables of each imitated processor, of those that this machine can imitate."""
    here = cpu_features()
    wide = " ".join(name for name in AVX512 if name in here)
    no_fma = " ".join(name for name in (*AVX512, "AVX2", "FMA3") if name in here)
    found = {
        "native": {},
        "numpy without AVX-512": {"NPY_DISABLE_CPU_FEATURES": wide},
        "numpy without AVX2 and FMA3": {"NPY_DISABLE_CPU_FEATURES": no_fma},
        "OpenBLAS for Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
        "OpenBLAS for Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
        "numpy without AVX2 and FMA3, OpenBLAS for Nehalem": {
            "NPY_DISABLE_CPU_FEATURES": no_fma,
            "OPENBLAS_CORETYPE": "Nehalem",
        },
        "C library without AVX2 and FMA": {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"},
    }
    # An empty value would disable nothing, and the comparison could not fail.
    return {name: env for name, env in found.items() if all(env.values())}


def cpu_features() -> set[str]:
    """Return the vector instructions that numpy uses on this processor."""
    umath = np.core._multiarray_umath if np.__version__ < "2" else np._core._multiarray_umath  # type: ignore[attr-defined]
    return {name for name, is_there in umath.__cpu_features__.items() if is_there}


class Tap(gymnasium.Wrapper):
    """Keeps the raw observations."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.raw: list[np.ndarray] = []

    def reset(self, **arguments):
        """Keep the first observation."""
        observation, info = self.env.reset(**arguments)
        self.raw.append(np.array(observation))
        return observation, info

    def step(self, action):
        """Keep the observation after the step."""
        returned = self.env.step(action)
        self.raw.append(np.array(returned[0]))
        return returned


def study(resolution: str | None, trials: int, horizon: int) -> Protocol:
    """Return the protocol of the table, cut to its first trials and steps; None keeps the declared resolution."""
    content = load_protocol(PROTOCOL).first(trials).model_dump(mode="json")
    content |= {"horizon": horizon, "attacks": []}
    if resolution is not None:
        content["environment"]["resolution"] = resolution
    return parse_protocol(content, where=PROTOCOL.name)


def roll(resolution: str | None, trials: int, horizon: int, raw: Path | None = None) -> list[dict[str, object]]:
    """Run every trial of every arm; return one line each, and write the raw observations."""
    protocol, lines, seen = study(resolution, trials, horizon), [], []
    stop = StopRule(goal=protocol.stop.goal, cost=protocol.stop.cost)
    for arm in protocol.arms:
        wrapped, controller = build_arm(protocol, arm, None)
        wrapped.env = tap = Tap(wrapped.env)
        for trial in range(trials):
            streams = protocol.streams(arm, trial)
            _, row = run_trial(wrapped, controller, horizon=horizon, stop=stop, streams=streams)
            lines.append(
                {"chain": row.chain.hex(), "reward": row.total_reward.hex(), "steps": row.steps, "outcome": row.outcome}
            )
        seen += tap.raw
        wrapped.close()
    if raw is not None:
        np.save(raw, np.array(seen))
    return lines


def elsewhere(env: dict[str, str], *, resolution: str | None, trials: int, horizon: int, raw: Path) -> list[dict]:
    """Run the trials in a child process on an imitated processor."""
    words = [sys.executable, __file__, "--child", resolution or "", "--trials", str(trials), "--horizon", str(horizon)]
    done = subprocess.run(
        [*words, "--raw", str(raw)], env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout)


def agreement(lines: list[dict], reference: list[dict]) -> dict[str, int]:
    """Count the trajectories that agree, by what is compared."""
    pairs = list(zip(lines, reference, strict=True))
    return {key: sum(one[key] == other[key] for one, other in pairs) for key in ("chain", "reward", "steps", "outcome")}


def ties(raw: np.ndarray, other: np.ndarray, resolution: float) -> dict[str, float]:
    """Compare raw observations of trajectories that took the same actions, and look for near ties."""
    deviation = np.abs(raw - other)
    cells = raw / resolution
    # Distance to the nearest half of a cell. The rounding of a cell count to a double is far below a deviation.
    to_tie = np.abs(np.abs(cells - np.rint(cells)) - 0.5) * resolution
    return {
        "numbers": int(raw.size),
        "numbers_that_differ": int((deviation > 0.0).sum()),
        "greatest_deviation": float(deviation.max()),
        "numbers_within_the_greatest_deviation_of_a_tie": int((to_tie <= deviation.max()).sum()),
        # A tie lies between two values at distance d with probability d / resolution, if it may be anywhere.
        "expected_differing_observations_in_a_million": float(1e6 * raw.shape[1] * deviation.mean() / resolution),
    }


def chains_digest(lines: Iterable[Mapping[str, object]]) -> str:
    """Return one SHA-256 over the hash chains of all trials, in the order of arms, attacks and numbers."""
    named = sorted(f"{[line[key] for key in TRIAL]} {bytes(line['chain']).hex()}\n" for line in lines)
    return hashlib.sha256("".join(named).encode()).hexdigest()


def table(folder: Path) -> dict[str, object]:
    """Run the whole table on an imitated processor and compare its hash chains with the kept ones."""
    variables = processors()[OLD]
    words = [sys.executable, "-m", "ccfs", "study", "run", "goal2", "-o", str(folder), "--workers", "1"]
    # It exits with 1 when a claim is not certified, which is a result.
    if subprocess.run(words, env={**os.environ, **variables}, check=False).returncode not in (0, 1):
        raise SystemExit(f"The run in {folder} did not finish.")
    store = Store(folder)
    lines, kept = trial_lines(store, store.protocol()).to_pylist(), read_parquet(KEPT.read_bytes()).to_pylist()
    before = {tuple(line[key] for key in TRIAL): line["chain"] for line in kept}
    other = [line for line in lines if before[tuple(line[key] for key in TRIAL)] != line["chain"]]
    return {
        "command": "python experiments/machines/run.py --table runs/machines-table",
        "processor": OLD,
        "variables": variables,
        "protocol": store.protocol().hash,
        "trials": len(lines),
        "attacked": sum(line["attack"] != "nominal" for line in lines),
        "trials_with_another_chain": len(other),
        "chains": chains_digest(lines),
        "versions": {name: version(name) for name in ("numpy", "mujoco", "safety-gymnasium")},
        "features_of_this_processor": sorted(cpu_features()),
    }


def main() -> None:
    """Compare all imitated processors with the native one, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16, help="trajectories of each of the six arms")
    parser.add_argument("--horizon", type=int, default=500, help="greatest number of steps")
    parser.add_argument("--table", type=Path, metavar="FOLDER", help="run the whole table there instead")
    parser.add_argument("--out", type=Path, help="the file to write (summary.json, or table.json)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--raw", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        json.dump(roll(given.child or None, given.trials, given.horizon, given.raw), sys.stdout)
        return
    out = given.out or HERE / ("summary.json" if given.table is None else "table.json")
    if given.table is not None:
        write(table(given.table), out)
        return
    declared = study(None, given.trials, given.horizon).environment
    results: dict[str, dict[str, object]] = {}
    reference: dict[str, tuple[list[dict], Path]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, env in processors().items():
            results[name] = {"variables": env}
            for resolution in ("exact", declared.resolution):
                raw = Path(folder) / f"{len(results)}-{resolution}.npy"
                lines = elsewhere(env, resolution=resolution, trials=given.trials, horizon=given.horizon, raw=raw)
                native, native_raw = reference.setdefault(resolution, (lines, raw))  # the first processor is native
                found: dict[str, object] = dict(agreement(lines, native))
                if resolution != "exact" and found["chain"] == len(lines) and declared.grid is not None:
                    found["observations"] = ties(np.load(native_raw), np.load(raw), declared.grid)
                results[name][resolution] = found
                sys.stderr.write(f"{name}, {resolution}: {found['chain']} of {len(lines)} chains agree\n")
    summary = {
        "command": f"python experiments/machines/run.py --trials {given.trials} --horizon {given.horizon}",
        "trajectories": len(native),
        "steps": sum(int(str(line["steps"])) for line in native),
        "resolution": declared.resolution,
        "versions": {name: version(name) for name in ("numpy", "mujoco", "safety-gymnasium")},
        "features_of_this_processor": sorted(cpu_features()),
        "agree_with_native": results,
    }
    write(summary, out)


def write(found: dict[str, object], out: Path) -> None:
    """Write a result and say where."""
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.stderr.write(f"{out} is written\n")


if __name__ == "__main__":
    main()
