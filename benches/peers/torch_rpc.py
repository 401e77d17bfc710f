"""torch.distributed.rpc: an nn.EmbeddingBag on the server, rows and gradients as tensors, no autograd.

A pull calls the module; a push makes a sparse gradient of what came and steps torch.optim.SGD. Reading by
`index_select` and stepping by `index_add_` were tried too: over the wire both were somewhat slower.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import threading
import warnings

import torch
from torch.distributed import rpc

from . import protocol

# PyTorch's rpc warns of how PyTorch's rpc uses its own parts.
warnings.filterwarnings("ignore", message="You are using a Backend")

# The server's.
embedding: torch.nn.EmbeddingBag
optimizer: torch.optim.SGD


def hold(rows: int, dim: int) -> None:
    global embedding, optimizer
    weight = torch.from_numpy(protocol.table(rows, dim))
    embedding = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=protocol.LEARNING_RATE)


@torch.no_grad()
def forward(keys: torch.Tensor) -> torch.Tensor:
    rows: torch.Tensor = embedding(keys.unsqueeze(1))
    return rows


def step(keys: torch.Tensor, gradients: torch.Tensor) -> None:
    weight = embedding.weight
    weight.grad = torch.sparse_coo_tensor(keys.unsqueeze(0), gradients, weight.shape, check_invariants=False)
    optimizer.step()


class Client:
    def __init__(self, task: protocol.Task) -> None:
        self.batches = [torch.from_numpy(keys) for keys in task.batches()]
        self.gradients = torch.from_numpy(task.gradients())
        self.out = torch.empty(task.batch, task.dim)

    def keys(self, batch: int) -> torch.Tensor:
        return self.batches[batch % len(self.batches)]

    def pull(self, batch: int) -> None:
        self.out.copy_(rpc.rpc_sync("server", forward, (self.keys(batch),)))

    def push(self, batch: int) -> None:
        rpc.rpc_sync("server", step, (self.keys(batch), self.gradients))

    def sum(self, batch: int) -> float:
        self.pull(batch)
        return float(self.out.sum(dtype=torch.float64))


def join(name: str, rank: int, port: int) -> None:
    # TCP, as all others: on one machine it would choose shared memory.
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=4, _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve_table(task: protocol.Task) -> None:
    """The server's process, until the client shuts down or its own input ends."""
    port = int(sys.stdin.readline())
    # A client that was killed does not shut down, and would leave this process behind.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    hold(task.rows, task.dim)
    join("server", 1, port)
    rpc.shutdown()


def main() -> None:
    task = protocol.task(("torch-rpc", "server"))
    # Loopback, also where the host's name leads elsewhere.
    os.environ.update(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    if task.variant == "server":
        return serve_table(task)
    command = [sys.executable, "-m", "peers.torch_rpc", *task.words(), "--variant", "server"]
    port = protocol.free_port()
    with protocol.process(command, stdin=subprocess.PIPE) as server:
        assert server.stdin is not None
        print(port, file=server.stdin, flush=True)
        join("client", 0, port)
        settings = "TensorPipe over loopback TCP; nn.EmbeddingBag called, SGD with a sparse gradient, no autograd"
        versions = {"torch": importlib.metadata.version("torch")}
        protocol.serve(Client(task), protocol.ready_line(task.variant, versions, settings))
        rpc.shutdown()
        server.wait(20)


if __name__ == "__main__":
    main()
