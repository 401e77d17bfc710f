"""Several processes train one table: as one process with all their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ddp_worker
import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBag
from torch_batches import rows_of, twin

WORLD = 2
KEYS = torch.tensor([[1, 2], [3, 3]])


def test_equals_one_process(server: hotrow.Server, client: hotrow.Client, name: str, tmp_path: Path) -> None:
    """DDP averages the gradients of the layer on top; the pushes of the processes add up to the same average."""
    ddp_worker.make(client, name)
    model = ddp_worker.Model(twin(client, name, mode="mean"))
    start = model.bags.weight.detach().clone()
    torch.multiprocessing.spawn(ddp_worker.run, (WORLD, server.address, name, str(tmp_path)), nprocs=WORLD)
    optimizer = torch.optim.SGD(model.parameters(), lr=ddp_worker.RATE)
    for step in range(ddp_worker.STEPS):
        keys, target = ddp_worker.batch(step, WORLD)
        torch.nn.functional.mse_loss(model(keys), target).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(rows_of(client, name), model.bags.weight.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.load(tmp_path / "top.pt"), dict(model.top.state_dict()), rtol=0, atol=1e-6)
    assert (model.bags.weight.detach() - start).abs().max() > 0.05


class Recording:
    """A client that remembers what was pushed."""

    def __init__(self, client: hotrow.Client) -> None:
        self.client = client
        self.pushed: list[tuple[dict[str, Any], int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def push_many_later(self, tables: dict[str, Any], **options: Any) -> hotrow.Future:
        self.pushed.append((tables, options["step"]))
        return self.client.push_many_later(tables, **options)


@pytest.mark.parametrize("average, factor", [(None, 0.25), (1.0, 1.0), (0.5, 0.5)])
def test_average_and_step_of_a_process(
    client: hotrow.Client, name: str, monkeypatch: pytest.MonkeyPatch, average: float | None, factor: float
) -> None:
    """Process 1 of 4: its pushes are the steps 2, 6, 10 of all, and a quarter as large unless told otherwise."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    recording = Recording(client)
    module = EmbeddingBag(recording, name, 10, 4, average=average, optimizer="adam")
    for _ in range(3):
        module(KEYS).sum().backward()
    assert [step for _, step in recording.pushed] == [2, 6, 10]
    assert module.step == 12
    for tables, _ in recording.pushed:
        keys, gradients = tables[name]
        assert keys.tolist() == [1, 2, 3]
        assert gradients[:, 0].tolist() == [factor, factor, 2 * factor]
