"""The stand-ins for TorchRec's collections: many tables, one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import hotrow
import torch
from torch import Tensor
from torch.nn import functional

from .bag import pool
from .config import Table
from .features import Bags, bags_by_feature, check_weighted, is_keyed_jagged
from .module import TableModule

#: {feature: keys}, {feature: (keys, offsets)}, {feature: (keys, offsets, weights)}, or a KeyedJaggedTensor.
Features = Any


class _Collection(TableModule):
    """Tables, and the features that look things up in them."""

    def __init__(
        self,
        client: hotrow.Client,
        tables: Sequence[Any],
        *,
        lookahead: int = 0,
        in_flight: int = 8,
        average: float | None = None,
        **spec: Any,
    ) -> None:
        configs = [Table.of(table) for table in tables]
        _check_names(configs)
        super().__init__(client, configs, lookahead=lookahead, in_flight=in_flight, average=average, spec=spec)
        self._configs = configs
        uses = Counter(feature for table in configs for feature in table.feature_names)
        # As TorchRec: a feature of several tables has an output from each.
        self._outputs = {
            table.name: [name if uses[name] == 1 else f"{name}@{table.name}" for name in table.feature_names]
            for table in configs
        }
        self._features = set(uses)

    @property
    def feature_names(self) -> list[str]:
        """The features that forward wants, table by table."""
        return list(dict.fromkeys(feature for table in self._configs for feature in table.feature_names))

    def prefetch(self, features: Features) -> None:
        """Begins to fetch the rows of a later forward, which takes them if it gets the same keys."""
        self._prefetch(self._values(self._bags(features)))

    def _bags(self, features: Features) -> dict[str, Bags]:
        return bags_by_feature(features, self._features)

    def _values(self, bags: Mapping[str, Bags]) -> dict[str, list[Tensor]]:
        """The keys of each table, feature by feature."""
        return {table.name: [bags[feature].values for feature in table.feature_names] for table in self._configs}

    def extra_repr(self) -> str:
        lines = []
        for table in self._configs:
            found = self.tables[table.name]
            words = [repr(table.name), str(table.embedding_dim), str(table.num_embeddings)]
            words += [f"feature_names={table.feature_names}", f"pooling={table.pooling!r}"]
            words += [f"precision={found.precision!r}", f"cache={found.cache!r}"]
            lines.append(f"Table({', '.join(words)})")
        if self.lookahead:
            lines.append(f"lookahead={self.lookahead}")
        # torch puts a single line beside the name, and indents several.
        return "\n".join(lines)


class EmbeddingBagCollection(_Collection):
    """TorchRec's ``EmbeddingBagCollection`` with its tables on hotrow servers. TorchRec need not be installed.

    A forward pulls the rows of all tables with one request to each shard, and its backward pushes with one.

    Args:
        client: from ``hotrow.connect``.
        tables: :class:`hotrow.torch.Table`, or TorchRec's ``EmbeddingBagConfig``.
        lookahead, in_flight, average: as for :class:`hotrow.torch.EmbeddingBag`.
        spec: keywords of ``Client.create_table``, for all tables that do not have their own.

    Example:
        >>> tables = [Table("user", 16, 1000), Table("item", 16, 5000, feature_names=["bought", "viewed"])]
        >>> bags = hotrow.torch.EmbeddingBagCollection(client, tables, optimizer="adagrad", learning_rate=0.1)
        >>> out = bags({
        ...     "user": torch.tensor([7, 8]),                                       # one key per sample
        ...     "bought": (torch.tensor([1, 2, 3]), torch.tensor([0, 2])),          # bags: 1, 2 and 3
        ...     "viewed": (torch.tensor([4]), torch.tensor([0, 0])),                # an empty bag, and 4
        ... })
        >>> {feature: tuple(pooled.shape) for feature, pooled in out.items()}
        {'user': (2, 16), 'bought': (2, 16), 'viewed': (2, 16)}

    From a ``KeyedJaggedTensor`` comes a ``KeyedTensor``. Its weights are used if it has some. A feature that several
    tables use comes out as ``feature@table``.
    """

    def forward(self, features: Features) -> Any:
        """Pools the bags of every feature: {feature: (batch, dim)}, or a KeyedTensor for a KeyedJaggedTensor."""
        bags = self._bags(features)
        for table in self._configs:
            for feature in table.feature_names:
                check_weighted(bags[feature].weights, table.pooling)
        device = next(iter(bags.values())).values.device
        found = self._look_up(self._values(bags), device)
        pooled = {}
        for table in self._configs:
            rows, places = found[table.name].rows, found[table.name].places
            for feature, output, own in zip(table.feature_names, self._outputs[table.name], places):
                pooled[output] = pool(rows, own, bags[feature], table.pooling)
        return _keyed(pooled) if is_keyed_jagged(features) else pooled


class EmbeddingCollection(_Collection):
    """TorchRec's ``EmbeddingCollection`` with its tables on hotrow servers: a row for each key, without pooling.

    Args:
        client, tables, lookahead, in_flight, average, spec: as for :class:`hotrow.torch.EmbeddingBagCollection`.

    Example:
        >>> rows = hotrow.torch.EmbeddingCollection(client, [Table("word", 16, 1000, feature_names=["text"])])
        >>> rows({"text": torch.tensor([4, 4, 2])})["text"].shape
        torch.Size([3, 16])

    Keys in two dimensions give rows in two: (batch, length) becomes (batch, length, dim). From a ``KeyedJaggedTensor``
    come ``JaggedTensor`` s by feature.
    """

    def forward(self, features: Features) -> dict[str, Any]:
        """The rows of every feature: {feature: (keys, dim)}, or JaggedTensors for a KeyedJaggedTensor."""
        bags = self._bags(features)
        device = next(iter(bags.values())).values.device
        found = self._look_up(self._values(bags), device)
        jagged = features.to_dict() if is_keyed_jagged(features) else None
        rows = {}
        for table in self._configs:
            places = found[table.name].places
            for feature, output, own in zip(table.feature_names, self._outputs[table.name], places):
                values = functional.embedding(own, found[table.name].rows)
                if jagged is None:
                    rows[output] = _reshaped(values, features[feature])
                else:
                    rows[output] = _jagged(values, jagged[feature])
        return rows


def _check_names(tables: Sequence[Table]) -> None:
    if not tables:
        raise ValueError("a collection needs at least one table")
    for name, count in Counter(table.name for table in tables).items():
        if count > 1:
            raise ValueError(f"duplicate table name {name!r}: give one table all the features that share it")
    for table in tables:
        if len(set(table.feature_names)) < len(table.feature_names):
            raise ValueError(f"table {table.name!r} names a feature twice: {table.feature_names}")


def _reshaped(rows: Tensor, given: Any) -> Tensor:
    keys = given[0] if isinstance(given, (tuple, list)) else given
    return rows.reshape(*keys.shape, rows.shape[-1])


def _keyed(pooled: Mapping[str, Tensor]) -> Any:
    from torchrec import KeyedTensor

    lengths = [values.shape[1] for values in pooled.values()]
    return KeyedTensor(keys=list(pooled), length_per_key=lengths, values=torch.cat(list(pooled.values()), dim=1))


def _jagged(rows: Tensor, given: Any) -> Any:
    from torchrec import JaggedTensor

    return JaggedTensor(values=rows, lengths=given.lengths())
