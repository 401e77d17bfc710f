"""The keys and gradients that every system gets, and what its answers must add up to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from peers.protocol import LEARNING_RATE, rows_of

ZIPF = 1.05
BATCHES = 64
SEED = 7


@dataclass(frozen=True)
class Workload:
    """Files in `folder`, in the layout that workers read."""

    rows: int
    dim: int
    batch: int
    folder: Path

    @property
    def words(self) -> list[str]:
        """A worker's arguments."""
        words = ["--rows", self.rows, "--dim", self.dim, "--batch", self.batch]
        return list(map(str, [*words, "--keys", self.folder / "keys", "--gradients", self.folder / "gradients"]))

    @cached_property
    def keys(self) -> npt.NDArray[np.int64]:
        """Batches of unique keys of a Zipf draw. How often a key comes has nothing to do with its number."""
        random = np.random.default_rng(SEED)
        cumulative = np.cumsum(np.arange(1, self.rows + 1, dtype=np.float64) ** -ZIPF)
        key_of_rank = random.permutation(self.rows)

        def batch() -> npt.NDArray[np.int64]:
            drawn = np.empty(0, dtype=np.int64)
            while len(drawn) < self.batch:
                # Below the last sum: a search for the sum itself would find a rank too many.
                targets = np.minimum(random.random(self.batch) * cumulative[-1], np.nextafter(cumulative[-1], 0))
                drawn = np.concatenate([drawn, key_of_rank[np.searchsorted(cumulative, targets, side="right")]])
                _, first = np.unique(drawn, return_index=True)
                drawn = drawn[np.sort(first)]
            return drawn[: self.batch]

        return np.stack([batch() for _ in range(BATCHES)])

    @cached_property
    def gradients(self) -> npt.NDArray[np.float32]:
        """Small numbers, the same for every push."""
        random = np.random.default_rng(SEED + 1)
        return random.uniform(-0.005, 0.005, (self.batch, self.dim)).astype(np.float32)

    def write(self) -> None:
        self.keys.astype("<u8").tofile(self.folder / "keys")
        self.gradients.astype("<f4").tofile(self.folder / "gradients")

    @property
    def numbers(self) -> int:
        """Of a batch."""
        return self.batch * self.dim

    def sum(self, batch: int) -> float:
        """What a pull of it must add up to before anything is pushed."""
        return float(rows_of(self.keys[batch], self.dim).sum(dtype=np.float64))

    def sum_after_push(self, batch: int, effect: str) -> float:
        """And after its first push. A push may be a step of SGD or of row-wise Adagrad, or overwrite."""
        gradients = self.gradients.astype(np.float64)
        if effect == "overwrite":
            return float(gradients.sum())
        if effect == "adagrad":
            gradients /= np.sqrt((gradients**2).mean(axis=1, keepdims=True))
        return self.sum(batch) - LEARNING_RATE * float(gradients.sum())
