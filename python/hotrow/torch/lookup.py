"""The keys of one forward, table by table, each key once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import hotrow
import numpy as np
import torch
from torch import Tensor


class Lookup(NamedTuple):
    """Which rows a forward needs, and where each key's row is among them."""

    #: By table: the keys of all its features, in their order.
    keys: dict[str, np.ndarray]
    #: By table: the same without repetitions. A table without keys is here, too.
    unique: dict[str, np.ndarray]
    #: By table: ``unique[inverse] == keys``.
    inverse: dict[str, np.ndarray]

    @classmethod
    def of(cls, keys: dict[str, np.ndarray], tables: Mapping[str, hotrow.Table]) -> Lookup:
        """Removes repetitions, and refuses keys that a table cannot have."""
        unique, inverse = {}, {}
        for name, own in keys.items():
            unique[name], inverse[name] = hotrow.distinct(own)
            check_range(unique[name], tables[name])
        return cls(keys, unique, inverse)

    def is_for(self, keys: dict[str, np.ndarray]) -> bool:
        """Whether this is the lookup of these very keys."""
        same = (np.array_equal(keys[name], own) for name, own in self.keys.items())
        return self.keys.keys() == keys.keys() and all(same)

    def wanted(self) -> dict[str, np.ndarray]:
        """What there is to ask for."""
        return {name: keys for name, keys in self.unique.items() if len(keys)}


def gather(features: Mapping[str, Sequence[Tensor]]) -> dict[str, np.ndarray]:
    """One array of keys per table, from those of its features."""
    # On the host, as all that follows; a GPU's tensors are waited for here.
    return {name: torch.cat(list(values)).detach().cpu().numpy() for name, values in features.items()}


def check_range(unique: np.ndarray, table: hotrow.Table) -> None:
    """As torch: an index out of range is an IndexError, here with the key and the table."""
    if table.rows is None or len(unique) == 0:
        return
    low, high = int(unique.min()), int(unique.max())
    if low < 0 or high >= table.rows:
        raise IndexError(
            f"index {low if low < 0 else high} is out of range for table {table.name!r} with {table.rows} rows "
            f"(num_embeddings=None makes a hashed table, which takes any key)"
        )
