"""A push may carry one gradient per bag. It is the push of one gradient per key that NumPy expands it to."""

import grpc
import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb

import packing

DIM = 4
KEYS = np.array([3, 8, 3, 0, 9, 4, 3])
OFFSETS = np.array([0, 2, 2, 5])
LENGTHS = np.array([2, 0, 3, 2])
WEIGHTS = np.array([1, -2, 3, 0, 4, 0.5, 2], "f4")
GRADIENTS = np.random.default_rng(1).integers(-60, 60, (4, DIM)).astype("f4")
SPREAD = np.repeat(GRADIENTS, LENGTHS, axis=0)


def check(server, expanded, form=pb.WIRE_FORMAT_F32, pack=packing.f32, **more):
    server.create("per_bag", DIM, learning_rate=0.5)
    part = pb.TablePush(
        table="per_bag",
        keys=packing.keys(KEYS),
        gradients=pack(GRADIENTS),
        offsets=packing.offsets(OFFSETS),
        **more,
    )
    server.data.Push(pb.PushRequest(tables=[part], format=form))
    expected = np.zeros((10, DIM), "f4")
    for key, gradient in zip(KEYS, expanded):
        expected[key] += gradient
    np.testing.assert_array_equal(server.pull("per_bag", np.arange(10)), -np.float32(0.5) * expected)


@pytest.mark.parametrize(
    "form, pack",
    [(pb.WIRE_FORMAT_F32, packing.f32), (pb.WIRE_FORMAT_F16, packing.f16), (pb.WIRE_FORMAT_BF16, packing.bf16)],
)
def test_sum(server, form, pack):
    check(server, SPREAD, form, pack, pooling=pb.POOLING_SUM)


def test_weighted_sum(server):
    check(server, SPREAD * WEIGHTS[:, None], pooling=pb.POOLING_SUM, weights=packing.f32(WEIGHTS))


def test_mean(server):
    shares = SPREAD / np.repeat(LENGTHS, LENGTHS).astype("f4")[:, None]
    check(server, shares, pooling=pb.POOLING_MEAN)


def test_mean_with_the_sizes_of_whole_bags(server):
    sizes = np.array([4, 1, 8, 2])
    shares = SPREAD / np.repeat(sizes, LENGTHS).astype("f4")[:, None]
    check(server, shares, pooling=pb.POOLING_MEAN, bag_sizes=packing.sizes(sizes))


@pytest.mark.parametrize(
    "wrong",
    [
        {"pooling": pb.POOLING_MEAN, "bag_sizes": packing.sizes([1, 2, 3])},
        {"pooling": pb.POOLING_MEAN, "bag_sizes": packing.sizes([1, 0, 3, 2])},
        {"pooling": pb.POOLING_MEAN, "bag_sizes": b"abc"},
        {"pooling": pb.POOLING_MEAN, "weights": packing.f32(WEIGHTS)},
        {"pooling": pb.POOLING_SUM, "bag_sizes": packing.sizes([1, 1, 1, 1])},
        {"pooling": pb.POOLING_SUM, "weights": packing.f32([1])},
        {"pooling": pb.POOLING_NONE},
    ],
)
def test_bags_that_make_no_sense_are_refused(server, refused, wrong):
    refused(grpc.StatusCode.INVALID_ARGUMENT, check, server, SPREAD, **wrong)


def test_sizes_of_bags_without_bags_are_refused(server, refused):
    server.create("t", DIM)
    part = pb.TablePush(table="t", keys=packing.keys([1]), gradients=packing.f32([1] * DIM), bag_sizes=packing.sizes([2]))
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.data.Push, pb.PushRequest(tables=[part]))
