"""Gradients travel as f32, f16 and bf16, and step rows as NumPy does."""

import grpc
import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb

import packing

FORMATS = {
    "f32": (pb.WIRE_FORMAT_F32, packing.f32),
    "f16": (pb.WIRE_FORMAT_F16, packing.f16),
    "bf16": (pb.WIRE_FORMAT_BF16, packing.bf16),
}
KEYS = [9, 4, 1_000_000_007]
DIM = 19


def push(server, form, gradients, **more):
    number, pack = FORMATS[form]
    part = pb.TablePush(table="t", keys=packing.keys(KEYS), gradients=pack(gradients), **more)
    return server.data.Push(pb.PushRequest(tables=[part], format=number))


@pytest.mark.parametrize("form", FORMATS)
def test_a_push_is_an_sgd_step(server, form):
    server.create("t", DIM, learning_rate=0.1)
    random = np.random.default_rng(7)
    rows = random.normal(size=(len(KEYS), DIM)).astype("f4")
    server.assign("t", KEYS, rows)
    for step in range(3):
        gradients = random.normal(size=rows.shape).astype("f4")
        push(server, form, gradients)
        sent = packing.rows_from(form, FORMATS[form][1](gradients), DIM)
        rows = rows - np.float32(0.1) * sent
        np.testing.assert_array_equal(server.pull("t", KEYS), rows, f"step {step}")


def test_a_push_may_bring_its_own_learning_rate(server):
    server.create("t", DIM, learning_rate=0.1)
    push(server, "f32", np.ones((len(KEYS), DIM)), learning_rate=4)
    np.testing.assert_array_equal(server.pull("t", KEYS), np.full((len(KEYS), DIM), -4))


def test_int8_gradients_are_refused(server, refused):
    server.create("t", DIM)
    part = pb.TablePush(table="t", keys=packing.keys([1]), gradients=bytes(2 + DIM))
    request = pb.PushRequest(tables=[part], format=pb.WIRE_FORMAT_INT8)
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.data.Push, request)
