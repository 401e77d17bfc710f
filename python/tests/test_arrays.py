"""Arrays of any kind go in, float32 comes out, and what makes no sense is refused before it is sent."""

from __future__ import annotations

import numpy as np
import pytest

import hotrow


def test_rows_have_the_shape_of_the_keys(plain):
    plain.push("t", [1, 2], [[1, 2, 3, 4], [5, 6, 7, 8]])
    rows = plain.pull("t", [[2, 1], [0, 2]])
    assert rows.dtype == np.float32 and rows.shape == (2, 2, 4)
    assert rows.tolist() == [[[-5, -6, -7, -8], [-1, -2, -3, -4]], [[0] * 4, [-5, -6, -7, -8]]]
    assert plain.pull("t", 2).tolist() == [-5, -6, -7, -8]
    assert plain.pull("t", []).shape == (0, 4)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint32, np.uint64, ">i8"])
def test_any_integers_are_keys(plain, dtype):
    plain.assign("t", np.arange(100), np.arange(400).reshape(100, 4))
    keys = np.array([7, 99, 0, 7], dtype=dtype)
    assert plain.pull("t", keys)[:, 0].tolist() == [28, 396, 0, 28]
    assert plain.pull("t", keys[::2])[:, 0].tolist() == [28, 0], "of an array that is not contiguous"


def test_all_64_bits_are_the_users(client):
    client.create_table("h", 2, precision="f32", optimizer="sgd", learning_rate=1.0, initializer="zeros")
    client.push("h", np.array([-1, 5], dtype=np.int64), [[1, 1], [2, 2]])
    assert client.pull("h", np.array([2**64 - 1], dtype=np.uint64)).tolist() == [[-1, -1]]
    assert client.pull("h", np.array([-1], dtype=np.int32)).tolist() == [[-1, -1]]
    assert client.pull("h", [2**64 - 1]).tolist() == [[-1, -1]]
    assert sorted(client.keys("h").tolist()) == [5, 2**64 - 1]


def test_gradients_of_any_float(plain):
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        plain.push("t", [3], np.ones((1, 4), dtype=dtype))
    plain.push("t", [3], np.asfortranarray(np.ones((1, 4), dtype=np.float32)))
    assert plain.pull("t", 3).tolist() == [-5] * 4


def test_into_memory_of_the_callers(plain):
    plain.push("t", [1], [[1, 2, 3, 4]])
    out = np.full((2, 4), 9, dtype=np.float32)
    assert plain.pull("t", [0, 1], out=out) is out
    assert out.tolist() == [[0] * 4, [-1, -2, -3, -4]]
    for wrong in (np.zeros((2, 4)), np.zeros((4, 2), np.float32).T, np.zeros((3, 4), np.float32)):
        with pytest.raises(hotrow.InvalidRequest, match="out"):
            plain.pull("t", [0, 1], out=wrong)
    with pytest.raises(hotrow.InvalidRequest, match="expected 8"):
        plain.pull("t", [0, 1], out=np.zeros((2, 3), np.float32))


def test_what_makes_no_sense_is_not_sent(plain):
    with pytest.raises(hotrow.InvalidRequest, match="integers"):
        plain.pull("t", [1.5])
    with pytest.raises(hotrow.InvalidRequest, match="shape"):
        plain.push("t", [1, 2, 3, 4], np.zeros((4,)))
    with pytest.raises(hotrow.InvalidRequest, match="gradients"):
        plain.push("t", [1], np.zeros((1, 5)))
    with pytest.raises(hotrow.InvalidRequest, match="not finite|NaN"):
        plain.push("t", [1], [[1, np.nan, 0, 0]])
    with pytest.raises(hotrow.InvalidRequest, match="floats"):
        plain.push("t", [1], [["a", "b", "c", "d"]])
    with pytest.raises(ValueError, match="100"):
        plain.push("t", [100], np.ones((1, 4)))
    assert plain.stats().tables["t"].updated_rows == 0


def test_distinct_is_unique_in_order_of_appearance():
    keys = np.random.default_rng(1).zipf(1.2, 10_000) % 3000
    found, which = hotrow.distinct(keys)
    assert found.dtype == np.int64 and which.dtype == np.int64
    assert (found[which] == keys).all()
    _, first = np.unique(keys, return_index=True)
    assert found.tolist() == keys[np.sort(first)].tolist()
    found, which = hotrow.distinct(np.array([[5, 5], [6, 5]], dtype=np.uint64))
    assert (found.dtype, found.tolist(), which.tolist()) == (np.uint64, [5, 6], [[0, 0], [1, 0]])
