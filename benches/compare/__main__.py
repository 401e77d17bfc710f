"""The comparison's command line."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from .rounds import Measured, check, measure
from .systems import GROUPS, Group
from .worker import Failed, Worker, command, rust_worker
from .workload import ZIPF, Workload

EXAMPLES = """\
examples (from benches/, with the Python that `python/environment bench` prints):
  python -m compare                                        # everything
  python -m compare --groups codec,engine
  python -m compare --systems bare-tcp,hotrow-f32,redis    # only these, in the groups that have them
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m compare",
        description="hotrow, its peers and the machine's limits beside each other, as `ratio NAME VALUE` lines.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [system.name for group in GROUPS.values() for system in group.systems]
    parser.add_argument("--groups", default=",".join(GROUPS), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--systems", default=",".join(names), metavar="A,B", help="default: all")
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--dim", type=int, default=64, metavar="N", help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=8192, metavar="N", help="unique keys (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="turns of each (default: %(default)s)")
    given = parser.parse_args()
    given.groups, given.systems = given.groups.split(","), given.systems.split(",")
    if unknown := [name for name in given.groups if name not in GROUPS]:
        parser.error(f"unknown groups {', '.join(unknown)}: there are {', '.join(GROUPS)}")
    if unknown := [name for name in given.systems if name not in names]:
        parser.error(f"unknown systems {', '.join(unknown)}: there are {', '.join(names)}")
    return given


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(group: Group, chosen: list[str], workload: Workload, rounds: int) -> None:
    systems = [system for system in group.systems if system.name in chosen]
    rust = rust_worker() if any(not system.module for system in systems) else None
    workers: list[Worker] = []
    try:
        for system in systems:
            say(f"{group.name}: starting {system.name}")
            workers.append(Worker(system, [*command(system, rust), *workload.words]))
        for worker in workers:
            worker.await_ready()
            say(f"{group.name}: {worker.system.name} is ready")
        for worker in workers:
            check(worker, workload)
        show(measure(group, workers, rounds, say), workers, workload)
    finally:
        for worker in workers:
            worker.end()


def show(measured: Measured, workers: list[Worker], workload: Workload) -> None:
    group, batch = measured.group, workload.batch
    keys = f"{batch} unique keys of a Zipf {ZIPF} draw"
    print(f"# {group.name}: {workload.rows} rows, dim {workload.dim}, {keys}, taking turns")
    for worker in workers:
        name = worker.system.name
        versions = ", ".join(f"{of} {version}" for of, version in worker.about["versions"].items())
        print(f"# {name}: {versions}; {worker.about['settings']}")
    for what, times in measured.times.items():
        for worker in workers:
            name = worker.system.name
            if not times.get(name):
                continue
            rate = measured.rate(what, name, batch)
            point: dict[str, Any] = {
                "sweep": f"systems-{group.name}",
                "layer": group.layer_of(name),
                "what": what,
                "x": name,
            }
            point["rows_per_s"] = round(rate)
            limit = worker.system.limit or group.limits.get(what)
            if limit in times:
                point["limit_rows_per_s"] = round(measured.rate(what, limit, batch))
            point["settings"] = {
                **worker.about,
                "rows": workload.rows,
                "dim": workload.dim,
                "batch": batch,
                "repetitions": len(times[name]),
            }
            print(f"# {what} {name}: {rate / 1e6:.2f} Mrows/s (medians of {len(times[name])})")
            print(f"point {json.dumps(point)}")
    for ratio in group.ratios:
        if found := measured.ratio(ratio):
            print(f"ratio {ratio.name} {found[0]:.3f}", flush=True)


def main() -> None:
    given = arguments()
    # What ends a shell's job ends this one as Ctrl-C does: with its workers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="hotrow-compare-") as folder:
        workload = Workload(given.rows, given.dim, given.batch, Path(folder))
        say("compare: drawing keys")
        workload.write()
        failed = False
        for name in given.groups:
            try:
                run(GROUPS[name], given.systems, workload, given.rounds)
            except Failed as error:
                # The others are measured all the same.
                say(f"compare: {name}: {error}")
                failed = True
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
