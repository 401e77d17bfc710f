"""Pooled pulls are NumPy's sums and means. Small integers, so that the order of a sum does not matter."""

import grpc
import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb

import packing

DIM = 6
ROWS = np.random.default_rng(5).integers(-50, 50, (20, DIM)).astype("f4")
KEYS = [3, 3, 8, 0, 19, 4, 5, 6, 7, 2]
# The first, the third and the last bag are empty.
OFFSETS = [0, 0, 3, 3, 4, 8, 10]
WEIGHTS = np.array([1, -2, 3, 0, 4, 0.5, 2, 0.25, -1, 8], "f4")


@pytest.fixture(params=["f32", "int8"])
def filled(server, request):
    if request.param == "f32":
        server.create("t", DIM)
        server.assign("t", np.arange(20), ROWS)
    else:
        # Pushed rows are in the cache at full precision, whatever they are stored at: half of them.
        server.create("t", DIM, rows=100_000, precision="int8")
        server.push("t", np.arange(10), -ROWS[:10])
        scaled = ROWS[10:].clip(-50, 50)
        scaled[:, 0] = 127
        server.assign("t", np.arange(10, 20), scaled)
    rows = server.pull("t", np.arange(20))
    np.testing.assert_array_equal(rows[:10], ROWS[:10])
    assert (rows == np.rint(rows)).all()
    return server, rows


def bags():
    ends = OFFSETS[1:] + [len(KEYS)]
    return [slice(start, end) for start, end in zip(OFFSETS, ends)]


def pull(server, pooling, **more):
    return server.pull("t", KEYS, pooling=pooling, offsets=packing.offsets(OFFSETS), **more)


def test_sum(filled):
    server, rows = filled
    expected = [rows[KEYS[bag]].sum(axis=0) for bag in bags()]
    np.testing.assert_array_equal(pull(server, pb.POOLING_SUM), expected)


def test_weighted_sum(filled):
    server, rows = filled
    expected = [(rows[KEYS[bag]] * WEIGHTS[bag, None]).sum(axis=0) for bag in bags()]
    np.testing.assert_array_equal(pull(server, pb.POOLING_SUM, weights=packing.f32(WEIGHTS)), expected)


def test_mean(filled):
    server, rows = filled
    expected = [rows[KEYS[bag]].sum(axis=0) / np.float32(max(bag.stop - bag.start, 1)) for bag in bags()]
    np.testing.assert_array_equal(pull(server, pb.POOLING_MEAN), np.array(expected, "f4"))


@pytest.mark.parametrize("pooling", [pb.POOLING_SUM, pb.POOLING_MEAN])
def test_empty_bags_are_zeros(server, pooling):
    server.create("t", DIM)
    rows = server.pull("t", [], pooling=pooling, offsets=packing.offsets([0, 0, 0]))
    np.testing.assert_array_equal(rows, np.zeros((3, DIM)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"pooling": pb.POOLING_SUM},
        {"pooling": pb.POOLING_SUM, "offsets": packing.offsets([1])},
        {"pooling": pb.POOLING_SUM, "offsets": packing.offsets([0, 3])},
        {"pooling": pb.POOLING_SUM, "offsets": packing.offsets([0, 2, 1])},
        {"pooling": pb.POOLING_SUM, "offsets": packing.offsets([0]), "weights": packing.f32([1])},
        {"pooling": pb.POOLING_MEAN, "offsets": packing.offsets([0]), "weights": packing.f32([1, 1])},
        {"offsets": packing.offsets([0])},
        {"weights": packing.f32([1, 1])},
        {"pooling": 77, "offsets": packing.offsets([0])},
    ],
)
def test_bags_that_make_no_sense_are_refused(server, refused, wrong):
    server.create("t", DIM)
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.pull, "t", [1, 2], **wrong)
