"""One of several processes that train a model together, in a file that spawned processes can import."""

from __future__ import annotations

import hotrow
import torch
import torch.distributed as dist
from hotrow.torch import EmbeddingBag
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

ROWS, DIM, BAGS, STEPS, RATE = 40, 8, 4, 15, 0.5


class Model(torch.nn.Module):
    """Bags, and a layer on top."""

    def __init__(self, bags: torch.nn.Module) -> None:
        super().__init__()
        self.bags = bags
        torch.manual_seed(3)
        self.top = torch.nn.Linear(DIM, 1)

    def forward(self, keys: Tensor) -> Tensor:
        return self.top(self.bags(keys))


def batch(step: int, world: int) -> tuple[Tensor, Tensor]:
    """The joint batch of all processes. Its keys are few: processes meet in the same rows."""
    generator = torch.Generator().manual_seed(step)
    keys = torch.randint(0, ROWS, (world * BAGS, 3), generator=generator)
    return keys, torch.randn(world * BAGS, 1, generator=generator)


def make(client: hotrow.Client, name: str) -> EmbeddingBag:
    return EmbeddingBag(
        client, name, ROWS, DIM, mode="mean", precision="f32", initializer="uniform:-0.5,0.5", optimizer="sgd",
        learning_rate=RATE,
    )  # fmt: skip


def run(rank: int, world: int, address: str, name: str, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    client = hotrow.connect(address)
    bags = make(client, name)
    model = DistributedDataParallel(Model(bags))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step in range(STEPS):
        keys, target = (whole[rank * BAGS : (rank + 1) * BAGS] for whole in batch(step, world))
        loss = torch.nn.functional.mse_loss(model(keys), target)
        # For an exact comparison: nobody pushes before everybody has pulled,
        dist.barrier()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # and nobody pulls before everybody's push is applied.
        bags.flush()
        dist.barrier()
    assert bags.step == STEPS * world
    model.eval()
    assert not model.module.bags(keys).requires_grad
    if rank == 0:
        torch.save(model.module.top.state_dict(), f"{folder}/top.pt")
    client.close()
    dist.destroy_process_group()
