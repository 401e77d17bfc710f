"""One request names several tables, and is done whole or not at all."""

import grpc
import numpy as np
from hotrow.v1 import data_pb2 as pb

import packing

DIMS = {"user": 8, "item": 3, "word": 21}


def create(server):
    for name, dim in DIMS.items():
        server.create(name, dim, rows=1000 if name == "item" else 0)


def push_of(name, keys, value):
    gradients = np.full((len(keys), DIMS[name]), value)
    return pb.TablePush(table=name, keys=packing.keys(keys), gradients=packing.f32(gradients))


def test_tables_are_answered_in_the_order_they_are_named(server):
    create(server)
    server.data.Push(pb.PushRequest(tables=[push_of("user", [1, 2], 1), push_of("item", [5], 2), push_of("word", [7], 3)]))
    named = [("word", [7, 8]), ("user", [2]), ("item", [5, 4, 5]), ("user", [])]
    tables = [pb.TablePull(table=name, keys=packing.keys(keys)) for name, keys in named]
    answer = server.data.Pull(pb.PullRequest(tables=tables))
    assert list(answer.dims) == [21, 8, 3, 8]
    expected = [np.full(21, -3), np.zeros(21), np.full(8, -1), np.full(3, -2), np.zeros(3), np.full(3, -2)]
    np.testing.assert_array_equal(np.frombuffer(answer.rows, "<f4"), np.concatenate(expected))


def test_rows_and_bags_in_one_pull(server):
    create(server)
    server.data.Push(pb.PushRequest(tables=[push_of("user", [1, 2], 1), push_of("item", [5], 2)]))
    tables = [
        pb.TablePull(table="user", keys=packing.keys([1])),
        pb.TablePull(table="item", keys=packing.keys([5, 5]), pooling=pb.POOLING_SUM, offsets=packing.offsets([0])),
        pb.TablePull(table="user", keys=packing.keys([1, 2]), pooling=pb.POOLING_SUM, offsets=packing.offsets([0])),
        pb.TablePull(table="item", keys=packing.keys([5])),
    ]
    answer = server.data.Pull(pb.PullRequest(tables=tables))
    expected = [np.full(8, -1), np.full(3, -4), np.full(8, -2), np.full(3, -2)]
    np.testing.assert_array_equal(np.frombuffer(answer.rows, "<f4"), np.concatenate(expected))


def test_a_push_with_one_bad_table_changes_none(server, refused):
    create(server)
    good = push_of("user", [1], 1)
    bad = {
        grpc.StatusCode.NOT_FOUND: pb.TablePush(table="nobody", keys=packing.keys([1]), gradients=packing.f32([1])),
        grpc.StatusCode.OUT_OF_RANGE: push_of("item", [1000], 1),
        grpc.StatusCode.INVALID_ARGUMENT: push_of("word", [1], np.nan),
    }
    for code, part in bad.items():
        refused(code, server.data.Push, pb.PushRequest(tables=[good, part]))
    np.testing.assert_array_equal(server.pull("user", [1]), np.zeros((1, 8)))
