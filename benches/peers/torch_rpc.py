"""torch.distributed.rpc: an nn.EmbeddingBag on the server, rows and gradients as tensors.

The server does what is fastest in PyTorch, without autograd: `index_select` of the module's weight for a pull, `index_add_`
for a step of SGD. Variants that stand beside it: `-module` calls the module and torch.optim.SGD with a sparse gradient, as
the documentation shows it; `-shm` leaves the wire to TensorPipe, which on one machine takes shared memory.
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
def select(keys: torch.Tensor) -> torch.Tensor:
    return embedding.weight.index_select(0, keys)


@torch.no_grad()
def add(keys: torch.Tensor, gradients: torch.Tensor) -> None:
    embedding.weight.index_add_(0, keys, gradients, alpha=-protocol.LEARNING_RATE)


@torch.no_grad()
def forward(keys: torch.Tensor) -> torch.Tensor:
    return embedding(keys.unsqueeze(1))


def step(keys: torch.Tensor, gradients: torch.Tensor) -> None:
    weight = embedding.weight
    weight.grad = torch.sparse_coo_tensor(keys.unsqueeze(0), gradients, weight.shape, check_invariants=False)
    optimizer.step()


class Client:
    def __init__(self, task: protocol.Task) -> None:
        self.read, self.write = (forward, step) if task.variant == "torch-rpc-module" else (select, add)
        self.batches = [torch.from_numpy(keys) for keys in task.batches()]
        self.gradients = torch.from_numpy(task.gradients())
        self.out = torch.empty(task.batch, task.dim)

    def keys(self, batch: int) -> torch.Tensor:
        return self.batches[batch % len(self.batches)]

    def pull(self, batch: int) -> None:
        self.out.copy_(rpc.rpc_sync("server", self.read, (self.keys(batch),)))

    def push(self, batch: int) -> None:
        rpc.rpc_sync("server", self.write, (self.keys(batch), self.gradients))

    def sum(self, batch: int) -> float:
        self.pull(batch)
        return float(self.out.sum(dtype=torch.float64))


def join(name: str, rank: int, port: int, shared_memory: bool) -> None:
    wire = {} if shared_memory else {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=4, **wire)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve_table(task: protocol.Task, shared_memory: bool) -> None:
    """The server's process, until the client shuts down or its own input ends."""
    port = int(sys.stdin.readline())
    # A client that was killed does not shut down, and would leave this process behind.
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    hold(task.rows, task.dim)
    join("server", 1, port, shared_memory)
    rpc.shutdown()


def main() -> None:
    task = protocol.task(("torch-rpc", "torch-rpc-module", "torch-rpc-shm", "server", "server-shm"))
    shared_memory = task.variant.endswith("-shm")
    # Loopback, also where the host's name leads elsewhere.
    os.environ.update(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    if task.variant.startswith("server"):
        return serve_table(task, shared_memory)
    variant = "server-shm" if shared_memory else "server"
    command = [sys.executable, "-m", "peers.torch_rpc", *task.words(), "--variant", variant]
    port = protocol.free_port()
    with protocol.process(command, stdin=subprocess.PIPE) as server:
        assert server.stdin is not None
        print(port, file=server.stdin, flush=True)
        join("client", 0, port, shared_memory)
        wire = "TensorPipe's own choice (shared memory)" if shared_memory else "TensorPipe over loopback TCP"
        how = "nn.EmbeddingBag called, torch.optim.SGD with a sparse gradient"
        if task.variant != "torch-rpc-module":
            how = "index_select and index_add_ of nn.EmbeddingBag's weight; a push is SGD"
        versions = {"torch": importlib.metadata.version("torch")}
        protocol.serve(Client(task), protocol.ready_line(task.variant, versions, f"{wire}; {how}; no autograd"))
        rpc.shutdown()
        server.wait(20)


if __name__ == "__main__":
    main()
