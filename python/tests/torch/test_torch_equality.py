"""Training through hotrow.torch.EmbeddingBag is training through torch.nn.EmbeddingBag."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBag
from torch import Tensor
from torch_batches import bags, rows_of, twin

ROWS, DIM, STEPS = 50, 8, 100

#: Each gives the arguments of forward: values, offsets, weights.
Batch = Callable[[int], "tuple[Tensor, Tensor | None, Tensor | None]"]


def jagged(step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    # One batch has bags and no key at all: torch takes a step there, which Adam counts.
    return (*bags(ROWS, 12, 0 if step == 3 else 5), None)


def with_last(step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    values, offsets, _ = jagged(step)
    return values, torch.cat([offsets, torch.tensor([len(values)])]), None


def rectangular(step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return torch.randint(0, ROWS, (10, 4), dtype=torch.int32 if step % 2 else torch.int64), None, None


def weighted(step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    values, offsets, _ = jagged(step)
    return values, offsets, torch.rand(len(values))


def weighted_rectangular(step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
    return torch.randint(0, ROWS, (10, 4)), None, torch.rand(10, 4)


PADDED = {"padding_idx": 4}
CASES = {
    "sum": ("sum", {}, jagged),
    "mean": ("mean", {}, jagged),
    "max": ("max", {}, jagged),
    "sum, last offset": ("sum", {"include_last_offset": True}, with_last),
    "mean, last offset": ("mean", {"include_last_offset": True}, with_last),
    "sum, padded": ("sum", PADDED, jagged),
    "mean, padded": ("mean", PADDED, jagged),
    "max, padded": ("max", PADDED, jagged),
    "mean, padded from the end": ("mean", {"padding_idx": -1}, jagged),
    "sum, rectangular": ("sum", {}, rectangular),
    "mean, rectangular, padded": ("mean", PADDED, rectangular),
    "weighted": ("sum", {}, weighted),
    "weighted, padded": ("sum", PADDED, weighted),
    "weighted, rectangular": ("sum", {}, weighted_rectangular),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.5),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    "adam": lambda weights: torch.optim.SparseAdam(weights, lr=0.01),
}
RATES = {"sgd": 0.5, "adagrad": 0.05, "adam": 0.01}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", CASES)
def test_equals_torch(client: hotrow.Client, name: str, case: str, optimizer: str) -> None:
    mode, options, batch = CASES[case]
    if mode == "max" and optimizer == "adam":
        pytest.skip("torch has no sparse gradient for max, and Adam with a dense one moves every row")
    ours = EmbeddingBag(
        client, name, ROWS, DIM, mode=mode, precision="f32", initializer="uniform:-0.5,0.5",
        optimizer=optimizer, learning_rate=RATES[optimizer], **options,
    )  # fmt: skip
    theirs = twin(client, name, mode=mode, sparse=mode != "max", **options)
    start = theirs.weight.detach().clone()
    stepper = OPTIMIZERS[optimizer](theirs.parameters())
    head = torch.randn(DIM, 3)
    for step in range(STEPS):
        values, offsets, weights = batch(step)
        target = torch.randn(10 if offsets is None else 12, 3)
        gradients = []
        for module in (ours, theirs):
            own = None if weights is None else weights.clone().requires_grad_()
            out = module(values, offsets, own)
            torch.nn.functional.mse_loss(torch.tanh(out @ head), target).backward()
            gradients.append(None if own is None else own.grad)
        stepper.step()
        stepper.zero_grad()
        if weights is not None:
            torch.testing.assert_close(*gradients, rtol=0, atol=1e-6)
    ours.flush()
    torch.testing.assert_close(rows_of(client, name), theirs.weight.detach(), rtol=0, atol=1e-6)
    # The comparison would pass as well if nobody had learned anything.
    assert (theirs.weight.detach() - start).abs().max() > 0.05
    if "padding_idx" in options:
        assert torch.equal(rows_of(client, name)[options["padding_idx"]], start[options["padding_idx"]])


def test_padding_is_not_pushed(client: hotrow.Client, name: str) -> None:
    """Not even a gradient of zero, which would decay the row, and count for Adam."""
    module = EmbeddingBag(
        client, name, ROWS, DIM, padding_idx=4, precision="f32", optimizer="sgd", learning_rate=0.1, weight_decay=0.5,
        initializer="constant:1",
    )  # fmt: skip
    module(torch.tensor([[4, 5], [4, 4]])).sum().backward()
    module.flush()
    assert client.stats().tables[name].updated_rows == 1
    assert (client.pull(name, [4]) == 1).all()
    assert (client.pull(name, [5]) != 1).all()


def test_staleness_is_zero(client: hotrow.Client, name: str) -> None:
    """Every forward sees the push of the step before: one missed push, and the row is elsewhere."""
    module = EmbeddingBag(
        client, name, 10, DIM, precision="f32", optimizer="sgd", learning_rate=0.125, initializer="uniform:-0.5,0.5"
    )
    # A power of two: rate times gradient is exact, so that nothing depends on how a processor rounds the difference.
    weight = torch.from_numpy(client.pull(name, [7])).requires_grad_()
    stepper = torch.optim.SGD([weight], lr=0.125)
    for _ in range(50):
        out = module(torch.tensor([[7]]))
        assert torch.equal(out.detach(), weight.detach())
        (out**2 / 2).sum().backward()
        (weight**2 / 2).sum().backward()
        stepper.step()
        stepper.zero_grad()


def test_hashed_table(client: hotrow.Client, name: str) -> None:
    """Any 64-bit key, negative ones as they are bit for bit."""
    module = EmbeddingBag(
        client, name, None, DIM, precision="f32", optimizer="sgd", learning_rate=1.0, initializer="uniform:-0.5,0.5"
    )
    keys = torch.tensor([-1, 2**62, 0, -(2**63), -1])
    before = torch.from_numpy(client.pull(name, keys))
    out = module(keys, torch.tensor([0, 2]))
    torch.testing.assert_close(out.detach(), torch.stack([before[:2].sum(0), before[2:].sum(0)]))
    out.sum().backward()
    module.flush()
    moved = before - torch.from_numpy(client.pull(name, keys))
    torch.testing.assert_close(moved[:, 0], torch.tensor([2.0, 1.0, 1.0, 1.0, 2.0]))
    assert set(client.keys(name).astype("int64").tolist()) == {-1, 2**62, 0, -(2**63)}


def test_a_table_without_a_part_in_the_loss_is_not_stepped(client: hotrow.Client, name: str) -> None:
    tables = [hotrow.torch.Table(f"{name}a", DIM, 10), hotrow.torch.Table(f"{name}b", DIM, 10)]
    module = hotrow.torch.EmbeddingBagCollection(client, tables, optimizer="sgd", learning_rate=0.1)
    out = module({table.name: torch.tensor([1, 2]) for table in tables})
    out[f"{name}a"].sum().backward()
    module.flush()
    stats = client.stats().tables
    assert stats[f"{name}a"].updated_rows == 2
    assert stats[f"{name}b"].updated_rows == 0
