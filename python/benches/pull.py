"""`make bench-python`: pulls from Python beside pulls by the Rust client, from the same server, in one run.

The server is a process of its own. Rounds of both clients follow each other; the ratio is the median over the rounds. Both
have 64 batches of distinct keys, drawn before, and read into memory that is used again; `python.pull.new_arrays` is what the
plain call does, which makes an array for every answer.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time

import numpy as np

import hotrow

ROWS, DIM, BATCH = 1_000_000, 64, 8192
ROUNDS, SECONDS, WARM_UP = 9, 1.5, 0.5


def start_server() -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "hotrow", "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"hotrow serves .* on (\S+)", line):
            return server, found[1]
    raise SystemExit("the server did not start")


def rust(address: str) -> float:
    """Rows per second of the Rust client."""
    command = [sys.executable, "-m", "hotrow", "bench", "pull", "--endpoint", address, "--table", "bench", "--precision", "f32"]
    command += ["--rows", ROWS, "--dim", DIM, "--batch", BATCH, "--zipf", 0, "--unique", "--connections", 4]
    command += ["--seconds", SECONDS, "--warm-up", WARM_UP, "--output", "json"]
    answer = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout
    return float(json.loads(answer)["rows_per_s"])


def python(client: hotrow.Client, batches: list[np.ndarray], out: np.ndarray | None) -> float:
    """Rows per second of this client."""
    pulls = 0
    begun = time.perf_counter()
    measured = begun + WARM_UP
    while (now := time.perf_counter()) < begun + WARM_UP + SECONDS:
        if now < measured:
            since, pulls = now, 0
        client.pull("bench", batches[pulls % len(batches)], out=out)
        pulls += 1
    return pulls * BATCH / (time.perf_counter() - since)


def main() -> None:
    random = np.random.default_rng(1)
    batches = [random.choice(ROWS, BATCH, replace=False) for _ in range(64)]
    server, address = start_server()
    try:
        with hotrow.connect(address) as client:
            client.create_table("bench", DIM, ROWS, precision="f32")
            every = np.arange(ROWS)
            for start in range(0, ROWS, BATCH):
                keys = every[start : start + BATCH]
                client.push("bench", keys, np.full((len(keys), DIM), 0.01, dtype=np.float32))
            out = np.empty((BATCH, DIM), dtype=np.float32)
            rates = [(rust(address), python(client, batches, out), python(client, batches, None)) for _ in range(ROUNDS)]
    finally:
        server.terminate()
        server.wait(30)
    print(f"# pull of {BATCH} rows x {DIM}, f32, loopback, one client (medians of {ROUNDS} rounds)")
    for name, place in (("Rust", 0), ("Python", 1), ("Python, new arrays", 2)):
        print(f"# {name}: {statistics.median(rate[place] for rate in rates) / 1e6:.2f} Mrows/s")
    print(f"ratio python.pull.over_rust {statistics.median(r[1] / r[0] for r in rates):.3f}")
    print(f"ratio python.pull.new_arrays {statistics.median(r[2] / r[0] for r in rates):.3f}")


if __name__ == "__main__":
    main()
