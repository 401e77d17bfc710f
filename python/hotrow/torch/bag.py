"""The stand-in for torch.nn.EmbeddingBag."""

from __future__ import annotations

from typing import Any

import hotrow
from torch import Tensor
from torch.nn import functional

from .config import POOLINGS, Table
from .features import Bags, check_weighted
from .module import TableModule


class EmbeddingBag(TableModule):
    """:class:`torch.nn.EmbeddingBag` with its table on hotrow servers.

    Args:
        client: from ``hotrow.connect``.
        name: the table's name on the servers. It is made if there is none.
        num_embeddings: rows. None: a hashed table, which takes any 64-bit key and grows.
        embedding_dim: numbers per row.
        mode: ``"sum"``, ``"mean"`` or ``"max"``. (torch's default is mean.)
        padding_idx: a key that is left out of its bags, and never pulled or trained.
        include_last_offset: whether ``offsets`` ends with the number of keys.
        lookahead: how many batches may be fetched ahead, see :func:`hotrow.torch.lookahead`; their rows may miss as
            many pushes. 0: a forward sees every push of this module.
        in_flight: how many pushes may be under way, up to 32. Backward waits for the oldest when there are more.
        average: what gradients are multiplied with. None: 1 / world size where ``torch.distributed`` is initialized.
        spec: keywords of ``Client.create_table``: ``precision``, ``optimizer``, ``learning_rate``, ``cache``, ...
            Without any, a table that exists is taken as it is.

    Example:
        >>> client = hotrow.connect("127.0.0.1:7700")
        >>> bag = hotrow.torch.EmbeddingBag(client, "item", 1000, 16, mode="mean", learning_rate=0.1)
        >>> bag
        EmbeddingBag(1000, 16, mode='mean', table='item', precision='int8', cache='5%')
        >>> out = bag(torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 4]))    # two bags: 1, 2, 4, 5 and 4, 3
        >>> out.shape
        torch.Size([2, 16])
        >>> out.sum().backward()     # pushes the gradients of the five rows
        >>> bag.flush()              # they are applied
    """

    def __init__(
        self,
        client: hotrow.Client,
        name: str,
        num_embeddings: int | None,
        embedding_dim: int,
        *,
        mode: str = "sum",
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        lookahead: int = 0,
        in_flight: int = 8,
        average: float | None = None,
        **spec: Any,
    ) -> None:
        if mode not in POOLINGS:
            raise ValueError(f"mode has to be one of sum, mean, max, but got {mode!r}")
        table = Table(name, embedding_dim, num_embeddings, pooling=mode)
        padding_idx = _normalized(padding_idx, num_embeddings)
        super().__init__(client, [table], lookahead=lookahead, in_flight=in_flight, average=average, spec=spec)
        self.name = name
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.mode = mode
        self.padding_idx = padding_idx
        self.include_last_offset = include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Pools bags of rows, as :meth:`torch.nn.EmbeddingBag.forward`: (bags, embedding_dim)."""
        bags = self._bags(input, offsets, per_sample_weights)
        found = self._look_up({self.name: [bags.values]}, bags.values.device)[self.name]
        return pool(found.rows, found.places[0], bags, self.mode)

    def prefetch(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> None:
        """Begins to fetch the rows of a later forward, which takes them if it gets the same keys."""
        self._prefetch({self.name: [self._bags(input, offsets, per_sample_weights).values]})

    def _bags(self, input: Tensor, offsets: Tensor | None, weights: Tensor | None) -> Bags:
        check_weighted(weights, self.mode)
        return Bags.of(
            input, offsets, weights, include_last_offset=self.include_last_offset, padding_idx=self.padding_idx
        )

    def extra_repr(self) -> str:
        table = self.tables[self.name]
        words = [str(self.num_embeddings), str(self.embedding_dim), f"mode={self.mode!r}", f"table={self.name!r}"]
        words += [f"precision={table.precision!r}", f"cache={table.cache!r}"]
        if self.padding_idx is not None:
            words.append(f"padding_idx={self.padding_idx}")
        if self.include_last_offset:
            words.append("include_last_offset=True")
        if self.lookahead:
            words.append(f"lookahead={self.lookahead}")
        return ", ".join(words)


def pool(rows: Tensor, places: Tensor, bags: Bags, mode: str) -> Tensor:
    """Pools by torch's own function, over the rows that were pulled."""
    if bags.offsets is None:
        # The rows themselves, in a fraction of the time, above all backward.
        return rows.index_select(0, places)
    return functional.embedding_bag(places, rows, bags.offsets, mode=mode, per_sample_weights=bags.weights)


def _normalized(padding_idx: int | None, rows: int | None) -> int | None:
    """As torch: a negative index counts from the end. A hashed table has no end; there it is a key."""
    if padding_idx is None or rows is None:
        return padding_idx
    if not -rows <= padding_idx < rows:
        raise ValueError(f"padding_idx must be within num_embeddings={rows}, but got {padding_idx}")
    return padding_idx % rows
