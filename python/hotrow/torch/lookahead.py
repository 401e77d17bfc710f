"""Fetching rows of the next batches while this one computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from .module import TableModule

Batch = TypeVar("Batch")


def lookahead(
    batches: Iterable[Batch],
    module: TableModule,
    depth: int | None = None,
    features: Callable[[Batch], Any] = lambda batch: batch,
) -> Iterator[Batch]:
    """Goes through batches, and has the module fetch the rows of the next ones meanwhile.

    Args:
        batches: a DataLoader, or anything else that can be iterated.
        module: a module that was made with ``lookahead=1`` or more.
        depth: how many batches ahead; by default ``module.lookahead``, which is also the most. With 0 nothing is
            fetched ahead, so that one loop serves both.
        features: takes from a batch what ``module.forward`` will get of it; a tuple is its arguments.

    Example:
        >>> bags = hotrow.torch.EmbeddingBagCollection(client, tables, lookahead=1)
        >>> for keys, labels in hotrow.torch.lookahead(loader, bags, features=lambda batch: batch[0]):
        ...     loss = criterion(model(bags(keys)), labels)
        ...     loss.backward()

    The rows of a batch are asked for ``depth`` steps before its forward. So they miss the last ``depth`` pushes of this
    process, and the network has as many steps of time. Every batch has to go through the module's forward, in training
    mode, in order. Evaluation in between is fine: forwards in eval mode, or without grad, leave alone what was fetched.
    Leaving the loop early gives up what was fetched.
    """
    if depth is None:
        depth = module.lookahead
    if not 0 <= depth <= module.lookahead:
        raise ValueError(f"depth has to be between 0 and the module's lookahead={module.lookahead}, but got {depth}")
    return _ahead(batches, module, depth, features) if depth else iter(batches)


def _ahead(
    batches: Iterable[Batch], module: TableModule, depth: int, features: Callable[[Batch], Any]
) -> Iterator[Batch]:
    waiting: deque[Batch] = deque()
    try:
        for batch in batches:
            arguments = features(batch)
            if isinstance(arguments, tuple):
                module.prefetch(*arguments)
            else:
                module.prefetch(arguments)
            waiting.append(batch)
            # One more than depth: the batch that is handed out now has been fetched, too.
            if len(waiting) > depth:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        module._prefetched.clear()
