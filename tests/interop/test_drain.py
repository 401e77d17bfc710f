"""A server that is told to end finishes and ends."""

import queue

import grpc
import numpy as np
import pytest
from hotrow.v1 import admin_pb2
from hotrow.v1 import data_pb2 as pb

import packing
from process import PATIENCE


def test_drain_ends_the_process(server):
    server.create("t", 4)
    server.push("t", [1], np.ones((1, 4)))
    server.admin.Drain(admin_pb2.DrainRequest())
    assert server.process.wait() == 0, server.process.text()


def test_an_open_stream_is_told_and_does_not_delay_the_end(server):
    server.create("t", 4)
    requests = queue.Queue()
    stream = server.data.Stream(iter(requests.get, None), timeout=PATIENCE)
    part = pb.TablePull(table="t", keys=packing.keys([1]))
    requests.put(pb.StreamRequest(id=1, pull=pb.PullRequest(tables=[part])))
    assert next(stream).id == 1
    server.process.child.terminate()
    with pytest.raises(grpc.RpcError) as error:
        next(stream)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    assert server.process.wait() == 0, server.process.text()
    requests.put(None)
