"""What a stock client meets at the edges: large messages, compression, deadlines, unknown methods."""

import grpc
import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb
from hotrow.v1.data_pb2_grpc import DataStub

import packing


def test_a_request_that_is_too_large_is_refused_and_the_connection_lives(start, refused):
    server = start("--max-request", "1MiB")
    server.create("t", 16)
    for count in [20_000, 200_000]:
        refused(grpc.StatusCode.OUT_OF_RANGE, server.push, "t", np.arange(count), np.ones((count, 16)))
    server.push("t", np.arange(10_000), np.ones((10_000, 16)))
    np.testing.assert_array_equal(server.pull("t", [9_999, 10_000]), [-np.ones(16), np.zeros(16)])


def test_an_answer_that_is_too_large_is_refused(start, refused):
    server = start("--max-response", "1MiB")
    server.create("t", 16)
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.pull, "t", np.arange(16_385))
    assert len(server.pull("t", np.arange(16_384))) == 16_384


def test_compressed_messages_are_refused_clearly(server, refused):
    server.create("t", 16)
    with server.connect(compression=grpc.Compression.Gzip) as channel:
        part = pb.TablePull(table="t", keys=packing.keys(np.zeros(1000)))
        error = refused(grpc.StatusCode.UNIMPLEMENTED, DataStub(channel).Pull, pb.PullRequest(tables=[part]))
        assert "compress" in error.details()


def test_calls_with_a_deadline_are_answered(server):
    server.create("t", 16)
    part = pb.TablePull(table="t", keys=packing.keys([1]))
    for timeout in [1e2, 1e4, 1e6, 1e8]:
        assert list(server.data.Pull(pb.PullRequest(tables=[part]), timeout=timeout).dims) == [16]


@pytest.mark.parametrize("path", ["/hotrow.v1.Data/Fly", "/hotrow.v2.Data/Pull"])
def test_methods_that_do_not_exist_are_unimplemented(server, path):
    call = server.channel.unary_unary(path, _registered_method=False)
    with pytest.raises(grpc.RpcError) as error:
        call(b"")
    assert error.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_bytes_that_are_no_message_are_refused(server, refused):
    call = server.channel.unary_unary("/hotrow.v1.Data/Pull", _registered_method=False)
    refused(grpc.StatusCode.INVALID_ARGUMENT, call, b"\xff\xff\xff")


def test_keys_that_are_not_whole_are_refused(server, refused):
    server.create("t", 16)
    request = pb.PullRequest(tables=[pb.TablePull(table="t", keys=b"1234567")])
    refused(grpc.StatusCode.INVALID_ARGUMENT, server.data.Pull, request)
