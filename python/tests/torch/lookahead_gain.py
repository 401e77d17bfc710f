"""How much of the time that a slow network costs does look-ahead win back?

    python lookahead_gain.py [--delay 0.005] [--lookahead 1] [--compute 0.028] [--steps 40]

Trains the same small model three times: without look-ahead and without a network, without look-ahead through a proxy
that delays every byte by `delay` seconds each way, and with look-ahead through it. A sleep stands for the GPU's work.
Without look-ahead a step waits for two round trips: its pull waits until the push before it is applied. More than the
whole can come back: look-ahead hides the server's own time as well.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import hotrow
import torch
from delay_proxy import DelayProxy
from hotrow.torch import EmbeddingBagCollection, Table, lookahead


class Gain(NamedTuple):
    """Seconds per step."""

    local: float
    waiting: float
    ahead: float

    @property
    def recovered(self) -> float:
        """The share of the lost time that is won back."""
        return (self.waiting - self.ahead) / (self.waiting - self.local)

    def __str__(self) -> str:
        local, waiting, ahead = (f"{seconds * 1e3:.1f} ms" for seconds in self)
        steps = f"per step: {local} without a network, {waiting} waiting for it, {ahead} with look-ahead"
        return f"{steps}\nratio torch.lookahead.recovered {self.recovered:.3f}"


def measure(delay: float, depth: int, compute: float, steps: int) -> Gain:
    """Trains three times."""
    with hotrow.serve() as server:
        local = _train(server.address, 0, compute, steps)
    with _delayed_server(delay) as address:
        waiting = _train(address, 0, compute, steps)
    with _delayed_server(delay) as address:
        ahead = _train(address, depth, compute, steps)
    return Gain(local, waiting, ahead)


def _train(address: str, depth: int, compute: float, steps: int) -> float:
    torch.manual_seed(1)
    tables = [Table(f"t{number}", 16, 10_000) for number in range(4)]
    batches = [{table.name: torch.randint(0, 10_000, (128,)) for table in tables} for _ in range(steps + 3)]
    with hotrow.connect(address) as client:
        bags = EmbeddingBagCollection(client, tables, lookahead=depth, optimizer="sgd", learning_rate=0.1)
        for number, batch in enumerate(lookahead(batches, bags)):
            # The first steps connect, and fill the queue.
            if number == 3:
                begun = time.perf_counter()
            loss = sum(out.square().mean() for out in bags(batch).values())
            time.sleep(compute)
            loss.backward()
        # The pushes that are still under way are part of the work.
        bags.flush()
        return (time.perf_counter() - begun) / steps


@contextmanager
def _delayed_server(delay: float) -> Iterator[str]:
    """A server that clients reach through the proxy only: its own list of shards says so."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
    with DelayProxy(listen, delay) as proxy, hotrow.serve(listen=listen, shards=[proxy.address], shard="0"):
        yield proxy.address


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=0.005, help="seconds, each way")
    parser.add_argument("--lookahead", type=int, default=1, help="batches")
    parser.add_argument("--compute", type=float, default=0.028, help="seconds of work per step")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(measure(options.delay, options.lookahead, options.compute, options.steps))


if __name__ == "__main__":
    main()
