"""A researcher's own network in one command, then audit, verify, attack, report, export, merge, and several workers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ccfs.cli.main import app
from ccfs.images.data import MNIST_MD5

pytestmark = pytest.mark.slow
torch.set_num_threads(1)
runner = CliRunner()

NETWORK = """
import torch
from torch import nn


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 2, 3), nn.Linear(2 * 6 * 6, 3)

    def forward(self, images):
        return self.linear(torch.relu(self.conv(images)).view(images.size(0), -1))


class Coin(LeNet):
    def forward(self, images):
        return super().forward(nn.functional.dropout(images, 0.5, training=True))


def plain():
    torch.manual_seed(0)
    net = LeNet().eval()
    return lambda images: net(images) * 20


def broken():
    return {}["weights"]
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with somebody's module, checkpoint and images."""
    (tmp_path / "their_lenet.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "mine.npz", images=rng.integers(0, 256, (7, 8, 8), dtype=np.uint8), labels=rng.integers(0, 3, 7)
    )
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    exec(compile(NETWORK, "net", "exec"), space)
    torch.manual_seed(0)
    net = space["LeNet"]()
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v * 6 for k, v in net.state_dict().items()}}, "lenet.pth")
    yield tmp_path
    sys.modules.pop("their_lenet", None)


def ccfs(*arguments):
    return runner.invoke(app, [str(part) for part in arguments])


def certify(run, *extra):
    network = ("--model", "their_lenet:LeNet", "--checkpoint", "lenet.pth", "--threshold", "0.5")
    sizes = ("--sigma", "0.3", "--images", "7", "--n0", "30", "--n", "200")
    return ccfs("image", "certify", "--dataset", "mine.npz", *network, *sizes, "-o", run, *extra)


def content(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_own_network_goes_through_every_command(home):
    run = home / "run"
    first = certify(run)
    assert first.exit_code == 0, first.output
    for command in (
        ("audit", run, "--trust", "--replay", "2"),
        ("image", "audit", run, "--trust"),
        ("verify", run / "certificates" / "split.json", "--run", run),
        ("image", "report", run, "--trust"),
        (
            "image",
            "attack",
            run,
            "--trust",
            "--members",
            "2",
            "--steps",
            "2",
            "--screen",
            "50",
            "--confirmation",
            "100",
        ),
        ("image", "export", run, "--format", "csv", "-o", home / "a.csv"),
        ("image", "export", run, "--format", "latex", "-o", home / "a.tex"),
        ("image", "export", run, "--format", "cohen", "--rule", "unfiltered", "-o", home / "a.tsv"),
        ("image", "audit", home / "a.tsv", "--sigma", "0.3", "--n", "200"),
        ("audit", run, "--replay", "0"),
    ):
        done = ccfs(*command)
        assert done.exit_code == 0, (command, done.output)
    again = ccfs("audit", run, "--trust", "--replay", "2").output
    assert "2 replayed" in again
    # What is loaded is listed first, with its digest.
    assert re.search(r"^loads model: their_lenet:LeNet, digest [0-9a-f]{16}$", again, re.M)
    assert re.search(r"^loads checkpoint: lenet.pth, digest [0-9a-f]{16}$", again, re.M)
    assert re.search(r"^loads dataset: mine.npz, which are images$", again, re.M)


def test_label_changes_are_searched_inside_the_radii_of_another_log(home):
    """A log that claims far too much is broken by proved changes. Its run stays whole, and a new search goes on."""
    run, log = home / "run", home / "theirs.csv"
    assert certify(run).exit_code == 0
    log.write_text("idx,radius,top,retained,drawn\n" + "".join(f"{i},6.0,180,190,200\n" for i in range(7)))
    sizes = ("--restarts", "2", "--steps", "6", "--proposals", "16", "--screen", "100", "--confirmation", "2000")
    asked = ("image", "audit", log, "--sigma", "0.3", "--search", run, *sizes)
    assert "use --trust" in ccfs(*asked).output
    done = ccfs(*asked, "--trust", "--json")
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert sorted(found["searched"]) == list(range(7))
    assert found["changes"]
    for change in found["changes"]:
        assert change["label"] != change["changed"]
        assert found["images"][change["image"]]["worth"] < change["distance"] < 6.0
    again = ccfs(*asked, "--trust")
    assert "label changes proved inside their printed radii" in again.output
    assert "inside the printed radius 6.0" in again.output
    assert ccfs("audit", run, "--trust").exit_code == 0
    (folder,) = run.glob("printed-*")
    kept = (folder / "endpoints.jsonl").read_bytes()
    (folder / "endpoints.jsonl").write_bytes(kept + b" ")
    assert ccfs("audit", run, "--trust").exit_code == 1
    other = ccfs("image", "audit", log, "--sigma", "0.25", "--search", run, *sizes, "--trust")
    assert "noise scale of the log, 0.25, it has 0.3" in other.output
    log.write_text("idx,radius,top,retained,drawn\n50,6.0,180,190,200\n")
    assert "with a positive radius in the log" in ccfs(*asked, "--trust").output
    log.write_text("idx,radius,top,retained,drawn\n1,6.0,180,190,200\n1,6.0,180,190,200\n")
    assert "image 1 must stand in the log once" in ccfs(*asked, "--trust").output


def test_plain_function_is_declared_on_the_command_line(home):
    shared = ("--dataset", "mine.npz", "--model", "their_lenet:plain", "--threshold", "0.5", "--sigma", "0.3")
    sizes = ("--images", "4", "--n", "100", "-o", home / "run")
    refused = ccfs("image", "certify", *shared, *sizes)
    assert refused.exit_code == 2
    assert "--declared" in refused.output
    assert ccfs("image", "certify", *shared, *sizes, "--declared", "first").exit_code == 0
    other = ccfs("image", "certify", *shared, *sizes, "--declared", "second")
    assert "another run" in other.output
    assert ccfs("audit", home / "run", "--trust").exit_code == 0
    search = ("--members", "2", "--steps", "2", "--screen", "50", "--confirmation", "100")
    assert ccfs("image", "attack", home / "run", "--trust", *search).exit_code == 0


def test_code_of_a_run_is_not_run_without_trust(home):
    run = home / "run"
    certify(run)
    sys.modules.pop("their_lenet", None)
    (home / "their_lenet.py").write_text("raise SystemExit('it ran')")
    audit = ccfs("audit", run)
    assert audit.exit_code == 3, audit.output
    assert "--trust" in audit.output
    attack = ccfs("image", "attack", run)
    assert attack.exit_code == 2
    assert "use --trust" in attack.output


def test_workers_and_machines_give_the_bytes_of_one(home):
    assert certify(home / "one").exit_code == 0
    two = certify(home / "two", "--workers", "2")
    assert two.exit_code == 0, two.output
    assert content(home / "one") == content(home / "two")
    for name, chosen in (("a", "0:3"), ("b", "3:7")):
        assert certify(home / name, "--images", chosen).exit_code in (0, 1)  # 1: none of these is certified
    merged = ccfs("image", "merge", home / "a", home / "b", "-o", home / "merged")
    assert merged.exit_code == 0, merged.output
    assert (home / "merged" / "counts.parquet").read_bytes() == (home / "one" / "counts.parquet").read_bytes()
    assert certify(home / "merged").exit_code == 0
    assert content(home / "merged") == content(home / "one")


def test_two_processes_on_one_folder_lose_nothing(home):
    """One wins the lock. The other refuses with exit code 2, or comes later and finds everything counted."""
    command = [
        sys.executable,
        "-m",
        "ccfs",
        "image",
        "certify",
        "--dataset",
        "mine.npz",
        "--model",
        "their_lenet:LeNet",
    ]
    command += ["--checkpoint", "lenet.pth", "--sigma", "0.3", "--images", "7", "--n", "4000", "-o", "both"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)
    ]
    ends = [(process.communicate()[1], process.returncode) for process in both]
    assert sorted(code for _, code in ends) in ([0, 0], [0, 2])
    assert all(b"another process is writing" in text for text, code in ends if code == 2)
    from ccfs.images.folder import read_table

    run, table = read_table(Path("both"))
    assert {row.index for row in table.rows} == set(run.indices) == set(range(7))
    assert ccfs("audit", "both", "--replay", "0").exit_code == 0


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--images", "7:9"), "at least one of 7 images"),
        (("--images", "first"), "a number or a range"),
        (("--classes", "2"), "must be at least 3"),
        (("--dataset", "nowhere"), "an .npz file or a folder"),
        (("--checkpoint", "none.pth"), "does not exist"),
        (("--model", "their_lenet:Missing"), "can be imported"),
        (("--model", "their_lenet:broken"), "'their_lenet:broken' raised KeyError: 'weights'"),
        (("--model", "their_lenet:Coin"), "It answered the same images in two ways"),
        (("--model", "lenet.pth"), "no checkpoint goes with it"),
        (("--precision", "int4"), "float64"),
    ],
)
def test_wrong_inputs_get_advice_and_exit_code_2(home, extra, said):
    answer = certify(home / "run", *extra)
    assert answer.exit_code == 2, answer.output
    assert said in answer.output.replace("\n", " ")
    assert not (home / "run").exists()


def test_more_classes_than_labels_and_half_precision_are_runs_of_their_own(home):
    torch.save({"state_dict": torch.nn.Linear(64, 5).state_dict()}, "five.pth")
    (home / "five.py").write_text(
        "from torch import nn\n\n\nclass Five(nn.Linear):\n"
        "    def __init__(self):\n        super().__init__(64, 5)\n\n"
        "    def forward(self, images):\n        return super().forward(images.flatten(1))\n"
    )
    keys = set()
    for precision in ("float32", "bfloat16"):
        done = certify(
            home / precision,
            "--model",
            "five:Five",
            "--checkpoint",
            "five.pth",
            "--classes",
            "5",
            "--precision",
            precision,
        )
        assert done.exit_code in (0, 1), done.output
        from ccfs.images.folder import read_run

        keys.add(read_run(home / precision).key.model_sha256)
        assert ccfs("audit", home / precision, "--trust").exit_code == 0
    assert len(keys) == 2
    sys.modules.pop("five", None)


def test_audit_looks_for_installed_images_in_the_users_cache(home, monkeypatch):
    """The confined child has a cache folder of its own. It finds the made-up files in the user's, and refuses them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.delenv("CCFS_DATA", raising=False)
    folder = home / "cache" / "ccfs" / "images" / "mnist"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (4, 28, 28), dtype=np.uint8), np.arange(4, dtype=np.uint8)
    for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
        head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
        (folder / f"t10k-{name}-ubyte").write_bytes(head + array.tobytes())
        digest = hashlib.md5(head + array.tobytes(), usedforsecurity=False).hexdigest()
        monkeypatch.setitem(MNIST_MD5, f"t10k-{name}-ubyte", digest)
    run = home / "cached"
    counted = ("--dataset", "mnist", "--network", "mnist-small-sigma1", "--sigma", "1", "--images", "2", "--n", "60")
    made = ccfs("image", "certify", *counted, "-o", run)
    assert made.exit_code in (0, 1), made.output
    audited = ccfs("image", "audit", run, "--replay", "2")
    assert audited.exit_code == 3, audited.output
    assert f"{folder / 't10k-images-idx3-ubyte'} is damaged or not MNIST's" in audited.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sigma", "-1"), "`sigma`: input should be greater than 0, got -1.0."),
        (("--sigma", "nan"), "`sigma`: input should be a finite number, got nan."),
        (("--sigma", "1", "--network", "mnist-small-sigma1"), "not both."),
        (("--sigma", "1", "--filter", "median"), "got 'median'."),
    ],
)
def test_wrong_options_get_a_line_and_no_page_of_another_library(home, options, message):
    told = ccfs("image", "certify", "--dataset", "mine.npz", "--model", "net.pt", *options, "-o", home / "wrong")
    assert told.exit_code == 2
    assert message in told.output.replace("\n", " ")
    assert "pydantic" not in told.output
    assert not (home / "wrong").exists()
