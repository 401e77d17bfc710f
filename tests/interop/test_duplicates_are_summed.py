"""Gradients of the same key are added up in order, and the optimizer steps once."""

import numpy as np
from hotrow.v1 import tables_pb2


def test_sgd(server):
    server.create("t", 5, learning_rate=0.1)
    keys = np.array([4, 9, 4, 4, 1, 9])
    gradients = np.random.default_rng(3).normal(size=(6, 5)).astype("f4")
    server.push("t", keys, gradients)
    for key in [4, 9, 1]:
        total = np.zeros(5, "f4")
        for gradient in gradients[keys == key]:
            total = total + gradient
        np.testing.assert_array_equal(server.pull("t", [key])[0], 0 - np.float32(0.1) * total)


def test_adagrad_steps_once(server):
    # Of a sum of 4 in one step: 4 / sqrt(16) = 1. In two steps of 2 it would be 1 + 1 / sqrt(2).
    server.create("t", 5, optimizer=tables_pb2.Optimizer(name="adagrad", eps=0))
    server.push("t", [6, 6], np.full((2, 5), 2))
    np.testing.assert_array_equal(server.pull("t", [6]), np.full((1, 5), -1))
