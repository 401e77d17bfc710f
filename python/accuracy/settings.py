"""What is the same for all runs on a data set, and where the data are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import criteo

from . import synthetic

REPOSITORY = Path(__file__).resolve().parents[2]
FLIGHTS = REPOSITORY.parent / "shared" / "data" / "flights.tsv.gz"


@dataclass(frozen=True)
class Settings:
    """Learning rates and batch size were chosen by f32's validation part alone; for dim, see the words of the page."""

    learning_rate: float = 0.05
    dense_learning_rate: float = 0.2
    batch_size: int = 256
    optimizer: str = "rowwise_adagrad"
    dim: int = 16
    epochs: int = 1
    # Real tables have thousands of hot rows per partition, these have hundreds in all. With the default of 128
    # partitions a cache of 1 % would be one or two rows in each, and the study would measure that.
    partitions: int = 4
    one_table: bool = False


@dataclass(frozen=True)
class Data:
    """A data set by name: `synthetic`, or a file in Criteo's layout."""

    name: str
    path: Path | None  # None: synthetic
    samples: int | None  # of a file the first so many; of synthetic data that many
    cache_dir: Path | None
    settings: Settings

    def load(self) -> criteo.Clicks:
        if self.path is None:
            return synthetic.load(self.samples or 400_000, self.cache_dir)
        return criteo.load(self.path, self.samples, self.cache_dir)

    def fingerprint(self) -> dict[str, Any]:
        """What a result belongs to: results with another one must not be mixed with it."""
        return {**asdict(self.settings), "samples": self.samples}


def from_file(path: Path, limit: int | None, cache_dir: Path | None) -> Data:
    return Data(path.name.split(".")[0], path, limit, cache_dir, Settings(one_table=True))


def separate_tables(data: Data) -> Data:
    """A table for each column, as DLRM has them. At dim 64 more of them are large enough to be rounded at all."""
    return replace(data, name=f"{data.name}-tables", settings=replace(data.settings, dim=64, one_table=False))


def made_up(samples: int, cache_dir: Path | None) -> Data:
    return Data("synthetic", None, samples, cache_dir, Settings())
