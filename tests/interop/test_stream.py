"""The bidirectional stream: pulls and pushes answered in order, errors in band."""

import os
import queue

import grpc
import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb

import packing
from process import PATIENCE

DIM = 4


@pytest.fixture
def table(server):
    server.create("t", DIM)
    return server


def pull(number, keys=(5,), table="t", **more):
    part = pb.TablePull(table=table, keys=packing.keys(keys))
    return pb.StreamRequest(id=number, pull=pb.PullRequest(tables=[part], **more))


def push(number, keys=(5,), table="t", **more):
    gradients = packing.f32(np.ones((len(keys), DIM)))
    part = pb.TablePush(table=table, keys=packing.keys(keys), gradients=gradients)
    return pb.StreamRequest(id=number, push=pb.PushRequest(tables=[part], **more))


def rows(answer):
    assert answer.WhichOneof("response") == "pull", answer
    return np.frombuffer(answer.pull.rows, "<f4").reshape(-1, answer.pull.dims[0])


def test_pipelined_requests_are_answered_in_order(table):
    requests = [(push if number % 3 == 0 else pull)(1000 - number) for number in range(300)]
    stream = table.data.Stream(iter(requests), timeout=PATIENCE)
    pushed = 0
    for request, answer in zip(requests, stream, strict=True):
        assert (answer.id, answer.code, answer.message) == (request.id, 0, "")
        if request.WhichOneof("request") == "push":
            pushed += 1
            assert answer.WhichOneof("response") == "push"
        else:
            # Every pull sees the pushes before it and none after it.
            np.testing.assert_array_equal(rows(answer), np.full((1, DIM), -pushed))
    assert pushed == 100
    assert stream.code() == grpc.StatusCode.OK


def test_large_answers_arrive_whole(table):
    keys = np.arange(200_000)
    requests = [push(1, keys), pull(2, keys), pull(3, keys[:10]), pull(4, keys), pull(5, [])]
    # All answers together have more than the 4 MiB that grpcio takes in one message, each has less.
    answers = list(table.data.Stream(iter(requests), timeout=PATIENCE))
    assert [answer.id for answer in answers] == [1, 2, 3, 4, 5]
    for answer, count in zip(answers[1:], [200_000, 10, 200_000, 0]):
        np.testing.assert_array_equal(rows(answer), np.full((count, DIM), -1))


def test_a_stream_answers_while_it_is_open(table):
    requests = queue.Queue()
    stream = table.data.Stream(iter(requests.get, None), timeout=PATIENCE)
    for number in range(5):
        requests.put(push(2 * number))
        requests.put(pull(2 * number + 1))
        assert next(stream).id == 2 * number
        np.testing.assert_array_equal(rows(next(stream)), np.full((1, DIM), -number - 1))
    requests.put(None)
    assert next(stream, None) is None
    assert stream.code() == grpc.StatusCode.OK


def test_an_error_is_part_of_the_answer(table):
    wrong = [
        (pull(1, table="nobody"), grpc.StatusCode.NOT_FOUND),
        (push(2, table="nobody"), grpc.StatusCode.NOT_FOUND),
        (pull(3, topology_version=1), grpc.StatusCode.FAILED_PRECONDITION),
        (push(4, client_id=os.urandom(16), sequence=1), grpc.StatusCode.FAILED_PRECONDITION),
        (pull(5, format=77), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.StreamRequest(id=6), grpc.StatusCode.INVALID_ARGUMENT),
    ]
    requests = [request for request, _ in wrong]
    stream = table.data.Stream(iter([push(0), *requests, push(7), pull(8)]), timeout=PATIENCE)
    answers = list(stream)
    assert stream.code() == grpc.StatusCode.OK
    assert [answer.id for answer in answers] == list(range(9))
    for (_, code), answer in zip(wrong, answers[1:7], strict=True):
        assert answer.code == code.value[0], answer
        assert answer.message
        assert answer.WhichOneof("response") is None
    # The stale topology comes with the right one.
    assert answers[3].topology_version > 1
    # Nothing of the wrong ones was done, all of the right ones.
    np.testing.assert_array_equal(rows(answers[8]), np.full((1, DIM), -2))


def test_a_push_is_recognised_on_another_stream_and_off_it(table):
    client = os.urandom(16)
    table.data.OpenClient(pb.OpenClientRequest(client_id=client))
    request = push(1, client_id=client, sequence=1)
    first, again = table.data.Stream(iter([request, request]), timeout=PATIENCE)
    (other,) = table.data.Stream(iter([request]), timeout=PATIENCE)
    alone = table.data.Push(request.push)
    assert [first.push.duplicate, again.push.duplicate, other.push.duplicate, alone.duplicate] == [False, True, True, True]
    np.testing.assert_array_equal(table.pull("t", [5]), np.full((1, DIM), -1))
