"""Train a small network on images with fresh Gaussian noise. Training resumes after the last finished epoch.

`--search` compares architectures on 5,000 held-out training images. Test images are read once, at the end.

    python experiments/images/train.py --dataset mnist --architecture mnist-small --epochs 6 --sigma 1 --rate 0.05
    python experiments/images/train.py --dataset cifar10 --search --epochs 2
    python experiments/images/train.py --dataset cifar10 --architecture cifar-48 --epochs 48
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from ccfs.files.atomic import write_atomically
from ccfs.images.data import ImageSet, load_images
from ccfs.images.networks import ARCHITECTURES, ZOO, Architecture, build, multiply_adds

HELD_OUT = 5000
SPLIT_SEED = 20260916
RUNS = Path(__file__).resolve().parents[2] / "runs" / "image_training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides the weights besides the images."""

    dataset: str
    architecture: str
    epochs: int
    sigma: float
    batch: int
    peak_rate: float
    weight_decay: float
    shift: int
    flip: bool
    bfloat16: bool
    seed: int
    held_out: int


def split(images: ImageSet, held_out: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices to train on and the held-out indices, from a fixed permutation."""
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    return order[held_out:], order[:held_out]


def tensor(images: np.ndarray) -> torch.Tensor:
    """Return bytes (n, h, w, c) as a channels-last byte tensor (n, c, h, w)."""
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)


def augmented(batch: torch.Tensor, recipe: Recipe, generator: torch.Generator) -> torch.Tensor:
    """Flip half of the images, move all by up to `shift` pixels with reflected borders, add noise."""
    pixels = batch.float().div_(255.0)
    if recipe.flip:
        mirrored = torch.rand(len(pixels), generator=generator) < 0.5
        pixels = torch.where(mirrored[:, None, None, None], pixels.flip(3), pixels)
    if recipe.shift:
        count, _, height, width = pixels.shape
        reach = recipe.shift
        padded = nn.functional.pad(pixels, (reach, reach, reach, reach), mode="reflect")
        rows = torch.randint(0, 2 * reach + 1, (count,), generator=generator)
        columns = torch.randint(0, 2 * reach + 1, (count,), generator=generator)
        row_index = (rows[:, None] + torch.arange(height))[:, :, None]
        column_index = (columns[:, None] + torch.arange(width))[:, None, :]
        moved = padded.permute(0, 2, 3, 1)[torch.arange(count)[:, None, None], row_index, column_index]
        pixels = moved.permute(0, 3, 1, 2)
    flat = torch.empty(pixels.numel()).normal_(generator=generator)
    noise = flat.view(pixels.shape[0], *pixels.shape[2:], pixels.shape[1]).permute(0, 3, 1, 2)
    return noise.mul_(recipe.sigma).add_(pixels)


def rate(recipe: Recipe, step: int, total: int) -> float:
    """Return the learning rate: linear up over the first fifth, then a cosine down to zero."""
    warm = 0.2 * total
    if step < warm:
        return recipe.peak_rate * (0.1 + 0.9 * step / warm)
    return recipe.peak_rate * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / (total - warm)))


@torch.inference_mode()
def noisy_accuracy(model: nn.Module, images: ImageSet, sigma: float, draws: int, seed: int) -> float:
    """Return the fraction of single noisy images classified correctly in float32, with `draws` noises per image."""
    model.eval()
    pixels, labels = tensor(images.images), torch.from_numpy(images.labels.copy())
    generator = torch.Generator().manual_seed(seed)
    correct = 0
    for _ in range(draws):
        for start in range(0, len(images), 500):
            part = pixels[start : start + 500].float().div(255.0)
            noise = torch.empty(part.numel()).normal_(generator=generator)
            noise = noise.view(part.shape[0], *part.shape[2:], part.shape[1]).permute(0, 3, 1, 2)
            answer = model(part + sigma * noise).argmax(1)
            correct += int((answer == labels[start : start + 500]).sum())
    return correct / (draws * len(images))


def train(recipe: Recipe, folder: Path, images: ImageSet) -> tuple[nn.Module, list[dict[str, float]]]:
    """Train, or continue after the last finished epoch."""
    torch.manual_seed(recipe.seed)
    architecture = ARCHITECTURES[recipe.architecture]
    model = build(architecture).to(memory_format=torch.channels_last)
    # Weight decay on biases and on batch normalisation shrinks them for no benefit.
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe.peak_rate,
        momentum=0.9,
        nesterov=True,
    )
    generator = torch.Generator().manual_seed(recipe.seed + 1)
    history: list[dict[str, float]] = []
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, marker = folder / "checkpoint.pt", folder / "recipe.json"
    wanted = json.dumps({slot: getattr(recipe, slot) for slot in recipe.__slots__}, indent=1)
    if marker.exists() and marker.read_text() != wanted:
        raise SystemExit(f"{folder} belongs to another recipe. Name another folder with --folder.")
    marker.write_text(wanted)
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["generator"])
        history = saved["history"]
        print(f"resuming after epoch {len(history)}")
    chosen, held = split(images, recipe.held_out)
    training, validation = images.subset(chosen), images.subset(held)
    pixels, labels = tensor(training.images), torch.from_numpy(training.labels.copy())
    steps = len(training) // recipe.batch
    total = steps * recipe.epochs
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(len(history), recipe.epochs):
        model.train()
        started, spent, losses = time.time(), time.process_time(), 0.0
        order = torch.randperm(len(training), generator=generator)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rate(recipe, epoch * steps + step, total)
            index = order[step * recipe.batch : (step + 1) * recipe.batch]
            noisy = augmented(pixels[index], recipe, generator)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.bfloat16):
                logits = model(noisy)
            loss = loss_function(logits.float(), labels[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses += loss.item()
        row = {
            "epoch": epoch + 1,
            "loss": round(losses / steps, 5),
            "validation": noisy_accuracy(model, validation, recipe.sigma, 1, 7) if held.size else float("nan"),
            "seconds": round(time.time() - started, 1),
            "cpu_seconds": round(time.process_time() - spent, 1),
        }
        history.append(row)
        print(json.dumps(row), flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "history": history}
        stream = io.BytesIO()
        torch.save({**state, "generator": generator.get_state()}, stream)
        write_atomically(checkpoint, stream.getvalue())
    return model, history


def ship(recipe: Recipe, model: nn.Module, history: list[dict[str, float]], name: str, command: str) -> Path:
    """Write weights and card. Only this function reads test images."""
    folder = ZOO / name
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "weights.safetensors"
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, weights)
    weights.chmod(0o644)
    test = load_images(recipe.dataset, "test")
    architecture: Architecture = ARCHITECTURES[recipe.architecture]
    card = {
        "name": name,
        "architecture": architecture.document(),
        "multiply_adds": multiply_adds(model, architecture),
        "parameters": sum(p.numel() for p in model.parameters()),
        "sha256": hashlib.sha256(weights.read_bytes()).hexdigest(),
        "recipe": {slot: getattr(recipe, slot) for slot in recipe.__slots__},
        "epochs_trained": len(history),
        "history": history,
        "accuracy_under_noise": {
            "held_out_training_images": history[-1]["validation"],
            "test_images": noisy_accuracy(model, test, recipe.sigma, 2, 11),
            "draws_per_test_image": 2,
        },
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "command": command,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    return folder


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=("mnist", "cifar10"), required=True)
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES))
    parser.add_argument("--search", action="store_true", help="compare the architectures on held-out training images")
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--sigma", type=float, default=0.25)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--decay", type=float, default=5e-4)
    parser.add_argument("--float32", action="store_true", help="train without bfloat16 products")
    parser.add_argument("--held-out", type=int, default=HELD_OUT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--data", type=Path, default=None, help="folder with the data files, by default the cache")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    images = load_images(arguments.dataset, "train", arguments.data)
    prefix = "mnist" if arguments.dataset == "mnist" else "cifar"
    names = [arguments.architecture] if not arguments.search else [n for n in ARCHITECTURES if n.startswith(prefix)]
    if names == [None]:
        parser.error("pass --architecture or --search")
    for name in names:
        recipe = Recipe(
            dataset=arguments.dataset,
            architecture=name,
            epochs=arguments.epochs,
            sigma=arguments.sigma,
            batch=arguments.batch,
            peak_rate=arguments.rate,
            weight_decay=arguments.decay,
            shift=4 if arguments.dataset == "cifar10" else 2,
            flip=arguments.dataset == "cifar10",
            bfloat16=not arguments.float32,
            seed=arguments.seed,
            held_out=arguments.held_out,
        )
        stem = f"{name}-sigma{arguments.sigma:g}"
        folder = arguments.folder or RUNS / (f"search-{stem}-{arguments.epochs}" if arguments.search else stem)
        size = multiply_adds(build(ARCHITECTURES[name]), ARCHITECTURES[name])
        print(f"{name}: {size / 1e6:.1f} million multiply-adds per image", flush=True)
        model, history = train(recipe, folder, images)
        if not arguments.search:
            command = f"python experiments/images/train.py --dataset {arguments.dataset} --architecture {name}"
            command += f" --epochs {arguments.epochs} --sigma {arguments.sigma:g} --batch {arguments.batch}"
            command += f" --rate {arguments.rate:g} --seed {arguments.seed}"
            print(f"shipped to {ship(recipe, model, history, stem, command).relative_to(ZOO.parents[2])}")


if __name__ == "__main__":
    main()
