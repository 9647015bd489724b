"""The noise is Philox's, the same in any batch, from any start and on any device, and its normals are normal."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ccfs.images.streams import ESTIMATION, SELECTION, NoiseStream, philox_words

torch.set_num_threads(1)


def stream(**changes):
    return NoiseStream(**{"run": "test", "seed": 3, "index": 5, "purpose": SELECTION, "dimension": 7, **changes})


def drawn(source, rows, start=0):
    out = torch.empty((rows, source.dimension))
    source.reader(start).fill(out)
    return out


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**62 - 1), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_torch_operations_give_the_integers_of_numpy(key, counter, blocks):
    """Oracle: numpy's compiled Philox. A difference in one bit of one word fails."""
    expected = np.random.Philox(key=key, counter=counter).random_raw(4 * blocks)
    found = philox_words(key, counter, blocks, "cpu").numpy().view(np.uint64).ravel()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("key", "counter"), [(0, 0), (2**128 - 1, 2**62 - 1), (2**64 - 1, 2**32 - 1)])
def test_torch_operations_agree_at_the_ends(key, counter):
    expected = np.random.Philox(key=key, counter=counter).random_raw(12)
    np.testing.assert_array_equal(philox_words(key, counter, 3, "cpu").numpy().view(np.uint64).ravel(), expected)


def test_words_of_the_device_path_are_those_of_the_cpu_path():
    source = stream(dimension=3072)
    for start in (0, 1, 20, 21, 999):
        found = source.words_on(start, 5, "cpu").numpy().view(np.uint64)
        np.testing.assert_array_equal(found, source.words(start, 5))


def test_device_path_works_where_nothing_is_computed():
    """The meta device has shapes only. It refuses whatever needs a value on the host, which a GPU would wait for."""
    assert philox_words(7, 0, 5, "meta").shape == (5, 4)
    out = torch.empty((9, 7), device="meta")
    stream().reader(device="meta").fill(out)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: this machine has no CUDA device")
def test_cuda_gives_the_same_integers_and_nearly_the_same_normals():
    source = stream(dimension=3072)
    np.testing.assert_array_equal(source.words_on(3, 50, "cuda").cpu().numpy().view(np.uint64), source.words(3, 50))
    out = torch.empty((50, 3072), device="cuda")
    source.reader(3, device="cuda").fill(out)
    torch.testing.assert_close(out.cpu(), drawn(source, 50, 3), rtol=1e-5, atol=1e-5)


@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 100), st.sampled_from([7, 784, 3072]))
@settings(max_examples=25, deadline=None)
def test_noise_depends_neither_on_the_batch_nor_on_the_start(sizes, start, dimension):
    source = stream(dimension=dimension)
    reader, parts = source.reader(start), []
    for size in sizes:
        parts.append(torch.empty((size, dimension)))
        reader.fill(parts[-1])
    whole = drawn(source, start + sum(sizes))
    assert torch.equal(torch.cat(parts), whole[start:])


def test_device_path_gives_the_normals_of_the_cpu_path():
    """A stand-in for a device: the torch integers, transformed on the CPU in one piece."""
    source = stream(dimension=3072)
    reader = source.reader()
    reader._device = "stand-in"
    reader._stream = Standin(source)
    out = torch.empty((30, 3072))
    reader.fill(out)
    torch.testing.assert_close(out, drawn(source, 30), rtol=1e-6, atol=1e-7)


class Standin:
    def __init__(self, source):
        self._source = source
        self.blocks = source.blocks

    def words_on(self, start, rows, device):
        return self._source.words_on(start, rows, "cpu")


FIRST = [14340818554407920380, 6588817848863357339, 8961179973430703257, 11562592608205366179]


def test_streams_differ_in_every_field():
    ways = [{}, {"run": "other"}, {"seed": 4}, {"index": 6}, {"purpose": ESTIMATION}]
    rows = [drawn(stream(**way), 4) for way in ways]
    assert len({row.numpy().tobytes() for row in rows}) == len(ways)


def test_first_proposals_are_fixed_for_ever():
    """Stored counts depend on these words. Whoever changes them must change the name of the derivation."""
    assert stream().words(0, 1).ravel().tolist() == FIRST


def test_normals_are_normal():
    """Seeded, so it cannot fail by chance. A first draw had to pass tests of level 0.001 each."""
    values = drawn(stream(dimension=4096), 500).numpy().ravel().astype(np.float64)
    assert stats.kstest(values, "norm").pvalue > 0.001
    half = 4096 // 2
    pairs = drawn(stream(dimension=4096), 500).numpy()
    radius = (pairs[:, :half] ** 2 + pairs[:, half:] ** 2).ravel().astype(np.float64)
    assert stats.kstest(radius, "expon", args=(0, 2)).pvalue > 0.001
    correlation = np.corrcoef(pairs[:, :half].ravel(), pairs[:, half:].ravel())[0, 1]
    assert abs(correlation) < 4 / math.sqrt(500 * half)
    assert abs((values**4).mean() - 3.0) < 5 * math.sqrt(96 / values.size)


def test_extreme_integers_give_finite_normals():
    from ccfs.images.streams import _box_muller

    extremes = torch.tensor([[0, -1, 2**31 - 1, -(2**31), 0, -1, 2**31 - 1, -(2**31)]], dtype=torch.int32)
    out = torch.empty((1, 8))
    _box_muller(extremes, out, tuple(torch.empty((1, 4)) for _ in range(3)))
    assert torch.isfinite(out).all()
    assert out.abs().max() < 6.67


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seed": -1}, ValueError, "`seed`"),
        ({"index": 1.5}, TypeError, "`index`"),
        ({"dimension": 0}, ValueError, "`dimension`"),
        ({"purpose": 3}, TypeError, "`purpose` must be a string"),
        ({"run": None}, TypeError, "`run` must be a string"),
    ],
)
def test_stream_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        stream(**changes)


def test_philox_refuses_a_counter_beyond_its_range():
    with pytest.raises(ValueError, match="`counter` must be in"):
        philox_words(0, 2**62, 1, "cpu")
