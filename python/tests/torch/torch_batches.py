"""Bags of random keys, and tables that begin like a server's."""

from __future__ import annotations

import hotrow
import torch
from torch import Tensor


def bags(rows: int, count: int, longest: int) -> tuple[Tensor, Tensor]:
    """Bags of up to so many keys, empty ones and repetitions among them: values and offsets."""
    lengths = torch.randint(0, longest + 1, (count,))
    offsets = lengths.cumsum(0) - lengths
    return torch.randint(0, rows, (int(lengths.sum()),)), offsets


def twin(client: hotrow.Client, name: str, **options: object) -> torch.nn.EmbeddingBag:
    """torch's own module, with the rows that the server has now."""
    table = client.table(name)
    module = torch.nn.EmbeddingBag(table.rows, table.dim, **options)
    with torch.no_grad():
        module.weight.copy_(rows_of(client, name))
    return module


def rows_of(client: hotrow.Client, name: str) -> Tensor:
    """All rows of a dense table."""
    return torch.from_numpy(client.pull(name, torch.arange(client.table(name).rows)))
