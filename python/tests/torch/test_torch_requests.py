"""All tables travel together: one pull to each shard in forward, one push in backward. The servers count."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from urllib.request import urlopen

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBagCollection, Table

TABLES, STEPS = 26, 5


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_one_request_per_shard(shards: int, lookahead: int) -> None:
    addresses = [f"127.0.0.1:{_free_port()}" for _ in range(shards)]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(hotrow.serve(listen=address, shards=addresses, shard=str(number)))
            for number, address in enumerate(addresses)
        ]
        client = stack.enter_context(hotrow.connect(addresses))
        tables = [Table(f"t{number}", 8, 1000) for number in range(TABLES)]
        module = EmbeddingBagCollection(client, tables, optimizer="sgd", learning_rate=0.1, lookahead=lookahead)
        # Enough keys that every shard has some of them.
        batches = [{table.name: torch.randint(0, 1000, (64, 3)) for table in tables} for _ in range(STEPS)]
        before = [_requests(server) for server in servers]
        for batch in hotrow.torch.lookahead(batches, module):
            sum(out.sum() for out in module(batch).values()).backward()
        module.flush()
        for server, (pulls, pushes) in zip(servers, before):
            after = _requests(server)
            assert (after[0] - pulls, after[1] - pushes) == (STEPS, STEPS)
            # Not a request of nothing: this shard has stepped rows of all tables.
            text = _metrics(server)
            assert all(_sum(text, "hotrow_updated_rows_total", table=table.name) > 0 for table in tables)


def _requests(server: hotrow.Server) -> tuple[float, float]:
    """Pulls and pushes that a shard has answered, in whatever way they travelled."""
    text = _metrics(server)
    pulls, pushes = (
        sum(_sum(text, "hotrow_rpc_requests_total", method=f"Data/{way}{kind}") for way in ("", "Stream."))
        for kind in ("Pull", "Push")
    )
    return pulls, pushes


def _metrics(server: hotrow.Server) -> str:
    return urlopen(f"http://{server.http}/metrics").read().decode()


def _sum(text: str, metric: str, **labels: str) -> float:
    """All series of a metric that have these labels."""
    total = 0.0
    for found, value in re.findall(rf"^{metric}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
        if all(f'{name}="{wanted}"' in found for name, wanted in labels.items()):
            total += float(value)
    return total


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
