"""One run, in a worker process, and many of them side by side."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from typing import Any

import numpy as np

import criteo

from .grid import Run
from .results import Results
from .settings import Data


@cache
def clicks_of(data: Data) -> criteo.Clicks:
    return data.load()


def train_and_test(data: Data, run: Run) -> dict[str, Any]:
    """Trains and tests one line with one seed, on a server of its own."""
    import torch

    import dlrm
    import hotrow

    torch.set_num_threads(1)  # runs side by side are faster than threads in one
    line, settings, clicks = run.line, data.settings, clicks_of(data)
    options = dlrm.Options(
        optimizer=settings.optimizer,
        learning_rate=settings.learning_rate,
        dense_learning_rate=settings.dense_learning_rate,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        dim=settings.dim,
        one_table=settings.one_table,
        seed=run.seed,
        precision=line.precision,
        cache=f"{line.cache:g}%",
        rounding=line.rounding,
        policy=line.policy,
        quantizer=line.quantizer,
        state_precision=line.state_precision,
        freeze_large=line.freeze,
    )
    caches = {}
    if line.of_seen:
        for column, name in enumerate(clicks.names):
            caches[name] = f"{round(len(np.unique(clicks.ids[:, column])) * line.cache / 100)}rows"
    # The pair: the same seed gives the same split and order, the same MLPs, and the same initial rows.
    with (
        hotrow.serve(seed=run.seed, partitions=settings.partitions, threads=1) as server,
        hotrow.connect(server.address) as client,
    ):
        try:
            return dlrm.run(client, clicks, options, caches)
        except FloatingPointError:
            # That is a result, too: such a model ranks like a coin.
            figures = dlrm.measure(client, clicks, options)
            return {**figures, "auc": 0.5, "log_loss": None, "seconds": None, "diverged": True}


def run_all(data: Data, runs: list[Run], results: Results, jobs: int) -> None:
    """All runs that have no result yet, `jobs` at a time. Prints a line for each."""
    fingerprint = data.fingerprint()
    results.check(fingerprint)
    missing = [run for run in runs if run not in results]
    print(f"{data.name}: {len(runs) - len(missing)} of {len(runs)} runs are there", flush=True)
    if not missing:
        return
    data.load()  # parsed and kept once, and not by every worker
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    # No max_tasks_per_child: with it, Python 3.11 stops for ever when the first workers have done theirs.
    pool = ProcessPoolExecutor(min(jobs, len(missing)), mp_context=context)
    try:
        under_way = {pool.submit(train_and_test, data, run): run for run in missing}
        for done, future in enumerate(as_completed(under_way), 1):
            run, figures = under_way[future], future.result()
            results.add(run, fingerprint, figures)
            left = (time.monotonic() - start) / done * (len(missing) - done) / 60
            outcome = "diverged" if figures.get("diverged") else f"AUC {figures['auc']:.5f}, {figures['seconds']:.0f} s"
            print(f"[{done}/{len(missing)}] {data.name}, seed {run.seed}: {run.line.name}: {outcome}; {left:.0f} min left", flush=True)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
