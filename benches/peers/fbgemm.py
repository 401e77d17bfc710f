"""fbgemm's table-batched embeddings on the CPU, in process, one thread, row-wise Adagrad fused into the backward.

A pull is the forward, into the tensor that it makes; a push is the backward alone: the forward that it needs runs
before the clock starts. `fbgemm-f32` is what its users call no pooling. `-sum1` has bags of one key, which gives the
same rows by other kernels: its backward is ten times as fast here.
"""

from __future__ import annotations

import importlib.metadata
import time

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from . import protocol


# Weights, and the keys of a bag; None: no pooling.
VARIANTS: dict[str, tuple[SparseType, int | None]] = {
    "fbgemm-f32": (SparseType.FP32, None),
    "fbgemm-f32-sum1": (SparseType.FP32, 1),
    "fbgemm-f32-sum20": (SparseType.FP32, protocol.BAG),
    "fbgemm-f16": (SparseType.FP16, None),
    "fbgemm-f16-sum1": (SparseType.FP16, 1),
    "fbgemm-f16-sum20": (SparseType.FP16, protocol.BAG),
}


class Embeddings:
    def __init__(self, task: protocol.Task, weights: SparseType, bag: int | None) -> None:
        self.module = SplitTableBatchedEmbeddingBagsCodegen(
            [(task.rows, task.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=protocol.LEARNING_RATE,
            eps=1e-8,
            pooling_mode=PoolingMode.SUM if bag else PoolingMode.NONE,
            weights_precision=weights,
            output_dtype=SparseType.FP32,
        )
        with torch.no_grad():
            (held,) = self.module.split_embedding_weights()
            held.copy_(torch.from_numpy(protocol.table(task.rows, task.dim)))
        self.batches = [torch.from_numpy(keys) for keys in task.batches()]
        self.offsets = torch.tensor([*range(0, task.batch, bag or task.batch), task.batch])
        self.gradients = torch.from_numpy(task.gradients())
        if bag:
            self.gradients = self.gradients[: len(self.offsets) - 1]

    def forward(self, batch: int) -> torch.Tensor:
        rows: torch.Tensor = self.module(self.batches[batch % len(self.batches)], self.offsets)
        return rows

    def pull(self, batch: int) -> None:
        with torch.no_grad():
            self.forward(batch)

    def push(self, batch: int) -> float:
        out = self.forward(batch)
        begun = time.perf_counter()
        out.backward(self.gradients)
        return time.perf_counter() - begun

    def sum(self, batch: int) -> float:
        with torch.no_grad():
            return float(np.asarray(self.forward(batch)).sum(dtype=np.float64))


def main() -> None:
    task = protocol.task(tuple(VARIANTS))
    torch.set_num_threads(1)
    weights, bag = VARIANTS[task.variant]
    pooling = f"sum pooling of {bag}" if bag else "no pooling"
    versions = {name: importlib.metadata.version(name) for name in ("fbgemm-gpu-cpu", "torch")}
    settings = f"in process, 1 thread, {weights.value} weights, {pooling}; backward with row-wise Adagrad, alone"
    worker = Embeddings(task, weights, bag)
    protocol.serve(worker, protocol.ready_line(task.variant, versions, settings))


if __name__ == "__main__":
    main()
