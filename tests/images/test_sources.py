"""Images come from any usual source, are loaded when needed, and wrong ones get advice."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from ccfs.images.data import DataError, ImageSet, LazyImages
from ccfs.images.sources import from_dataset, load_folder, load_npz, load_source

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 5, 6, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize(("images", "labels"), [("images", "labels"), ("x", "y"), ("x_test", "y_test")])
def test_npz_is_read_under_its_usual_names(tmp_path, images, labels):
    np.savez(tmp_path / "mine.npz", **{images: PIXELS, labels: LABELS})
    found = load_source(str(tmp_path / "mine.npz"), "test")
    np.testing.assert_array_equal(found.images, PIXELS)
    assert (found.name, found.labels.tolist(), found.classes) == ("mine", LABELS.tolist(), ("0", "1", "2"))


def test_npz_layouts_and_types_give_the_same_centers(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    np.savez(tmp_path / "b.npz", images=PIXELS.transpose(0, 3, 1, 2), labels=LABELS)
    np.savez(tmp_path / "c.npz", images=PIXELS.astype(np.float64) / 255.0, labels=LABELS)
    one, two, three = (load_npz(tmp_path / f"{name}.npz") for name in "abc")
    assert one.digest == two.digest != three.digest
    for index in range(6):
        np.testing.assert_allclose(one.center(index), three.center(index), rtol=1e-6)
        np.testing.assert_array_equal(one.picture(index), three.picture(index))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"pictures": PIXELS}, "must hold arrays `images` and `labels`, it holds pictures"),
        ({"images": PIXELS, "labels": LABELS[:2]}, "one integer per image"),
        ({"images": PIXELS, "labels": LABELS / 2}, "one integer per image"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, "at least one image"),
        ({"images": PIXELS[:, 0, :, 0], "labels": LABELS}, "3 or 4 dimensions"),
        ({"images": PIXELS.astype(np.int64), "labels": LABELS}, "bytes or real pixels"),
        ({"images": np.array([object()] * 6), "labels": LABELS}, "plain arrays"),
    ],
)
def test_npz_refuses(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_npz(tmp_path / "mine.npz")


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.5, 255.0])
def test_real_pixels_outside_of_their_range_get_advice(value):
    images = np.full((1, 2, 2, 1), value, dtype=np.float32)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\].*Divide bytes by 255"):
        ImageSet(name="x", images=images, labels=np.zeros(1, dtype=np.int64), classes=("a", "b"))


def folder_of_pictures(root, sizes=((4, 5),) * 4):
    for place, (height, width) in enumerate(sizes):
        where = root / ("cat", "dog")[place % 2]
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(where / f"{place}.png")
    return root


def test_folder_of_pictures_is_read_when_needed(tmp_path):
    found = load_source(str(folder_of_pictures(tmp_path / "pets")), "test")
    assert isinstance(found, LazyImages)
    assert (found.name, found.classes, found.labels.tolist()) == ("pets", ("cat", "dog"), [0, 0, 1, 1])
    shown = np.asarray(Image.open(tmp_path / "pets" / "cat" / "2.png"))
    np.testing.assert_array_equal(found.picture(1), shown)
    np.testing.assert_array_equal(found.center(1), shown.astype(np.float32) / np.float32(255))
    before = found.digest
    Image.fromarray(shown[::-1].copy()).save(tmp_path / "pets" / "cat" / "2.png")
    assert load_folder(tmp_path / "pets").digest != before


def test_grey_pictures_have_one_channel_unless_one_has_colours(tmp_path):
    folder = folder_of_pictures(tmp_path)
    coloured = load_folder(folder)
    for file in folder.rglob("*.png"):
        Image.open(file).convert("L").save(file)
    grey = load_folder(folder)
    assert [grey.center(i).shape[2] for i in range(4)] == [1] * 4
    assert grey.digest != coloured.digest
    first = next(iter(sorted(folder.rglob("*.png"))))
    Image.open(first).convert("RGB").save(first)
    assert [load_folder(folder).center(i).shape[2] for i in range(4)] == [3] * 4


def test_pictures_are_scaled_and_cropped(tmp_path):
    folder = folder_of_pictures(tmp_path / "pets", sizes=((40, 50), (64, 30)))
    found = load_folder(folder, size=14)
    assert [found.center(index).shape for index in range(2)] == [(14, 14, 3)] * 2
    assert found.digest != load_folder(folder, size=15).digest


def test_folder_without_classes_is_refused(tmp_path):
    with pytest.raises(DataError, match="one folder of pictures per class"):
        load_source(str(tmp_path), "test")
    with pytest.raises(DataError, match=r"mnist, cifar10.*got 'nowhere'"):
        load_source("nowhere", "test")


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


@pytest.mark.parametrize(("inner", "packed"), [("", False), ("", True), ("MNIST/raw", True), ("raw", False)])
def test_idx_files_are_read_in_the_layouts_of_torchvision(tmp_path, inner, packed):
    where = tmp_path / "fashion" / inner
    where.mkdir(parents=True)
    for name, array in (("images-idx3", PIXELS[..., 0]), ("labels-idx1", LABELS)):
        content = idx(array)
        path = where / f"t10k-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    found = load_source(str(tmp_path / "fashion"), "test")
    assert found.name == "fashion-test"
    np.testing.assert_array_equal(found.images[..., 0], PIXELS[..., 0])
    assert found.labels.tolist() == LABELS.tolist()
    with pytest.raises(DataError, match="give the folder itself as the data set"):
        load_source("mnist", "test", data=tmp_path / "fashion")


@pytest.mark.parametrize("damage", ["cut", "gz"])
def test_damaged_idx_files_are_refused(tmp_path, damage):
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS))
    if damage == "cut":
        (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(PIXELS[..., 0])[:-3])
    else:
        (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(PIXELS[..., 0]))[:-9])
    with pytest.raises(DataError, match=r"bytes after its head|cannot be unpacked"):
        load_source(str(tmp_path), "test")


class Pairs:
    def __init__(self, scale=255.0):
        self.scale, self.loaded = scale, 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.loaded += 1
        return PIXELS[index].transpose(2, 0, 1).astype(np.float32) / self.scale, int(LABELS[index])


def test_dataset_of_a_program_is_taken_with_a_digest_of_its_content():
    found = from_dataset(Pairs(), ("a", "b", "c"), name="pairs")
    np.testing.assert_array_equal(found.picture(3), PIXELS[3])
    assert found.labels.tolist() == LABELS.tolist()
    assert found.digest == from_dataset(Pairs(), ("a", "b", "c"), name="pairs").digest
    assert found.digest != from_dataset(Pairs(256.0), ("a", "b", "c"), name="pairs").digest


def test_dataset_with_targets_and_digest_loads_nothing_in_advance():
    pairs = Pairs()
    pairs.targets = LABELS
    assert from_dataset(pairs, ("a", "b", "c"), name="pairs", digest="0" * 64).labels.tolist() == LABELS.tolist()
    assert pairs.loaded == 0


def test_dataset_of_normalised_images_gets_advice():
    with pytest.raises(ValueError, match="normalise inside the network"):
        from_dataset(Pairs(100.0), ("a", "b", "c"), name="pairs").center(0)
