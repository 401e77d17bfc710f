"""Bytes at the paper's scale: the server's own count for tables with Criteo-Kaggle's 33.8 million rows.

Making the tables is enough: the server sets their memory aside and counts it, and pages that are not touched are free.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from . import synthetic


@dataclass(frozen=True)
class Case:
    """One way to store all 26 tables."""

    dim: int
    precision: str
    cache: float
    optimizer: str
    quantizer: str | None = None  # None: the server's default
    state_precision: str = "f32"


@dataclass(frozen=True)
class Requirement:
    """The least ratio to f32 that is asked for."""

    dim: int
    precision: str
    cache: float
    optimizer: str
    ratio: float

    def asks(self, case: Case) -> bool:
        return (case.dim, case.precision, case.cache, case.optimizer) == (
            self.dim,
            self.precision,
            self.cache,
            self.optimizer,
        )


OPTIMIZERS = ["sgd", "rowwise_adagrad"]
CASES = [
    *(Case(dim, "f32", 0, optimizer) for dim in (16, 64) for optimizer in OPTIMIZERS),
    *(Case(16, "int8", 5, optimizer) for optimizer in OPTIMIZERS),
    Case(16, "int8", 5, "rowwise_adagrad", state_precision="bf16"),
    *(Case(64, "int4", 1, optimizer, quantizer) for optimizer in OPTIMIZERS for quantizer in (None, "symmetric")),
    *(Case(64, "int4", 1, "rowwise_adagrad", quantizer, "bf16") for quantizer in (None, "symmetric")),
]
REQUIREMENTS = [
    Requirement(16, "int8", 5, "sgd", 2.9),
    Requirement(16, "int8", 5, "rowwise_adagrad", 2.55),
    Requirement(64, "int4", 1, "sgd", 6.5),
    Requirement(64, "int4", 1, "rowwise_adagrad", 6.3),
]


def count(case: Case) -> dict[str, float]:
    """Makes the tables and asks the server."""
    import dlrm
    import hotrow

    spec = {key: value for key, value in asdict(case).items() if key not in ("dim", "cache")}
    with hotrow.serve() as server, hotrow.connect(server.address) as client:
        for name, rows in zip(synthetic.NAMES, synthetic.CARDINALITIES):
            client.create_table(name, case.dim, rows, cache=f"{case.cache:g}%", **spec)
        tables = client.stats().tables.values()
        return {
            "bytes": sum(table.memory for table in tables),
            "cache_bytes": sum(table.cache_bytes + table.directory_bytes for table in tables),
            "f32_bytes": sum(dlrm.f32_bytes(rows, case.dim, case.optimizer) for rows in synthetic.CARDINALITIES),
        }


def measure(path: Path) -> None:
    """All cases, anew each time: it takes seconds."""
    lines = []
    for case in CASES:
        figures = count(case)
        lines.append(json.dumps({**asdict(case), **figures}))
        print(
            f"memory: {asdict(case)}: {figures['bytes']:,} bytes, ratio {figures['f32_bytes'] / figures['bytes']:.3f}",
            flush=True,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> list[tuple[Case, dict[str, float]]]:
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        fields = json.loads(text)
        figures = {name: fields.pop(name) for name in ("bytes", "cache_bytes", "f32_bytes")}
        found.append((Case(**fields), figures))
    return found
