"""A push with a client id and a sequence is applied once, however often it arrives."""

import os

import grpc
import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def table(server):
    server.create("t", 2)
    return server


@pytest.fixture
def client(table):
    client_id = os.urandom(16)
    assert table.data.OpenClient(pb.OpenClientRequest(client_id=client_id)).idle_seconds > 0
    return client_id


def push(server, client_id, sequence, keys=(5,)):
    return server.push("t", keys, np.ones((len(keys), 2)), client_id=client_id, sequence=sequence)


def pushes_seen(server, key=5):
    return -server.pull("t", [key])[0, 0]


def test_a_retry_is_recognised(table, client):
    first = push(table, client, 1)
    again = push(table, client, 1)
    assert (first.duplicate, again.duplicate) == (False, True)
    assert pushes_seen(table) == 1
    assert not push(table, client, 2).duplicate
    assert pushes_seen(table) == 2


def test_late_pushes_are_applied_once_in_any_order(table, client):
    for sequence in [70, 6, 69, 38, 7]:
        assert not push(table, client, sequence).duplicate
    for sequence in [7, 38, 6, 70, 69]:
        assert push(table, client, sequence).duplicate
    assert pushes_seen(table) == 5


def test_a_sequence_more_than_64_below_the_highest_is_refused(table, client, refused):
    push(table, client, 100)
    refused(PRECONDITION, push, table, client, 35)
    assert pushes_seen(table) == 1
    assert not push(table, client, 36).duplicate
    assert pushes_seen(table) == 2


def test_a_client_that_is_not_open_is_refused(table, refused):
    refused(PRECONDITION, push, table, os.urandom(16), 1)
    assert pushes_seen(table) == 0


def test_a_closed_client_is_refused(table, client, refused):
    push(table, client, 1)
    table.data.CloseClient(pb.CloseClientRequest(client_id=client))
    refused(PRECONDITION, push, table, client, 1)
    refused(PRECONDITION, push, table, client, 2)
    assert pushes_seen(table) == 1


def test_opening_again_forgets_nothing(table, client):
    push(table, client, 1)
    table.data.OpenClient(pb.OpenClientRequest(client_id=client))
    assert push(table, client, 1).duplicate


def test_clients_do_not_share_sequences(table, client):
    other = os.urandom(16)
    table.data.OpenClient(pb.OpenClientRequest(client_id=other))
    assert not push(table, client, 1).duplicate
    assert not push(table, other, 1).duplicate
    assert pushes_seen(table) == 2


def test_a_push_without_a_client_is_applied_as_often_as_it_arrives(table):
    for _ in range(3):
        assert not push(table, b"", 1).duplicate
    assert pushes_seen(table) == 3


def test_a_refused_push_does_not_use_up_its_sequence(table, client, refused):
    bad = np.full((1, 2), np.inf)
    refused(grpc.StatusCode.INVALID_ARGUMENT, table.push, "t", [5], bad, client_id=client, sequence=1)
    assert not push(table, client, 1).duplicate
    assert pushes_seen(table) == 1


@pytest.mark.parametrize("length", [1, 15, 17])
def test_a_client_id_has_16_bytes(table, refused, length):
    wrong = pb.OpenClientRequest(client_id=bytes(length))
    refused(grpc.StatusCode.INVALID_ARGUMENT, table.data.OpenClient, wrong)
    refused(grpc.StatusCode.INVALID_ARGUMENT, push, table, bytes(length), 1)
