"""Which table a module trains, and how it comes to be on the servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hotrow

POOLINGS = ("sum", "mean", "max")

#: What ``Client.create_table`` takes beside name, dim and rows.
SPEC = (
    "precision", "quantizer", "rounding", "optimizer", "learning_rate", "weight_decay", "clip_norm", "state_precision",
    "initializer", "cache", "policy",
)  # fmt: skip


class Table:
    """A table of a collection, and the features that look things up in it.

    Args:
        name: the table's name on the servers.
        embedding_dim: numbers per row.
        num_embeddings: rows. None: a hashed table, which takes any 64-bit key and grows.
        feature_names: the features that use it; by default one of the table's own name.
        pooling: ``"sum"``, ``"mean"`` or ``"max"``, as ``mode`` of :class:`torch.nn.EmbeddingBag`.
        spec: keywords of ``Client.create_table``: ``precision``, ``optimizer``, ``learning_rate``, ``cache``, ...

    Example:
        >>> Table("item", 64, 1_000_000, feature_names=["bought", "viewed"], pooling="mean", precision="int8")
        Table('item', 64, 1000000, feature_names=['bought', 'viewed'], pooling='mean', precision='int8')

    Collections take TorchRec's ``EmbeddingBagConfig`` and ``EmbeddingConfig`` in its place. Of those, the name, the
    sizes, the features and the pooling are used. How rows are initialized and stored is the server's business: give
    ``initializer=`` and ``precision=`` to the collection.
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        num_embeddings: int | None = None,
        feature_names: Sequence[str] | None = None,
        pooling: str = "sum",
        **spec: Any,
    ) -> None:
        if not name:
            raise ValueError("a table needs a name: it is how the servers know it")
        if pooling not in POOLINGS:
            raise ValueError(f"pooling of table {name!r} has to be one of sum, mean, max, but got {pooling!r}")
        if isinstance(feature_names, str):
            raise TypeError(f"feature_names of table {name!r} has to be a list: write [{feature_names!r}]")
        check_spec(spec)
        self.name = name
        self.embedding_dim = embedding_dim
        self.num_embeddings = num_embeddings
        self.feature_names = list(feature_names) if feature_names else [name]
        self.pooling = pooling
        self.spec = spec

    @classmethod
    def of(cls, config: Any) -> Table:
        """The same, from a Table or from TorchRec's configuration."""
        if isinstance(config, cls):
            return config
        try:
            # PoolingType.MEAN of TorchRec has the value "MEAN"; an EmbeddingConfig has no pooling.
            pooling = getattr(config, "pooling", "sum")
            pooling = str(getattr(pooling, "value", pooling)).lower()
            return cls(config.name, config.embedding_dim, config.num_embeddings, config.feature_names, pooling)
        except AttributeError:
            raise TypeError(
                f"tables have to be hotrow.torch.Table, or TorchRec's EmbeddingBagConfig or EmbeddingConfig, "
                f"but got {type(config).__name__}"
            ) from None

    def open(self, client: hotrow.Client, defaults: dict[str, Any]) -> hotrow.Table:
        """Makes the table, or finds it; returns it as the servers have it."""
        spec = {**defaults, **self.spec}
        if spec:
            found = client.create_table(self.name, self.embedding_dim, self.num_embeddings, **spec)
        else:
            # Nothing was asked for: a table that somebody made with care is taken as it is.
            try:
                found = client.table(self.name)
            except hotrow.Refused as error:
                if error.code != "NOT_FOUND":
                    raise
                found = client.create_table(self.name, self.embedding_dim, self.num_embeddings)
        if (found.dim, found.rows) != (self.embedding_dim, self.num_embeddings):
            raise ValueError(
                f"table {self.name!r} has {shape(found.rows, found.dim)} on the servers, but "
                f"{shape(self.num_embeddings, self.embedding_dim)} were asked for: take those, or another name"
            )
        return found

    def __repr__(self) -> str:
        words = [repr(self.name), str(self.embedding_dim), str(self.num_embeddings)]
        words += [f"feature_names={self.feature_names}", f"pooling={self.pooling!r}"]
        return f"Table({', '.join(words + [f'{name}={value!r}' for name, value in self.spec.items()])})"


def check_spec(spec: dict[str, Any]) -> None:
    """A misspelled keyword is found here, as if the signature had them all."""
    for name in spec:
        if name not in SPEC:
            raise TypeError(f"got an unexpected keyword argument {name!r}: a table's spec has {', '.join(SPEC)}")


def shape(rows: int | None, dim: int) -> str:
    """Says how large a table is."""
    return f"hashed keys of dim {dim}" if rows is None else f"{rows} rows of dim {dim}"
