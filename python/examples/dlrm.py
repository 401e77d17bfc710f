#!/usr/bin/env python3
"""Trains DLRM on click logs with its embedding tables on a hotrow server.

The model is that of facebookresearch/dlrm: a bottom MLP over 13 integers, one embedding per categorical column, the dot
products of all pairs, and a top MLP. The MLPs are here, in PyTorch; the tables are on the server, at low precision with
a cache of full-precision hot rows, and the server steps their optimizer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterable, Iterator

import numpy as np
import torch
from torch import nn

import criteo
import metrics
from model import DLRM

# Dense tables below this size at f32 always stay f32 on the server: rounding them would save nothing worth having.
SMALL_BYTES = 1 << 20

EXAMPLES = """\
examples:
  # A server in this process, int8 rows with a 5 % cache, row-wise Adagrad:
  python dlrm.py --data train.txt.gz --limit 1000000

  # The same in full precision, to compare with (same seed: same split, same order, same initial values):
  python dlrm.py --data train.txt.gz --limit 1000000 --precision f32

  # A quarter of the memory again:
  python dlrm.py --data train.txt.gz --dim 64 --precision int4 --cache 1%

  # Against a server that runs already (`hotrow serve`), fetching rows for 2 batches ahead:
  python dlrm.py --data train.txt.gz --endpoint 127.0.0.1:7700 --lookahead 2

  # How much do the large tables matter at all? Train everything but them:
  python dlrm.py --data train.txt.gz --freeze-large

The data are in the layout of Criteo-Kaggle's train.txt: label, 13 integers, 26 categoricals in hex, tab separated;
fields may be empty. What was parsed is kept in --cache-dir, so that only the first start is slow.
"""


@dataclass(frozen=True)
class Options:
    """All that decides a result, apart from the data."""

    optimizer: str = "rowwise_adagrad"
    learning_rate: float = 0.02
    dense_learning_rate: float = 0.1
    precision: str = "int8"
    cache: str = "5%"
    rounding: str = "stochastic"
    policy: str | None = None  # None: lru for int8, lfu for int4 and int2
    quantizer: str | None = None  # None: symmetric for int8, affine for int4 and int2
    state_precision: str = "f32"
    seed: int = 0
    batch_size: int = 128
    epochs: int = 1
    dim: int = 16
    lookahead: int = 0
    freeze_large: bool = False
    hashed: bool = False
    one_table: bool = False


#: The name of the table of --one-table.
ALL_COLUMNS = "columns"


def tables_of(clicks: criteo.Clicks, options: Options) -> list[tuple[str, int, list[str]]]:
    """Name, rows and columns of each table."""
    if options.one_table:
        return [(ALL_COLUMNS, sum(clicks.cardinalities), clicks.names)]
    return [(name, rows, [name]) for name, rows in zip(clicks.names, clicks.cardinalities)]


def is_large(rows: int, dim: int) -> bool:
    """Whether a table is stored at the precision it asks for."""
    return rows * dim * 4 >= SMALL_BYTES


def build(client, clicks: criteo.Clicks, options: Options, caches: dict[str, str] | None = None) -> DLRM:
    """Makes the tables on the server and the model around them. `caches` has tables with a cache of their own size."""
    import hotrow.torch  # here, so that --help and the study's report need no client

    spec = {
        key: getattr(options, key)
        for key in ("precision", "rounding", "policy", "optimizer", "learning_rate", "quantizer", "state_precision")
    }
    if options.precision in ("f32", "f16", "bf16"):
        spec["quantizer"] = None

    def collection(wanted: list[tuple[str, int, list[str]]]) -> nn.Module | None:
        tables = []
        for name, rows, columns in wanted:
            cache, initializer = (caches or {}).get(name, options.cache), "dlrm"
            if options.hashed:
                # A hashed table has no size of its own to take a share of; it gets what the dense one would.
                bound = rows**-0.5
                initializer = f"uniform:{-bound},{bound}"
                if cache.endswith("%"):
                    cache = f"{round(rows * float(cache[:-1]) / 100)}rows"
            size = None if options.hashed else rows
            tables.append(hotrow.torch.Table(name, options.dim, size, columns, cache=cache, initializer=initializer))
        if not tables:
            return None
        return hotrow.torch.EmbeddingBagCollection(client, tables, lookahead=options.lookahead, **spec)

    tables = tables_of(clicks, options)
    frozen = [table for table in tables if options.freeze_large and is_large(table[1], options.dim)]
    torch.manual_seed(options.seed)
    return DLRM(collection([table for table in tables if table not in frozen]), collection(frozen), clicks.names, options.dim)


#: Labels, integers, {column: keys}.
Batch = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


class Batches:
    """Samples in a given order, cut into batches."""

    def __init__(self, clicks: criteo.Clicks, order: np.ndarray, size: int, options: Options) -> None:
        self.size, self.names = size, clicks.names
        self.labels = torch.from_numpy(clicks.labels[order])
        self.integers = torch.from_numpy(clicks.integers[order])
        columns = []
        for column in range(len(clicks.names)):  # column by column: a batch's keys of a column are then one slice
            ids = clicks.ids[order, column]
            if options.one_table:
                ids = ids + sum(clicks.cardinalities[:column])
            elif options.hashed and clicks.vocabulary:
                ids = clicks.vocabulary[column][ids].astype(np.int64)
            columns.append(ids)
        self.columns = [torch.from_numpy(np.ascontiguousarray(ids)) for ids in columns]

    def __len__(self) -> int:
        return -(-len(self.labels) // self.size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.labels), self.size):
            part = slice(start, start + self.size)
            yield self.labels[part], self.integers[part], {n: ids[part] for n, ids in zip(self.names, self.columns)}


class Progress:
    """One line on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.start, self.shown = total, 0, time.monotonic(), 0.0
        self.wanted = sys.stderr.isatty()

    def step(self, loss: torch.Tensor) -> None:
        self.done += 1
        now = time.monotonic()
        if self.wanted and (now - self.shown > 0.2 or self.done == self.total):
            self.shown = now
            left = (now - self.start) / self.done * (self.total - self.done)
            bar = "#" * (30 * self.done // self.total)
            end = "\n" if self.done == self.total else ""
            print(
                f"\r[{bar:<30}] {self.done}/{self.total} batches, loss {loss.item():.4f}, {left:.0f} s left   ",
                end=end,
                file=sys.stderr,
                flush=True,
            )


def train(model: DLRM, clicks: criteo.Clicks, order: np.ndarray, options: Options) -> None:
    """`epochs` passes over the samples in `order`. Plain SGD for the MLPs, as in DLRM; the server steps the tables."""
    import hotrow.torch

    dense = [parameter for part in (model.bottom, model.top) for parameter in part.parameters()]
    optimizer = torch.optim.SGD(dense, lr=options.dense_learning_rate)
    loss_of = nn.BCEWithLogitsLoss()
    batches = Batches(clicks, order, options.batch_size, options)
    ahead: Iterable[Batch] = batches
    progress = Progress(len(batches) * options.epochs)
    model.train()
    for _ in range(options.epochs):
        if model.trained is not None:
            # With a lookahead of 0 this hands out the batches as they are.
            names = model.trained.feature_names
            ahead = hotrow.torch.lookahead(batches, model.trained, features=lambda b: {name: b[2][name] for name in names})
        for labels, integers, features in ahead:
            loss = loss_of(model(integers, features), labels)
            if not torch.isfinite(loss):
                raise FloatingPointError(f"the loss is {loss.item()} after {progress.done} batches: lower the learning rates")
            optimizer.zero_grad()
            loss.backward()  # pushes the gradients of the tables, too
            optimizer.step()
            progress.step(loss)
    if model.trained is not None:
        model.trained.flush()


def predict(model: DLRM, clicks: criteo.Clicks, order: np.ndarray, options: Options) -> np.ndarray:
    """Logits of the samples in `order`."""
    model.eval()
    with torch.no_grad():
        return torch.cat(
            [model(integers, features) for _, integers, features in Batches(clicks, order, 4096, options)]
        ).numpy()


def f32_bytes(rows: int, dim: int, optimizer: str) -> float:
    """What a table takes in full precision without a cache: its numbers, and a bit per row for "was ever stored"."""
    state = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": dim, "adam": 2 * dim}[optimizer]
    return rows * (4 * dim + 4 * state) + rows / 8


def measure(client, clicks: criteo.Clicks, options: Options) -> dict[str, float | None]:
    """Cache and memory figures from the server. Called before predicting, so that only training counts."""
    stats = client.stats().tables
    ours = {
        name: (stats[name], is_large(rows, options.dim) or options.hashed)
        for name, rows, _ in tables_of(clicks, options)
    }
    large = [table for table, is_big in ours.values() if is_big]
    hits, misses = sum(table.pull_hits for table in large), sum(table.pull_misses for table in large)
    updates, write_backs = sum(table.updated_rows for table in large), sum(table.write_backs for table in large)
    full = {name: f32_bytes(table.rows, options.dim, options.optimizer) for name, (table, _) in ours.items()}
    return {
        "hit_rate": hits / (hits + misses) if hits + misses else None,
        "write_backs_per_update": write_backs / updates if updates else None,
        "bytes": float(sum(table.memory for table, _ in ours.values())),
        "f32_bytes": sum(full.values()),
        "large_bytes": float(sum(table.memory for table in large)),
        "large_f32_bytes": sum(size for name, size in full.items() if ours[name][1]),
    }


def run(
    client, clicks: criteo.Clicks, options: Options, caches: dict[str, str] | None = None
) -> dict[str, float | None]:
    """Trains and tests once."""
    parts = criteo.split(len(clicks), options.seed)
    model = build(client, clicks, options, caches)
    start = time.monotonic()
    train(model, clicks, parts.train, options)
    result: dict[str, float | None] = {"seconds": time.monotonic() - start}
    result |= measure(client, clicks, options)
    for prefix, order in (("", parts.test), ("validation_", parts.validation)):
        labels, logits = clicks.labels[order], predict(model, clicks, order, options)
        result[f"{prefix}auc"] = metrics.auc(labels, logits)
        result[f"{prefix}log_loss"] = metrics.log_loss(labels, logits)
        result[f"{prefix}accuracy"] = metrics.accuracy(labels, logits)
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Options()
    where = parser.add_argument_group("data and server")
    where.add_argument("--data", type=Path, required=True, metavar="FILE", help="click logs, plain or .gz")
    where.add_argument("--limit", type=int, metavar="N", help="only the first N lines")
    where.add_argument(
        "--cache-dir",
        type=Path,
        default=criteo.default_cache_dir(),
        metavar="DIR",
        help="where parsed data are kept (default: %(default)s)",
    )
    where.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help="a running server; its tables must be new (default: one in this process)",
    )
    where.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    tables = parser.add_argument_group("tables")
    tables.add_argument(
        "--precision",
        choices=["f32", "f16", "bf16", "int8", "int4", "int2"],
        default=default.precision,
        help="how rows are stored; tables under 1 MiB stay f32 (default: %(default)s)",
    )
    tables.add_argument(
        "--cache", default=default.cache, metavar="SIZE", help="hot rows: 5%%, 100000rows or 2GiB (default: 5%%)"
    )
    tables.add_argument(
        "--policy", choices=["lru", "lfu"], help="which rows stay hot (default: lfu for int4 and int2, else lru)"
    )
    tables.add_argument(
        "--rounding", choices=["stochastic", "nearest"], default=default.rounding, help="(default: %(default)s)"
    )
    tables.add_argument(
        "--quantizer", choices=["symmetric", "affine"], help="(default: symmetric for int8, affine below)"
    )
    tables.add_argument(
        "--optimizer",
        choices=["sgd", "rowwise_adagrad", "adagrad", "adam"],
        default=default.optimizer,
        help="of the tables (default: %(default)s)",
    )
    tables.add_argument(
        "--state-precision",
        choices=["f32", "bf16"],
        default=default.state_precision,
        help="of the optimizer's state (default: %(default)s)",
    )
    tables.add_argument("--dim", type=int, default=default.dim, help="(default: %(default)s)")
    tables.add_argument(
        "--hashed", action="store_true", help="tables that take any 64-bit key, instead of ids from 0 to n-1"
    )
    tables.add_argument(
        "--one-table",
        action="store_true",
        help="one table for all columns, so that small columns are stored at low precision too",
    )
    tables.add_argument(
        "--lookahead", type=int, default=0, metavar="N", help="fetch rows for N batches ahead (default: 0)"
    )
    tables.add_argument(
        "--freeze-large", action="store_true", help="do not train tables of 1 MiB or more: what do they matter?"
    )
    training = parser.add_argument_group("training")
    training.add_argument(
        "--learning-rate", type=float, default=default.learning_rate, help="of the tables (default: %(default)s)"
    )
    training.add_argument(
        "--dense-learning-rate",
        type=float,
        default=default.dense_learning_rate,
        help="of the MLPs, which take plain SGD (default: %(default)s)",
    )
    training.add_argument("--batch-size", type=int, default=default.batch_size, help="(default: %(default)s)")
    # PyTorch's threads spin while they wait; one for every core starves the server, and all is many times slower.
    cores = max(1, (os.cpu_count() or 2) - 1)
    training.add_argument(
        "--threads",
        type=int,
        default=cores,
        metavar="N",
        help="of PyTorch (default: all cores but one, %(default)s here)",
    )
    training.add_argument("--epochs", type=int, default=default.epochs, help="(default: %(default)s)")
    training.add_argument(
        "--seed", type=int, default=0, help="of the split, the MLPs, and the server in this process (default: 0)"
    )
    return parser.parse_args()


def main() -> None:
    import hotrow

    given = arguments()
    torch.set_num_threads(given.threads)
    options = Options(**{key: getattr(given, key) for key in asdict(Options())})
    clicks = criteo.load(given.data, given.limit, given.cache_dir)
    rows = f"{sum(clicks.cardinalities):,} rows of dim {options.dim}"
    print(f"{len(clicks):,} samples, {len(clicks.names)} categorical columns, {rows}")
    with contextlib.ExitStack() as stack:
        address = given.endpoint or stack.enter_context(hotrow.serve(seed=options.seed)).address
        client = stack.enter_context(hotrow.connect(address, lookahead=options.lookahead))
        result = run(client, clicks, options)

    show(result)
    if given.json:
        figures = {"data": given.data.name, "options": asdict(options), **result}
        given.json.write_text(json.dumps(figures, indent=2) + "\n")


def show(result: dict[str, float | None]) -> None:
    def shown(name: str) -> str:
        return "none" if result[name] is None else f"{result[name]:.5f}"

    ratio = f"{result['f32_bytes'] / result['bytes']:.3f}"
    if result["large_bytes"]:
        ratio += f" (large tables alone: {result['large_f32_bytes'] / result['large_bytes']:.3f})"
    print(f"test AUC                {shown('auc')}")
    print(f"test log loss           {shown('log_loss')}")
    print(f"test accuracy           {shown('accuracy')}")
    print(f"hit rate                {shown('hit_rate')} of pulls while training, large tables")
    print(f"write-backs per update  {shown('write_backs_per_update')}, large tables")
    print(f"bytes                   {result['bytes']:,.0f}")
    print(f"bytes at f32            {result['f32_bytes']:,.0f} with the same optimizer and no cache")
    print(f"ratio                   {ratio}")
    print(f"seconds of training     {result['seconds']:.1f}")


if __name__ == "__main__":
    main()
