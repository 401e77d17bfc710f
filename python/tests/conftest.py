"""A real server for every test, in this process, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hotrow


@pytest.fixture
def server() -> Iterator[hotrow.Server]:
    with hotrow.serve() as server:
        yield server


@pytest.fixture
def client(server: hotrow.Server) -> Iterator[hotrow.Client]:
    with hotrow.connect(server.address) as client:
        yield client


@pytest.fixture
def plain(client: hotrow.Client) -> hotrow.Client:
    """With a table `t` whose results are exact: f32, SGD with a rate of 1, all zeros."""
    client.create_table("t", 4, 100, precision="f32", optimizer="sgd", learning_rate=1.0, initializer="zeros")
    return client
