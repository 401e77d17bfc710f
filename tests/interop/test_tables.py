"""Tables are made, described, changed and dropped."""

import grpc
import numpy as np
import pytest
from hotrow.v1 import tables_pb2 as pb


def describe(server, table):
    return server.tables.Describe(pb.DescribeTableRequest(table=table))


def test_making_the_same_table_twice_is_fine(server):
    assert server.create("t", 8, rows=1000) == server.create("t", 8, rows=1000)
    server.push("t", [1], np.ones((1, 8)))
    server.create("t", 8, rows=1000)
    np.testing.assert_array_equal(server.pull("t", [1]), -np.ones((1, 8)))


@pytest.mark.parametrize("other", [{"dim": 9}, {"rows": 1001}, {"rows": 0}, {"learning_rate": 0.5}, {"policy": "lfu"}])
def test_a_different_table_of_the_same_name_already_exists(server, refused, other):
    server.create("t", 8, rows=1000)
    refused(grpc.StatusCode.ALREADY_EXISTS, server.create, "t", **{"dim": 8, "rows": 1000, **other})
    assert describe(server, "t").spec.rows == 1000


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"dim": 4097}, {"precision": "int3"}, {"name": "a b"}, {"name": ""}])
def test_a_table_that_makes_no_sense_is_refused(server, refused, wrong):
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.create, **{"name": "t", "dim": 8, **wrong})


def test_a_table_is_described_with_its_defaults(server):
    server.tables.Create(pb.CreateTableRequest(spec=pb.TableSpec(name="t", dim=16, rows=100_000)))
    spec = describe(server, "t").spec
    assert (spec.name, spec.dim, spec.rows) == ("t", 16, 100_000)
    assert (spec.precision, spec.quantizer, spec.rounding) == ("int8", "symmetric", "stochastic")
    assert (spec.optimizer.name, spec.state_precision, spec.policy) == ("rowwise_adagrad", "f32", "lru")
    assert spec.learning_rate == np.float32(0.01)
    assert spec.initializer.WhichOneof("kind") == "dlrm"
    assert spec.cache.percent == 5
    assert not spec.HasField("clip_norm")


def test_the_footprint_is_what_the_layout_says(server):
    made = server.create("t", 16, rows=100_000, precision="int8").footprint
    assert describe(server, "t").footprint == made
    # Sixteen signed bytes and a bf16 scale; the cache holds f32.
    assert 18 <= made.row_bytes < 19
    assert made.cache_slot_bytes >= 64
    np.testing.assert_allclose(made.total_bytes, made.row_bytes * 100_000 + made.cache_bytes, rtol=0.01)
    np.testing.assert_allclose(made.bytes_per_row, made.total_bytes / 100_000, rtol=0.01)


def test_a_hashed_table_has_no_total(server):
    assert not server.create("t", 16).footprint.HasField("total_bytes")


def test_a_described_table_can_be_made_again(server):
    server.create("t", 8, clip_norm=2.5, weight_decay=0.25)
    spec = describe(server, "t").spec
    server.tables.Create(pb.CreateTableRequest(spec=spec))
    server.tables.Drop(pb.DropTableRequest(table="t"))
    server.tables.Create(pb.CreateTableRequest(spec=spec))
    assert describe(server, "t").spec == spec


def test_an_alteration_counts_from_the_next_push(server):
    server.create("t", 4)
    server.push("t", [1], np.ones((1, 4)))
    altered = server.tables.Alter(pb.AlterTableRequest(table="t", learning_rate=0.5)).spec
    assert altered.learning_rate == 0.5
    assert altered == describe(server, "t").spec
    server.push("t", [1], np.ones((1, 4)))
    np.testing.assert_array_equal(server.pull("t", [1]), np.full((1, 4), -1.5))


def test_an_alteration_leaves_what_it_does_not_name(server):
    server.create("t", 4, weight_decay=0.125)
    # A gradient of norm 2 is clipped to 1.
    altered = server.tables.Alter(pb.AlterTableRequest(table="t", clip_norm=1, weight_decay=0)).spec
    assert (altered.learning_rate, altered.weight_decay, altered.clip_norm) == (1, 0, 1)
    server.push("t", [1], np.ones((1, 4)))
    np.testing.assert_array_equal(server.pull("t", [1]), np.full((1, 4), -0.5))
    assert not server.tables.Alter(pb.AlterTableRequest(table="t", clip_norm=0)).spec.HasField("clip_norm")
    server.push("t", [1], np.ones((1, 4)))
    np.testing.assert_array_equal(server.pull("t", [1]), np.full((1, 4), -1.5))


def test_all_tables_are_listed_by_name(server):
    assert not server.tables.List(pb.ListTablesRequest()).tables
    for name in ["b", "c", "a"]:
        server.create(name, 4)
    listed = server.tables.List(pb.ListTablesRequest()).tables
    assert [table.spec.name for table in listed] == ["a", "b", "c"]
    assert list(listed) == [describe(server, name) for name in "abc"]


def test_a_dropped_table_is_gone(server, refused):
    server.create("t", 4)
    server.push("t", [1], np.ones((1, 4)))
    server.tables.Drop(pb.DropTableRequest(table="t"))
    refused(grpc.StatusCode.NOT_FOUND, server.pull, "t", [1])
    refused(grpc.StatusCode.NOT_FOUND, describe, server, "t")
    refused(grpc.StatusCode.NOT_FOUND, server.tables.Drop, pb.DropTableRequest(table="t"))
    refused(grpc.StatusCode.NOT_FOUND, server.tables.Alter, pb.AlterTableRequest(table="t", learning_rate=1))
    server.create("t", 6)
    np.testing.assert_array_equal(server.pull("t", [1]), np.zeros((1, 6)))
