"""torch.distributed.rpc: an nn.EmbeddingBag on the server, rows and gradients as tensors.

The server does what is fastest in PyTorch without autograd: `index_select` of the module's weight for a pull, `index_add_`
for a step of SGD. `torch-rpc-shm` is the same with TensorPipe's own choice, which on one machine is shared memory: it
cannot leave the machine, and stands beside it for comparison only.
"""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch.distributed import rpc

from . import protocol

embedding: torch.nn.EmbeddingBag  # the server's


def hold(rows: int, dim: int) -> None:
    global embedding
    weight = torch.from_numpy(protocol.table(rows, dim))
    embedding = torch.nn.EmbeddingBag.from_pretrained(weight, freeze=True, mode="sum")


def pull(keys: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return embedding.weight.index_select(0, keys)


def push(keys: torch.Tensor, gradients: torch.Tensor) -> None:
    with torch.no_grad():
        embedding.weight.index_add_(0, keys, gradients, alpha=-protocol.LEARNING_RATE)


class Client:
    def __init__(self, task: protocol.Task) -> None:
        self.batches = [torch.from_numpy(keys) for keys in task.batches()]
        self.gradients = torch.from_numpy(task.gradients())
        self.out = torch.empty(task.batch, task.dim)

    def keys(self, batch: int) -> torch.Tensor:
        return self.batches[batch % len(self.batches)]

    def pull(self, batch: int) -> None:
        self.out.copy_(rpc.rpc_sync("server", pull, (self.keys(batch),)))

    def push(self, batch: int) -> None:
        rpc.rpc_sync("server", push, (self.keys(batch), self.gradients))

    def sum(self, batch: int) -> float:
        self.pull(batch)
        return float(self.out.sum(dtype=torch.float64))


def join(name: str, rank: int, port: int, shared_memory: bool) -> None:
    # A process that is told to end by a signal is in this library's threads, and is killed there.
    wire = {} if shared_memory else {"_transports": ["uv"], "_channels": ["basic"]}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=4, **wire)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def main() -> None:
    task = protocol.task(("torch-rpc", "torch-rpc-shm", "server", "server-shm"))
    shared_memory = task.variant.endswith("-shm")
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if task.variant.startswith("server"):
        port = int(sys.stdin.readline())
        hold(task.rows, task.dim)
        join("server", 1, port, shared_memory)
        rpc.shutdown()  # when the client does so too
        return
    variant = "server-shm" if shared_memory else "server"
    command = [sys.executable, "-m", "peers.torch_rpc", *task.words(), "--variant", variant]
    port = protocol.free_port()
    with protocol.process(command, stdin=subprocess.PIPE) as server:
        assert server.stdin is not None
        print(port, file=server.stdin, flush=True)
        join("client", 0, port, shared_memory)
        wire = "TensorPipe's own choice: shared memory" if shared_memory else "TensorPipe over loopback TCP"
        settings = f"{wire}; index_select and index_add_ of nn.EmbeddingBag's weight, no autograd; a push is SGD"
        protocol.serve(Client(task), protocol.ready_line(task.variant, {"torch": torch.__version__}, settings))
        rpc.shutdown()
        server.wait(20)


if __name__ == "__main__":
    main()
