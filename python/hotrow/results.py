"""What calls answer with."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Table:
    """A table: how it was described, everything filled in, and what it costs."""

    name: str
    #: Numbers in a row.
    dim: int
    #: Rows of a dense table; None for a hashed one.
    rows: int | None
    precision: str
    quantizer: str
    rounding: str
    optimizer: str
    learning_rate: float
    weight_decay: float
    clip_norm: float | None
    state_precision: str
    initializer: str
    cache: str
    policy: str
    #: Bytes of a stored row, everything counted.
    row_bytes: float
    #: Bytes of a cached row.
    cache_slot_bytes: float
    #: Bytes of the whole cache.
    cache_bytes: float
    #: Bytes per row, a dense table's cache shared out over its rows.
    bytes_per_row: float
    #: Bytes of the whole table; None for a hashed one, which grows.
    total_bytes: float | None

    @staticmethod
    def _from_json(text: str) -> Table:
        spec, footprint = json.loads(text)
        return Table(**{"rows": None, "clip_norm": None, **spec, **footprint})


@dataclass(frozen=True)
class HitPoint:
    """The hit rate with a cache of another size."""

    #: A multiple of the cache that the table has; of one row in each partition, where it has none.
    size: float
    rows: int
    hit_rate: float


@dataclass(frozen=True)
class HitCurve:
    """The hit rate of an lru cache by its size, for recent pushes and touches."""

    #: Keys as sent that it stands for, recent ones counting more; 0 before the first push.
    references: float
    #: Keys that are followed.
    sampled_keys: int
    #: The share of all keys that is followed.
    sampling_rate: float
    #: From small caches to large ones.
    points: list[HitPoint]


@dataclass(frozen=True)
class TableStats:
    """Counts and sizes of a table, over all shards."""

    table: str
    #: All of a dense table, the keys present in a hashed one.
    rows: int
    #: Rows of which a stored form exists.
    stored_rows: int
    cached_rows: int
    #: Rows that fit in the cache.
    cache_slots: int
    row_bytes: int
    cache_bytes: int
    directory_bytes: int
    pull_hits: int
    pull_misses: int
    push_hits: int
    push_misses: int
    touch_hits: int
    touch_misses: int
    #: Rows that pushes stepped.
    updated_rows: int
    #: Rows that were stepped in place because the cache had no way for them.
    conflicts: int
    clean_evictions: int
    #: Rows that were rounded into the row store, conflicts included.
    write_backs: int
    #: The root of the mean squared rounding error of a weight; None before the first rounding.
    rounding_rms: float | None
    #: Which row gives way to a new one: lru or lfu.
    policy: str
    #: What the hit rate would be with a cache of another size; None for an f32 table, which has no cache.
    curve: HitCurve | None

    @property
    def memory(self) -> int:
        """Bytes: rows, cache and directory."""
        return self.row_bytes + self.cache_bytes + self.directory_bytes

    @property
    def pull_hit_rate(self) -> float | None:
        """The share of pulled keys that were in the cache; None before the first pull."""
        return _share(self.pull_hits, self.pull_hits + self.pull_misses)

    @property
    def push_hit_rate(self) -> float | None:
        """The share of pushed keys that were in the cache; None before the first push."""
        return _share(self.push_hits, self.push_hits + self.push_misses)

    @property
    def write_backs_per_update(self) -> float | None:
        """Roundings per step of a row, which is what the rounding noise follows; None before the first push."""
        return _share(self.write_backs, self.updated_rows)


@dataclass(frozen=True)
class ShardStats:
    """One shard."""

    shard: int
    #: Bytes that tables have taken.
    memory_used: int
    #: Bytes that they may take; 0 is no limit.
    memory_budget: int
    #: The place of the last change.
    last_lsn: int
    #: Clients whose pushes are remembered.
    open_clients: int


@dataclass(frozen=True)
class Stats:
    """Counts and sizes of a cluster."""

    tables: dict[str, TableStats]
    shards: list[ShardStats]

    @property
    def memory_used(self) -> int:
        """Bytes that tables have taken on all shards."""
        return sum(shard.memory_used for shard in self.shards)

    @staticmethod
    def _from_json(text: str) -> Stats:
        stats = json.loads(text)
        for table in stats["tables"].values():
            if table["curve"] is not None:
                points = [_known(HitPoint, point) for point in table["curve"]["points"]]
                table["curve"] = _known(HitCurve, {**table["curve"], "points": points})
        tables = {name: _known(TableStats, table) for name, table in stats["tables"].items()}
        return Stats(tables, [_known(ShardStats, shard) for shard in stats["shards"]])


@dataclass(frozen=True, eq=False)
class Row:
    """Everything about one row."""

    weights: npt.NDArray[np.float32]
    #: Its optimizer state, tensor after tensor.
    state: npt.NDArray[np.float32]
    cached: bool
    #: Whether the cached row differs from the stored one.
    dirty: bool
    #: Whether a low-precision form of it was ever stored.
    stored: bool


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is complete."""

    sequence: int
    #: Bytes that were written.
    bytes: int
    label: str


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _known(cls: Any, values: dict[str, Any]) -> Any:
    return cls(**{field.name: values[field.name] for field in fields(cls)})
