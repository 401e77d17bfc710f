"""How rows enter torch's graph, and how their gradients leave it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

#: Takes the gradients of all tables, in their order; None where a table had no part in the loss.
Push = Callable[[Sequence["Tensor | None"]], None]


class Rows(torch.autograd.Function):
    """Rows of all tables of one request as one node of the graph.

    It is one node for all tables, so that backward has the gradients of all of them at once, for one push. Everything
    after it, pooling included, is torch's own: so modes, weights and empty bags behave as torch's do.

    ``anchor`` is an empty tensor that requires a gradient. Without an input that does, torch would not record the node.
    It is no Parameter: optimizers and DistributedDataParallel would take hold of it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, push: Push, device: torch.device, *rows: np.ndarray) -> tuple[Tensor, ...]:
        ctx.push = push
        # None, and not zeros, for a table that had no part in the loss: it must not be stepped.
        ctx.set_materialize_grads(False)
        return tuple(torch.from_numpy(array).to(device) for array in rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.push(gradients)
        return (None,) * (3 + len(gradients))
