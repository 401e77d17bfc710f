"""A parameter server on Python's gRPC and NumPy, as people write it themselves: bytes fields, indexed gathers."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from concurrent import futures
from typing import Any

import grpc
import numpy as np

from . import protocol

# From parameters.proto, when this is imported: grpcio-tools is there, and no generated file is kept.
messages, services = grpc.protos_and_services("peers/parameters.proto")

# A batch is 2 MiB; the default limit is 4.
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Parameters(services.ParametersServicer):  # type: ignore[misc, name-defined]
    """The server's side. Keys of a push are unique, so that a step is one indexed assignment."""

    def __init__(self, table: protocol.Rows) -> None:
        self.table = table

    def Pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        keys = np.frombuffer(request.keys, dtype=np.int64)
        return messages.PullReply(rows=self.table[keys].tobytes())

    def Push(self, request: Any, context: grpc.ServicerContext) -> Any:
        keys = np.frombuffer(request.keys, dtype=np.int64)
        gradients = np.frombuffer(request.gradients, dtype=np.float32).reshape(len(keys), -1)
        self.table[keys] -= protocol.LEARNING_RATE * gradients
        return messages.PushReply()


class Client:
    def __init__(self, task: protocol.Task, port: int) -> None:
        self.stub = services.ParametersStub(grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS))
        self.batches, self.gradients = task.batches(), task.gradients()
        self.out = np.empty((task.batch, task.dim), dtype=np.float32)

    def keys(self, batch: int) -> bytes:
        return self.batches[batch % len(self.batches)].tobytes()

    def pull(self, batch: int) -> None:
        reply = self.stub.Pull(messages.PullRequest(keys=self.keys(batch)))
        self.out[:] = np.frombuffer(reply.rows, dtype=np.float32).reshape(self.out.shape)

    def push(self, batch: int) -> None:
        self.stub.Push(messages.PushRequest(keys=self.keys(batch), gradients=self.gradients.tobytes()))

    def sum(self, batch: int) -> float:
        self.pull(batch)
        return float(self.out.sum(dtype=np.float64))


def serve_table(task: protocol.Task) -> None:
    """The server's process: says its port, and serves until its input ends."""
    server = grpc.server(futures.ThreadPoolExecutor(2), options=OPTIONS)
    services.add_ParametersServicer_to_server(Parameters(protocol.table(task.rows, task.dim)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()


def main() -> None:
    task = protocol.task(("grpcio-numpy", "server"))
    if task.variant == "server":
        return serve_table(task)
    command = [sys.executable, "-m", "peers.grpcio_numpy", *task.words(), "--variant", "server"]
    with protocol.process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        client = Client(task, int(server.stdout.readline()))
        versions = {name: importlib.metadata.version(name) for name in ("grpcio", "protobuf", "numpy")}
        settings = "loopback TCP, unary calls, bytes fields; a push is SGD on unique keys"
        protocol.serve(client, protocol.ready_line(task.variant, versions, settings))


if __name__ == "__main__":
    main()
