"""PyTorch modules whose tables are on hotrow servers.

They stand in for :class:`torch.nn.EmbeddingBag` and for TorchRec's ``EmbeddingBagCollection`` and
``EmbeddingCollection``: the same inputs, the same outputs, the same gradients. Only the table is elsewhere.

    >>> import hotrow, hotrow.torch, torch
    >>> client = hotrow.connect("127.0.0.1:7700")
    >>> items = hotrow.torch.EmbeddingBag(client, "item", 1_000_000, 64, optimizer="adagrad", learning_rate=0.05)
    >>> top = torch.nn.Linear(64, 1)
    >>> dense = torch.optim.SGD(top.parameters(), lr=0.1)
    >>> loss = top(items(torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2]))).sum()    # forward pulls
    >>> loss.backward()                                                              # backward pushes: rows are stepped
    >>> dense.step()

What is different from a table in the model:

- **The push is the step.** ``backward()`` sends the gradients, and the servers step the rows with the table's own
  optimizer. There is no ``optimizer.step()`` for tables, and gradients do not accumulate: two backwards are two steps.
  Learning rates are in ``module.fused_optimizer``, for torch's schedulers. Clip with the table's ``clip_norm``.
- **Loss scaling does not fit.** ``GradScaler`` undoes its scale in ``optimizer.step()``, after the push. Train with
  bfloat16 autocast, which needs no scaler. Rows and their gradients are float32 in any case.
- **eval() and no_grad() read only.** A forward in eval mode does not record anything, so nothing is pushed. That is
  how a table is frozen, too.
- **Staleness is 0 by default.** A forward sees every push of its own module. ``lookahead=k`` lets rows be fetched
  while earlier batches compute; they may then miss the last k pushes. See :func:`lookahead`.
- **state_dict() has a reference, not the table**: names, addresses and the step number. Save the tables themselves
  with ``client.save_checkpoint()`` after ``module.flush()``.

With several processes (``torch.distributed``, ``DistributedDataParallel``) every process has its own module of the same
table. DDP does not see the tables: each process pushes its own gradients, multiplied by 1 / world size (``average``).

- With SGD the sum of these pushes is what DDP would have stepped, up to the order of additions.
- With adagrad and adam each process's push is a step of its own, numbered in turn. Both divide by the size of past
  gradients, so the factor cancels: a row that is in the batches of n processes takes n steps of full size. If that is
  too much, lower the learning rate. ``average=1.0`` leaves gradients as they are.
- Processes do not wait for each other: a forward may see another's push of the same step, or miss one of the step
  before. Where that must be exact, call ``torch.distributed.barrier()`` before backward, and ``module.flush()`` and
  another barrier after it.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("hotrow.torch needs PyTorch: pip install 'hotrow[torch]'") from error

from .bag import EmbeddingBag
from .collection import EmbeddingBagCollection, EmbeddingCollection
from .config import Table
from .lookahead import lookahead
from .optimizer import FusedOptimizer

__all__ = ["EmbeddingBag", "EmbeddingBagCollection", "EmbeddingCollection", "FusedOptimizer", "Table", "lookahead"]
