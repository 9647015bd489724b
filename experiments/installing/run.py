"""Build the wheel, install each extra in a fresh environment on each Python, and run one real command there.

    python experiments/installing/run.py              # all that is missing in summary.json; interrupt at will
    python experiments/installing/run.py 3.11 sb3     # only these Pythons and extras, anew

Not a part of `make test`: it downloads a lot and takes about an hour. Pythons are found as `python3.10` and so on.
torch is kept at the version of requirements.txt. Where an extra has no wheels, the first use must say so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import metadata
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUMMARY = HERE / "summary.json"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CORE = "core"
NO_WHEELS = ("safety", "omnisafe")
"""Extras without wheels for Python 3.12 and later."""
SHOWN = (
    "ccfs-rl",
    "numpy",
    "gymnasium",
    "pyarrow",
    "torch",
    "stable-baselines3",
    "onnxruntime",
    "distributed",
    "minari",
    "mujoco",
)
WITHOUT_DEPENDENCIES = {
    "safety": ("safety-gymnasium==1.0.0", "gymnasium-robotics==1.2.2"),
    "omnisafe": ("safety-gymnasium==1.0.0", "gymnasium-robotics==1.2.2", "omnisafe==0.5.0"),
}
_QUICK = "ccfs demo --protocol > study.toml && (ccfs run study.toml --seeds 4 --workers 1 -o RUN || test $? -eq 1)"
_SB3 = """
import gymnasium, ccfs
from stable_baselines3 import PPO
from ccfs.controllers import CertifyCallback
env = gymnasium.make("Pendulum-v1")
claim = dict(event=lambda trace: True, schedule=ccfs.ProposalSchedule(count=1, sigma=0.1),
             horizon=5, trials=3, target=0.1, delta=0.1, seed=0)
callback = CertifyCallback(lambda: gymnasium.make("Pendulum-v1"), times=1, **claim)
PPO("MlpPolicy", env, n_steps=64, device="cpu").learn(64, callback=callback).save("model.zip")
found = ccfs.certify_policy(env, "model.zip", **claim)
assert found.successes == callback.certificates[0].certificate.successes == 3
"""
_ONNX = """
import numpy as np
from ccfs.controllers import as_controller
assert as_controller("actor.onnx").center(np.array([1.0, 2.0])).tolist() == [3.0]
"""
_CLUSTER = """
import subprocess
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        command = ["ccfs", "run", "study.toml", "--seeds", "4", "--cluster", cluster.scheduler_address, "-o", "CLUSTER"]
        assert subprocess.run(command).returncode in (0, 1)
"""
_MINARI = """
import minari
dataset = minari.load_dataset("demo/a-v0")
env = dataset.recover_environment()
assert env.observation_space == dataset.observation_space
env.reset(seed=1)
env.step(dataset[0].actions[0])
"""
_OMNISAFE = """
import warnings
warnings.simplefilter("ignore")
import ccfs.envs, omnisafe
from omnisafe.envs import custom_env
from pathlib import Path
from ccfs.controllers import as_controller
omnisafe.Agent("PPOLag", "Simple-v0", custom_cfgs={
    "train_cfgs": {"total_steps": 64, "vector_env_nums": 1, "torch_threads": 1},
    "algo_cfgs": {"steps_per_epoch": 32, "update_iters": 1},
    "logger_cfgs": {"use_wandb": False, "use_tensorboard": False, "save_model_freq": 1, "log_dir": "runs"},
}).learn()
(run,) = {path.parent for path in Path("runs").rglob("config.json")}
assert len(as_controller(run).digest) == 64
"""
_VERSIONS = """
import json
from importlib.metadata import distributions
print(json.dumps({found.name.lower(): found.version for found in distributions()}))
"""
SCRIPTS = {"sb3": _SB3, "onnx_file": _ONNX, "cluster": _CLUSTER, "minari_file": _MINARI, "omnisafe_run": _OMNISAFE}
COMMANDS = {
    CORE: f"{_QUICK} && ccfs audit RUN --replay 1 && ccfs study list",
    "sb3": "python sb3.py",
    "onnx": "python onnx_file.py",
    "torch": "python images.py",
    "cluster": f"{_QUICK} && python cluster.py",
    "minari": f"{_QUICK} && export MINARI_DATASETS_PATH=$PWD/minari && "
    "ccfs export RUN --minari demo/a-v0 --arm steering/one && python minari_file.py",
    "safety": "ccfs study run goal2 --seeds 1 --workers 1 -o RUN || test $? -eq 1",
    "omnisafe": "python omnisafe_run.py",
    "dev": "ruff --version && mypy --version && pytest --version",
}
REFUSAL = (
    "python -c 'import ccfs.envs; ccfs.envs.make(\"SafetyPointGoal1-v0\")' 2>&1 | grep -q 'no wheels for this Python'"
)


def build(folder: Path) -> Path:
    """Build the wheel from a copy, because a stale `build` folder would be packed too."""
    for name in ("ccfs", "certificates", "controllers", "docs", "envs", "experiments"):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source"))
    (wheel,) = folder.glob("*.whl")
    return wheel


def pip(python: str | Path, *arguments: str) -> None:
    """Run our own pip for another interpreter, so that a fresh environment needs none."""
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *arguments, "-q"], check=True)


def installed(wheel: Path, python: str, extra: str, folder: Path) -> Path:
    """Return the programs of a fresh environment with the wheel and an extra."""
    subprocess.run([f"python{python}", "-m", "venv", "--without-pip", str(folder / "env")], check=True)
    programs = folder / "env" / "bin"
    constraints = folder / "constraints.txt"
    pins = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    constraints.write_text("\n".join(pin for pin in pins if pin.startswith("torch==")) + "\n", encoding="utf-8")
    wanted = str(wheel) if extra == CORE else f"{wheel}[{extra}]"
    pip(programs / "python", "install", "--no-compile", "-c", str(constraints), wanted)
    if extra in WITHOUT_DEPENDENCIES and not is_without_wheels(python, extra):
        pip(programs / "python", "install", "--no-compile", "--no-deps", *WITHOUT_DEPENDENCIES[extra])
    return programs


def is_without_wheels(python: str, extra: str) -> bool:
    """Return whether an extra cannot work on a Python, so that it must refuse."""
    return extra in NO_WHEELS and int(python.partition(".")[2]) >= 12


def tried(wheel: Path, python: str, extra: str) -> dict[str, object]:
    """Install, run the command, and return what came of it. A failure ends the program."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        programs = installed(wheel, python, extra, folder)
        for name, code in SCRIPTS.items():
            (folder / f"{name}.py").write_text(code, encoding="utf-8")
        shutil.copy(ROOT / "docs/tutorials/images.py", folder)
        if extra == "onnx":
            write_onnx(folder / "actor.onnx")
        command = REFUSAL if is_without_wheels(python, extra) else COMMANDS[extra]
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, shell=True, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        found = json.loads(subprocess.check_output([programs / "python", "-c", _VERSIONS], cwd=folder, text=True))
    return {
        "python": python,
        "extra": extra,
        "outcome": "refuses" if is_without_wheels(python, extra) else "works",
        "seconds": round(time.monotonic() - begun),
        "packages": {name: found[name] for name in SHOWN if name in found},
    }


def write_onnx(path: Path) -> None:
    """Write a policy that adds up two numbers. The library that writes is no part of the extra."""
    import onnx
    from onnx import TensorProto, helper

    given = helper.make_tensor_value_info("observation", TensorProto.FLOAT, ["batch", 2])
    made = helper.make_tensor_value_info("action", TensorProto.FLOAT, ["batch", 1])
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [2, 1], [1.0, 1.0])
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["observation", "weights"], ["action"])], "sum", [given], [made], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))


def main() -> None:
    """Try what is missing or asked for, and write the summary after each."""
    extras = (CORE, *sorted(metadata("ccfs-rl").get_all("Provides-Extra")))
    asked = sys.argv[1:]
    if not set(asked) <= {*PYTHONS, *extras}:
        raise SystemExit(f"arguments must be of {', '.join((*PYTHONS, *extras))}, got {' '.join(asked)}")
    done = (
        {(one["python"], one["extra"]): one for one in json.loads(SUMMARY.read_text())["results"]}
        if SUMMARY.is_file()
        else {}
    )
    with tempfile.TemporaryDirectory() as place:
        wheel = build(Path(place))
        for extra in (extra for extra in extras if extra in asked or not set(asked) & set(extras)):
            for python in (python for python in PYTHONS if python in asked or not set(asked) & set(PYTHONS)):
                if asked or (python, extra) not in done:
                    done[python, extra] = tried(wheel, python, extra)
                    results = [done[key] for key in sorted(done, key=lambda key: (key[1], key[0]))]
                    content = {"command": "python experiments/installing/run.py", "results": results}
                    SUMMARY.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                    print(
                        extra, python, done[python, extra]["outcome"], done[python, extra]["seconds"], "s", flush=True
                    )


if __name__ == "__main__":
    main()
