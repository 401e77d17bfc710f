"""What the workers have in common: their arguments, the table's numbers, and one line each way.

A worker says `ready JSON` when its server holds all rows. Then it is told `pull I N` or `push I N`, does that with N batches
from batch I on, and answers their seconds on one line when it has done all of them: whoever reads that would otherwise
be woken on a core that the next batch needs. `sum I 1` answers the sum of what batch I's pull brings; `quit` ends it and
its server.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

LEARNING_RATE = 0.01
BAG = 20  # keys of a bag, where rows are pooled


@dataclass(frozen=True)
class Task:
    """What a worker is started with. `variant` is which system it is to be, where one worker is several."""

    rows: int
    dim: int
    batch: int
    keys_file: Path
    gradients_file: Path
    variant: str

    def batches(self) -> list[Keys]:
        # Keys are below 2^63: the same bits, of the type that NumPy and PyTorch take as indices.
        keys = np.fromfile(self.keys_file, dtype="<u8").astype(np.int64)
        return list(keys.reshape(-1, self.batch))

    def gradients(self) -> Rows:
        return np.fromfile(self.gradients_file, dtype="<f4").reshape(self.batch, self.dim)

    def words(self) -> list[str]:
        """The same task, for another process."""
        words = ["--rows", self.rows, "--dim", self.dim, "--batch", self.batch]
        return list(map(str, [*words, "--keys", self.keys_file, "--gradients", self.gradients_file]))


class Worker(Protocol):
    """A system: how it pulls and pushes a batch. All of that is timed, unless it gives the seconds itself."""

    def pull(self, batch: int) -> float | None: ...

    def push(self, batch: int) -> float | None: ...

    def sum(self, batch: int) -> float: ...


def task(variants: tuple[str, ...]) -> Task:
    """From the command line. The first variant is the default."""
    parser = argparse.ArgumentParser()
    for name in ("rows", "dim", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("keys", "gradients"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="FILE")
    parser.add_argument("--variant", choices=variants, default=variants[0])
    given = parser.parse_args()
    return Task(given.rows, given.dim, given.batch, given.keys, given.gradients, given.variant)


def rows_of(keys: Keys, dim: int) -> Rows:
    """The numbers that these rows have before anything is pushed: integers first, then one division in f32."""
    whole = (keys[:, None] * 31 + np.arange(dim)[None, :] * 17) % 1000
    return whole.astype(np.float32) / np.float32(100_000)


def table(rows: int, dim: int) -> Rows:
    """All rows."""
    values = np.empty((rows, dim), dtype=np.float32)
    for keys in chunks(rows):
        values[keys] = rows_of(keys, dim)
    return values


def chunks(rows: int, size: int = 65_536) -> Iterator[Keys]:
    """All keys, some at a time."""
    for first in range(0, rows, size):
        yield np.arange(first, min(first + size, rows))


def ready_line(system: str, versions: dict[str, str], settings: str) -> str:
    return json.dumps({"system": system, "versions": versions, "settings": settings})


def serve(worker: Worker, ready: str) -> None:
    """Does what it is told until `quit` or the end of the input."""
    print("ready", ready, flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "quit":
            return
        work = {"pull": worker.pull, "push": worker.push, "sum": worker.sum}.get(word)
        if work is None or len(numbers) != 2:
            print(f"error not understood: {line.strip()}", flush=True)
            continue
        first, count = map(int, numbers)
        batches = range(first, first + count)
        answers = [repr(float(worker.sum(i))) if word == "sum" else f"{timed(work, i):.9f}" for i in batches]
        print(*answers, flush=True)


def timed(work: Callable[[int], float | None], batch: int) -> float:
    """The seconds of it, or what it says itself."""
    begun = time.perf_counter()
    own = work(batch)
    return time.perf_counter() - begun if own is None else own


def free_port() -> int:
    """For servers that cannot choose one themselves."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def end_when_told() -> None:
    """SIGTERM ends this process as Ctrl-C does, so that `finally` ends its server."""

    def stop(_signal: int, _frame: Any) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, stop)


@contextmanager
def process(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A server that ends with the block, whatever happens in it."""
    end_when_told()
    started = subprocess.Popen(command, text=True, **options)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def await_port(server: subprocess.Popen[str], port: int, seconds: float = 30) -> None:
    """Returns when something listens there."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"{server.args!r} does not listen on port {port}")
