"""fbgemm's row-wise 8-bit quantizers, one thread: a push encodes a batch of rows to nearest, a pull decodes it."""

from __future__ import annotations

import importlib.metadata

import fbgemm_gpu  # noqa: F401  registers the operators
import torch

from . import protocol


class Codec:
    def __init__(self, task: protocol.Task) -> None:
        self.rows = [torch.from_numpy(protocol.rows_of(keys, task.dim)) for keys in task.batches()]
        self.codes = [torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows) for rows in self.rows]

    def push(self, batch: int) -> None:
        torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(self.rows[batch % len(self.rows)])

    def pull(self, batch: int) -> None:
        torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(self.codes[batch % len(self.codes)])

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
