"""fbgemm's row-wise 8-bit quantizers, one thread: a push encodes a batch of rows to nearest, a pull decodes it."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable

import fbgemm_gpu  # noqa: F401  registers the operators
import torch

from . import protocol


def near(rows: torch.Tensor, work: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The seconds of work on rows that are in the caches, as they are for the other side."""
    rows.sum()
    begun = time.perf_counter()
    work(rows)
    return time.perf_counter() - begun


class Codec:
    def __init__(self, task: protocol.Task) -> None:
        self.rows = [torch.from_numpy(protocol.rows_of(keys, task.dim)) for keys in task.batches()]
        self.codes = [torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows) for rows in self.rows]

    def push(self, batch: int) -> float:
        rows = self.rows[batch % len(self.rows)]
        return near(rows, torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized)

    def pull(self, batch: int) -> float:
        codes = self.codes[batch % len(self.codes)]
        return near(codes, torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat)

    def sum(self, batch: int) -> float:
        decoded = torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(self.codes[batch % len(self.codes)])
        return float(decoded.sum(dtype=torch.float64))


def main() -> None:
    task = protocol.task(("fbgemm-codec",))
    torch.set_num_threads(1)
    versions = {name: importlib.metadata.version(name) for name in ("fbgemm-gpu-cpu", "torch")}
    settings = (
        "in process, 1 thread, FloatToFused8BitRowwiseQuantized and back: a scale and an offset per row, to nearest"
    )
    protocol.serve(Codec(task), protocol.ready_line(task.variant, versions, settings))


if __name__ == "__main__":
    main()
