"""Fetching ahead: what is fetched is what forward uses, in order, and no older than promised."""

from __future__ import annotations

from typing import Any

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBag, EmbeddingBagCollection, Table, lookahead
from torch import Tensor

SPEC: dict[str, Any] = {"precision": "f32", "optimizer": "sgd", "learning_rate": 1.0, "initializer": "zeros"}
ROW = torch.tensor([[7]])


def arrive(module: EmbeddingBag) -> None:
    """Waits for what was prefetched: a pull that is still under way may see later pushes, or not."""
    for prefetch in module._prefetched._queue:
        prefetch.future.result()


def step(module: EmbeddingBag, keys: Tensor) -> float:
    """Moves each key's row down by 1, and says where it was."""
    arrive(module)
    out = module(keys)
    out.sum().backward()
    return out[0, 0].item()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_rows_miss_as_many_pushes_as_promised(client: hotrow.Client, name: str, depth: int) -> None:
    """The row counts the pushes that its pull has seen: `depth` less than there have been."""
    module = EmbeddingBag(client, name, 10, 4, lookahead=depth, **SPEC)
    seen = [-step(module, batch) for batch in lookahead([ROW] * 10, module)]
    assert seen == [max(0, number - depth) for number in range(10)]
    assert client.pull(name, [7])[0, 0] == -10


def test_depth_0_is_no_lookahead(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, **SPEC)
    assert [-step(module, batch) for batch in lookahead([ROW] * 5, module)] == [0, 1, 2, 3, 4]


def test_no_older_than_promised(client: hotrow.Client, name: str) -> None:
    """Between forward and backward the queue has room for a pull that would miss one push more: it is pulled afresh."""
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, **SPEC)
    out = module(ROW)
    module.prefetch(ROW)
    module.prefetch(ROW)
    arrive(module)
    out.sum().backward()
    assert [step(module, ROW), step(module, ROW)] == [0, -2]


def test_prefetch_by_hand(client: hotrow.Client, name: str) -> None:
    tables = [Table(f"{name}a", 4, 10), Table(f"{name}b", 4, 10)]
    module = EmbeddingBagCollection(client, tables, lookahead=2, **SPEC)
    batches = [{table.name: (torch.tensor([n, n + 1]), torch.tensor([0, 1])) for table in tables} for n in range(3)]
    for batch in batches:
        module.prefetch(batch)
    with pytest.raises(RuntimeError, match="3 batches are prefetched.*lookahead=2"):
        module.prefetch(batches[0])
    for batch in batches:
        sum(out.sum() for out in module(batch).values()).backward()
    module.flush()
    assert client.pull(f"{name}b", range(5))[:, 0].tolist() == [-1, -2, -2, -1, 0]


def test_nothing_prefetched_is_pulled_at_once(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, **SPEC)
    assert [step(module, ROW) for _ in range(3)] == [0, -1, -2]


def test_without_lookahead_prefetch_says_what_to_set(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4)
    with pytest.raises(RuntimeError, match="lookahead=1 or more"):
        module.prefetch(ROW)
    with pytest.raises(ValueError, match="between 0 and the module's lookahead=0, but got 1"):
        lookahead([ROW], module, depth=1)


def test_another_batch_is_refused(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, **SPEC)
    module.prefetch(ROW)
    with pytest.raises(RuntimeError, match="another batch than the one that was prefetched"):
        module(ROW + 1)
    assert step(module, ROW + 1) == 0


def test_evaluation_in_between(client: hotrow.Client, name: str) -> None:
    """Eval mode and no_grad pull afresh, whatever the keys, and leave alone what was fetched."""
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, **SPEC)
    seen = []
    for batch in lookahead([ROW] * 4, module):
        seen.append(step(module, batch))
        now = -float(len(seen))
        assert module.eval()(torch.tensor([[7], [1]]))[:, 0].tolist() == [now, 0]
        with torch.no_grad():
            assert module.train()(ROW)[0, 0] == now
    assert seen == [0, 0, -1, -2]


def test_leaving_the_loop_early(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, lookahead=2, **SPEC)
    for batch in lookahead([ROW] * 5, module):
        step(module, batch)
        break
    assert len(module._prefetched) == 0
    assert step(module, ROW + 1) == 0


def test_features_of_a_batch(client: hotrow.Client, name: str) -> None:
    """A tuple is forward's arguments; padding is no part of what is compared or fetched."""
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, padding_idx=0, **SPEC)
    batches = [{"keys": torch.tensor([n, 0, n]), "offsets": torch.tensor([0, 1]), "label": n} for n in range(1, 5)]
    labels = []
    for batch in lookahead(batches, module, features=lambda batch: (batch["keys"], batch["offsets"])):
        assert len(module._prefetched) > 0
        module(batch["keys"], batch["offsets"]).sum().backward()
        labels.append(batch["label"])
    assert labels == [1, 2, 3, 4]
    module.flush()
    assert client.pull(name, range(6))[:, 0].tolist() == [0, -2, -2, -2, -2, 0]
