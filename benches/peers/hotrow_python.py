"""hotrow's Python package against a server in a process of its own."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import hotrow
import numpy as np

from . import protocol


class Client:
    def __init__(self, task: protocol.Task, address: str) -> None:
        self.client = hotrow.connect(address, connections=1)
        self.client.create_table(
            "t", task.dim, task.rows, precision="f32", optimizer="sgd", learning_rate=protocol.LEARNING_RATE
        )
        for keys in protocol.chunks(task.rows, task.batch):
            self.client.assign("t", keys, protocol.rows_of(keys, task.dim))
        self.batches, self.gradients = task.batches(), task.gradients()
        self.out = np.empty((task.batch, task.dim), dtype=np.float32)

    def keys(self, batch: int) -> protocol.Keys:
        return self.batches[batch % len(self.batches)]

    def pull(self, batch: int) -> None:
        self.client.pull("t", self.keys(batch), out=self.out)

    def push(self, batch: int) -> None:
        self.client.push("t", self.keys(batch), self.gradients)

    def sum(self, batch: int) -> float:
        self.pull(batch)
        return float(self.out.sum(dtype=np.float64))


def main() -> None:
    task = protocol.task(("hotrow-python",))
    command = [sys.executable, "-m", "hotrow", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with protocol.process(command, stderr=subprocess.PIPE) as server:
        assert server.stderr is not None
        address = next(
            (found[1] for line in server.stderr if (found := re.search(r"hotrow serves .* on (\S+)", line))), None
        )
        if address is None:
            raise SystemExit("the server did not start")
        client = Client(task, address)
        settings = "loopback TCP, f32 table with SGD, f32 wire, 1 connection"
        versions = {"hotrow": importlib.metadata.version("hotrow")}
        protocol.serve(client, protocol.ready_line(task.variant, versions, settings))
        client.client.close()


if __name__ == "__main__":
    main()
