"""A real server in this process, a client of it, and a table name of its own for every test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import hotrow
import pytest
import torch

# The tests' tables are small: more threads would only fight over the cores.
torch.set_num_threads(1)

_numbers = itertools.count()


@pytest.fixture(scope="session")
def server() -> Iterator[hotrow.Server]:
    with hotrow.serve(seed=7) as server:
        yield server


@pytest.fixture(scope="session")
def client(server: hotrow.Server) -> Iterator[hotrow.Client]:
    with hotrow.connect(server.address) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"table{next(_numbers)}"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(1)
