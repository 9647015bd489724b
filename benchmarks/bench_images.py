"""Noisy forward passes a second: a plain certification loop, ART if it is installed, ours, 8-bit, the band, the noise.

Each contender has a process and one thread of its own, as a program of its own would have. In one process the memory
that one of them frees would make the next one faster or slower. They take turns, CPU time is measured, and a printed
ratio is one of medians, so that other work on the machine does not decide.

Run: python benchmarks/bench_images.py [--network NAME] [--rounds N] [--proposals N]
Run: python benchmarks/bench_images.py --workers    (two processes against one, by the clock: needs two free cores)
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch

from ccfs.certificates.images import CovarianceProof, LabelCounts, Rule, verdict
from ccfs.images import (
    Band,
    CallableFilter,
    Filter,
    NoFilter,
    NoiseStream,
    ProjectedBand,
    load_shipped,
    shipped_names,
)
from ccfs.images.folder import Asked
from ccfs.images.forms import fused, quantized
from ccfs.images.networks import ZOO
from ccfs.images.run import certify_dataset
from ccfs.images.smoother import Counter
from ccfs.runs.executors import process_engine, serial_engine

BATCH = 250
TORCH = "torch's noise alone"
COHEN = 1000  # the default batch of Cohen's `certify.py`


@torch.no_grad()
def plain_loop(model: torch.nn.Module, image: torch.Tensor, sigma: float, total: int, most: int) -> np.ndarray:
    """Sampling in the style of the well-known `Smooth.certify`: repeat, add noise, predict, count one by one."""
    counts = np.zeros(10, dtype=int)
    for _ in range(math.ceil(total / most)):
        size = min(most, total)
        total -= size
        batch = image.repeat((size, 1, 1, 1))
        noise = torch.randn_like(batch) * sigma
        for label in model(batch + noise).argmax(1).numpy():
            counts[label] += 1
    return counts


def art_loop(model: torch.nn.Module, image: torch.Tensor, sigma: float, total: int) -> Callable[[], object]:
    """Return ART's certification of the same image with as many proposals."""
    from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing

    # ART draws `sample_size` proposals for the label and `n` for its probability.
    smoothed = PyTorchRandomizedSmoothing(
        model=model,
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=tuple(image.shape),
        nb_classes=10,
        clip_values=None,
        sample_size=BATCH,
        scale=sigma,
        alpha=0.001,
        device_type="cpu",
    )
    pixels = image.numpy()[None]
    return lambda: smoothed.certify(pixels, n=total - BATCH, batch_size=BATCH)


def arithmetic_share(passes: float, proposals: int) -> float:
    """Return the CPU time of every validated radius of an image over the time of its forward passes.

    The counts of twenty images differ, so nothing is remembered from one to the next. The first one warms up.
    """
    proof = CovarianceProof(covariance_ratio=1.0, statement="benchmark")
    spent = []
    for image in range(21):
        start = time.process_time()
        for rule in Rule:
            rejected = 0 if rule is Rule.UNFILTERED else 20
            others = (20 + image, 10, 5, 3, 2, 0, 0, 0, 0)
            tally = LabelCounts(retained=(proposals - rejected - sum(others), *others), rejected=rejected)
            verdict(rule, tally, tally, sigma=0.25, delta=0.001, proof=proof)
        spent.append(time.process_time() - start)
    return statistics.median(spent[1:]) / (proposals / passes)


def worker_ratio(network: str, center: np.ndarray, sigma: float, images: int) -> float:
    """Return the wall time of a run in one process over that in two. Both include the start of their processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(path, images=np.repeat(center[np.newaxis], images, 0), labels=np.zeros(images, dtype=np.int64))
        asked = Asked(dataset=str(path), network=network, sigma=sigma, filter="none", classes=10)
        spent = []
        for engine in (serial_engine(), process_engine(2)):
            start = time.monotonic()
            certify_dataset(
                asked.model_of(),
                asked.image_set(),
                asked.rule(),
                sigma=sigma,
                n0=100,
                n=2000,
                seed=0,
                batch_size=BATCH,
                folder=Path(folder) / engine.name,
                asked=asked,
                engine=engine,
            )
            spent.append(time.monotonic() - start)
            print(f"  {engine.name}: {images * 2100 / spent[-1]:.0f} proposals a second by the clock", flush=True)
    return spent[0] / spent[1]


class Bench:
    """A network, an image and its noise, and the contenders on them. Each is prepared only where it runs."""

    def __init__(self, network: str, proposals: int) -> None:
        torch.set_num_threads(1)
        card = json.loads((ZOO / network / "card.json").read_text(encoding="utf-8"))
        size, channels = card["architecture"]["size"], card["architecture"]["channels"]
        self.multiply_adds, self.sigma, self.proposals = card["multiply_adds"], card["recipe"]["sigma"], proposals
        self.network, self.shape = network, (size, size, channels)
        self.rng = np.random.default_rng(0)
        self.center = self.rng.random(self.shape, dtype=np.float32)
        self.stream = NoiseStream(run="test", seed=0, index=0, purpose="benchmark", dimension=self.center.size)
        self.batches = proposals // BATCH
        direction = self.rng.standard_normal(self.center.size)
        direction /= np.linalg.norm(direction)
        # Off center by 0.62 sigma: about 0.43 of the proposals are retained, as in the paper.
        offset = float(0.62 * self.sigma - direction @ self.center.ravel())
        self.band = ProjectedBand(Band(direction=direction, offset=offset, inner=0.25 * self.sigma, outer=self.sigma))

    def contenders(self) -> dict[str, Callable[[], Callable[[], object]]]:
        """Return what prepares each contender. ART takes part if it is installed."""
        band = self.band
        after = CallableFilter(
            lambda images, logits: band.before(images), name="band after the model", reads_logits=True
        )
        found: dict[str, Callable[[], Callable[[], object]]] = {
            f"plain loop of {BATCH}": lambda: self.plain(BATCH),
            f"plain loop of {COHEN}": lambda: self.plain(COHEN),
            "float32": lambda: self.counting(self.fast(), NoFilter()),
            "int8": lambda: self.counting(self.small(), NoFilter()),
            "band after the model": lambda: self.counting(self.fast(), after),
            "band before the model": lambda: self.counting(self.fast(), band),
            "forward passes alone": self.passes,
            "our noise alone": self.noise,
            TORCH: self.torch_noise,
        }
        return found | ({"ART": self.art} if importlib.util.find_spec("art") is not None else {})

    def fast(self) -> torch.nn.Module:
        """Return the float32 network in the form that `ccfs image certify` counts."""
        return fused(load_shipped(self.network), self.shape[0])

    def small(self) -> torch.nn.Module:
        """Return the 8-bit form, calibrated on made-up images."""
        size, _, channels = self.shape
        images = torch.from_numpy(self.rng.random((100, channels, size, size), dtype=np.float32))
        images += self.sigma * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        return quantized(load_shipped(self.network), images.contiguous(memory_format=torch.channels_last))

    def image(self) -> torch.Tensor:
        """Return the image as the others take it."""
        return torch.from_numpy(self.center.transpose(2, 0, 1).copy())

    def plain(self, most: int) -> Callable[[], object]:
        """Prepare the plain loop."""
        model, image = load_shipped(self.network), self.image()
        return lambda: plain_loop(model, image, self.sigma, self.proposals, most)

    def art(self) -> Callable[[], object]:
        """Prepare ART."""
        return art_loop(load_shipped(self.network), self.image(), self.sigma, self.proposals)

    def counting(self, model: torch.nn.Module, rule: Filter) -> Callable[[], object]:
        """Prepare our own counting."""
        counter = Counter(model, self.sigma, rule, 10, BATCH)
        return lambda: counter.count(self.center, self.stream, self.proposals)

    def passes(self) -> Callable[[], object]:
        """Prepare forward passes without noise, labels and counts."""
        counter = Counter(self.fast(), self.sigma, NoFilter(), 10, BATCH)
        ready = torch.randn((BATCH, *self.shape), generator=torch.Generator().manual_seed(0)).permute(0, 3, 1, 2)

        @torch.inference_mode()
        def run() -> None:
            for _ in range(self.batches):
                counter.logits(ready)

        return run

    def noise(self) -> Callable[[], object]:
        """Prepare our noise."""
        reader, flat = self.stream.reader(), torch.empty((BATCH, self.center.size))
        return lambda: [reader.fill(flat) for _ in range(self.batches)]

    def torch_noise(self) -> Callable[[], object]:
        """Prepare the noise of torch."""
        flat = torch.empty((BATCH, self.center.size))
        return lambda: [flat.normal_() for _ in range(self.batches)]


def _turns(connection: Connection, network: str, proposals: int, name: str) -> None:
    """Prepare one contender, then run it whenever the parent asks, and answer with its CPU time."""
    run = Bench(network, proposals).contenders()[name]()
    while connection.recv():
        start = time.process_time()
        run()
        connection.send(time.process_time() - start)


def rates(bench: Bench, rounds: int) -> dict[str, float]:
    """Proposals per CPU second: the median over rounds in which the contenders take turns, after two to warm up."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    for name in bench.contenders():
        ends[name], theirs = context.Pipe()
        context.Process(target=_turns, args=(theirs, bench.network, bench.proposals, name), daemon=True).start()
    times: dict[str, list[float]] = {name: [] for name in ends}
    for turn in range(rounds + 2):
        for name, end in ends.items():
            end.send(True)
            spent = end.recv()
            if turn >= 2:
                times[name].append(spent)
    for end in ends.values():
        end.send(False)
    return {name: bench.proposals / statistics.median(spent) for name, spent in times.items()}


def main() -> None:
    """Print rates and ratios for one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=shipped_names(), default=shipped_names()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--proposals", type=int, default=2000)
    parser.add_argument("--workers", action="store_true", help="only compare two processes with one")
    parser.add_argument("--images", type=int, default=80, help="images of that comparison, of 2,100 proposals each")
    arguments = parser.parse_args()
    bench = Bench(arguments.network, arguments.proposals)
    if arguments.workers:
        ratio = worker_ratio(arguments.network, bench.center, bench.sigma, arguments.images)
        print(f"  two processes over one           {ratio:6.2f}   (goal 1.8)")
        return
    speed = rates(bench, arguments.rounds)
    print(f"{arguments.network}: {bench.multiply_adds / 1e6:.1f} million multiply-adds, one thread, CPU time")
    for name, rate in speed.items():
        print(f"  {name:24s}{rate:10.0f} proposals a second")
    goals = [("float32", f"plain loop of {most}", 1.5) for most in (BATCH, COHEN)]
    goals += [("int8", f"plain loop of {most}", 2.5) for most in (BATCH, COHEN)]
    goals += [("float32", "ART", 1.5)] if "ART" in speed else []
    goals += [("band before the model", "band after the model", 2.1)]
    for ours, theirs, goal in goals:
        print(f"  {f'{ours} over {theirs}':46s}{speed[ours] / speed[theirs]:6.2f}   (goal {goal})")
    print(f"  our noise over torch's noise {speed['our noise alone'] / speed[TORCH]:23.2f}")
    print(f"  of float32 in forward passes {100 * speed['float32'] / speed['forward passes alone']:22.0f}%")
    used = arithmetic_share(speed["float32"], 10_000)
    print(f"  all radii of an image, of 10,000 passes {100 * used:11.2f}%   (goal 1%)")
    counter = Counter(bench.fast(), bench.sigma, bench.band, 10, BATCH)
    (kept,) = counter.count(bench.center, bench.stream, bench.proposals)
    print(f"  the band retains {sum(kept.retained) / kept.trials:.3f}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counter.count(bench.center, bench.stream, 10 * bench.proposals)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"  memory after 10 times the proposals: {before / 1024:.1f} MB {grown / 1024:+.1f} MB")


if __name__ == "__main__":
    main()
