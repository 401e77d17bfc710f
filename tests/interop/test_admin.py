"""Looking after a server."""

import grpc
import numpy as np
from hotrow.v1 import admin_pb2 as pb
from hotrow.v1 import data_pb2, tables_pb2

import packing


def stats(server, table=""):
    return server.admin.Stats(pb.StatsRequest(table=table))


def scan(server, table, limit):
    """All keys, and how many each answer had."""
    keys, counts, cursor = [], [], b""
    while True:
        answer = server.admin.ScanKeys(pb.ScanKeysRequest(table=table, cursor=cursor, limit=limit))
        page = np.frombuffer(answer.keys, "<u8").tolist()
        keys += page
        counts.append(len(page))
        if not (cursor := answer.cursor):
            return keys, counts


def test_stats_count_what_was_sent(server):
    server.create("cached", 16, rows=100_000, precision="int8")
    server.create("plain", 4)
    server.push("cached", [1, 2, 3, 3], np.ones((4, 16)))
    server.pull("cached", [1, 2, 1, 77])
    server.data.Touch(data_pb2.TouchRequest(tables=[data_pb2.TableTouch(table="cached", keys=packing.keys([3, 4]))]))
    server.push("plain", [10, 11], np.ones((2, 4)))
    server.data.OpenClient(data_pb2.OpenClientRequest(client_id=bytes(range(16))))
    answer = stats(server)
    assert [table.table for table in answer.tables] == ["cached", "plain"]
    cached, plain = answer.tables
    assert cached == stats(server, "cached").tables[0]
    assert (cached.rows, cached.cached_rows, cached.stored_rows) == (100_000, 4, 0)
    assert (cached.pull_hits, cached.pull_misses) == (3, 1)
    assert (cached.push_hits, cached.push_misses, cached.updated_rows) == (0, 4, 3)
    assert (cached.touch_hits, cached.touch_misses) == (1, 1)
    assert not cached.HasField("rounding_rms")
    assert cached.cache_bytes >= cached.cache_slots * 64
    assert plain.rows == 2
    assert answer.memory_used >= cached.row_bytes + cached.cache_bytes + plain.row_bytes
    assert (answer.shard, answer.open_clients) == (0, 1)


def test_stats_of_an_unknown_table_are_not_found(server, refused):
    refused(grpc.StatusCode.NOT_FOUND, stats, server, "nobody")


def test_topology(server):
    topology = server.admin.Topology(pb.TopologyRequest())
    assert list(topology.shards) == [server.address]
    assert topology.this_shard == 0
    assert topology.version != 0
    np.testing.assert_array_equal(np.frombuffer(topology.partition_shards, "<u4"), np.zeros(128))


def test_a_request_of_another_topology_is_refused_with_the_right_one(server, refused):
    server.create("t", 4)
    version = server.admin.Topology(pb.TopologyRequest()).version
    part = data_pb2.TablePull(table="t", keys=packing.keys([1]))
    server.data.Pull(data_pb2.PullRequest(tables=[part], topology_version=version))
    wrong = data_pb2.PullRequest(tables=[part], topology_version=version ^ 1)
    error = refused(grpc.StatusCode.FAILED_PRECONDITION, server.data.Pull, wrong)
    assert dict(error.trailing_metadata())["hotrow-topology-version"] == str(version)


def test_flush_gives_the_place_of_the_last_change(server):
    server.create("t", 4)
    places = [server.push("t", [key], np.ones((1, 4))).lsn for key in range(3)]
    assert places == sorted(set(places))
    assert server.admin.Flush(pb.FlushRequest()).lsn == places[-1] == stats(server).last_lsn


def test_assigned_rows_are_read_and_removed_ones_are_not(server):
    server.create("t", 3)
    rows = np.random.default_rng(2).normal(size=(4, 3)).astype("f4")
    server.assign("t", [7, 2**64 - 1, 9, 7], rows)
    np.testing.assert_array_equal(server.pull("t", [7, 2**64 - 1, 9]), rows[[3, 1, 2]])
    server.admin.RemoveRows(pb.RemoveRowsRequest(table="t", keys=packing.keys([7, 1000])))
    np.testing.assert_array_equal(server.pull("t", [7, 9]), [np.zeros(3), rows[2]])
    assert stats(server).tables[0].rows == 2


def test_a_removed_row_reads_as_at_first(server):
    server.create("t", 16, initializer=tables_pb2.Initializer(normal=tables_pb2.Initializer.Normal(mean=1, std=2)))
    first = server.pull("t", [7, 8])
    assert len(np.unique(first)) == first.size
    server.push("t", [7, 8], np.ones((2, 16)))
    server.admin.RemoveRows(pb.RemoveRowsRequest(table="t", keys=packing.keys([7])))
    np.testing.assert_array_equal(server.pull("t", [7, 8]), [first[0], first[1] - 1])


def test_assigned_rows_of_the_wrong_length_are_refused(server, refused):
    server.create("t", 3)
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.assign, "t", [1, 2], [1, 2, 3])
    assert stats(server).tables[0].rows == 0


def test_a_scan_finds_every_key_once(server):
    keys = np.random.default_rng(4).integers(0, 2**64, 1000, dtype="u8").tolist()
    server.create("hashed", 2)
    server.push("hashed", keys, np.ones((1000, 2)))
    for limit, most in [(0, 1000), (1, 1), (7, 7), (999, 999), (1000, 1000)]:
        found, counts = scan(server, "hashed", limit)
        assert sorted(found) == sorted(set(keys))
        assert max(counts) <= most


def test_a_scan_of_a_dense_table_finds_what_was_trained_or_set(server):
    server.create("dense", 16, rows=100_000, precision="int8")
    server.push("dense", [5, 99_999], np.ones((2, 16)))
    server.assign("dense", [70_000], np.ones((1, 16)))
    server.pull("dense", [1, 2, 3])
    assert sorted(scan(server, "dense", 2)[0]) == [5, 70_000, 99_999]


def test_a_cursor_of_one_s_own_making_is_refused(server, refused):
    server.create("t", 2)
    wrong = pb.ScanKeysRequest(table="t", cursor=b"abc")
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.admin.ScanKeys, wrong)


def test_inspecting_a_row(server):
    adagrad = tables_pb2.Optimizer(name="adagrad", eps=0)
    server.create("t", 16, rows=100_000, precision="int8", optimizer=adagrad)
    server.push("t", [5], np.full((1, 16), 3))
    row = server.admin.InspectRow(pb.InspectRowRequest(table="t", key=5))
    np.testing.assert_array_equal(np.frombuffer(row.weights, "<f4"), np.full(16, -1))
    np.testing.assert_array_equal(np.frombuffer(row.state, "<f4"), np.full(16, 9))
    assert (row.cached, row.dirty, row.stored) == (True, True, False)


def read(server, table, keys, stored=False):
    return server.admin.ReadRows(pb.ReadRowsRequest(table=table, keys=packing.keys(keys), stored=stored))


def test_rows_are_read_as_a_pull_reads_them_or_as_they_are_stored(server):
    server.create("t", 5, rows=100_000, precision="int8")
    rows = np.array([[1, -2, 3, -4, 127], [0, 0, 0, 0, 0]], "<f4")
    server.assign("t", [7, 99_999], rows)
    # Keys may come twice.
    plain = read(server, "t", [99_999, 7, 7])
    assert (plain.precision, plain.quantizer) == ("f32", "")
    np.testing.assert_array_equal(np.frombuffer(plain.rows, "<f4").reshape(-1, 5), rows[[1, 0, 0]])
    stored = read(server, "t", [99_999, 7, 7], stored=True)
    assert (stored.precision, stored.quantizer) == ("int8", "symmetric")
    np.testing.assert_array_equal(packing.rows_from("int8", stored.rows, 5), rows[[1, 0, 0]])
    nothing = read(server, "t", [], stored=True)
    assert (nothing.rows, nothing.precision, nothing.quantizer) == (b"", "int8", "symmetric")
    counts = stats(server, "t").tables[0]
    assert (counts.pull_hits, counts.pull_misses) == (0, 0)


def test_rows_that_cannot_be_read(start, refused):
    server = start("--max-response", "1KiB")
    server.create("t", 4, rows=100)
    for stored in [False, True]:
        assert len(read(server, "t", range(64), stored).rows) == 1024
        error = refused(grpc.StatusCode.INVALID_ARGUMENT, read, server, "t", range(65), stored)
        assert "raise server.max_response" in error.details()
        refused(grpc.StatusCode.NOT_FOUND, read, server, "nobody", [1], stored)
        refused(grpc.StatusCode.OUT_OF_RANGE, read, server, "t", [100], stored)
        half = pb.ReadRowsRequest(table="t", keys=b"1234", stored=stored)
        refused(grpc.StatusCode.INVALID_ARGUMENT, server.admin.ReadRows, half)
