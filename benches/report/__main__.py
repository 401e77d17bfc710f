"""The report's command line."""

from __future__ import annotations

import argparse
import shutil
import signal
from pathlib import Path

from . import page, steps
from .machine import REPOSITORY
from .results import Results

EXAMPLES = """\
examples (from benches/, with the Python that `python/environment bench` prints):
  python -m report                          # everything: about an hour with its builds
  python -m report --steps compare,latency  # only these again; the results of the others stay
  python -m report --quick --out /tmp/try   # does it work at all?
  python -m report --report                 # only the page and the plots, from the results that are there
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m report",
        description="Runs the benchmarks and writes docs/BENCHMARKS.md.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--steps", default=",".join(steps.STEPS), metavar="A,B", help="which, in this order (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds and small sweeps: needs --out")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY / "docs", metavar="DIR", help="default: docs of the repository"
    )
    given = parser.parse_args()
    given.steps = given.steps.split(",")
    if unknown := [name for name in given.steps if name not in steps.STEPS]:
        parser.error(f"unknown steps {', '.join(unknown)}: there are {', '.join(steps.STEPS)}")
    if given.quick and given.out == REPOSITORY / "docs":
        parser.error("quick figures are no figures: give another --out")
    return given


def main() -> None:
    given = arguments()
    # What ends a shell's job ends this one as Ctrl-C does: with what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    written = given.out / "BENCHMARKS.md"
    if not written.exists():
        given.out.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "docs" / "BENCHMARKS.md", written)
    results = Results(given.out / "benchmarks" / "results.json")
    if not given.report:
        results.begin(everything=set(steps.STEPS) <= set(given.steps))
    failed = []
    for name in [] if given.report else given.steps:
        step = steps.STEPS[name]
        if given.quick and step.quick is None:
            print(f"== {name}: has no quick way, left out", flush=True)
            continue
        results.add(name, steps.run(step, given.quick))
        page.write(written, results)  # after each: a long run has something to show
        if results.steps()[name]["failure"]:
            failed.append(name)
    page.write(written, results)
    print(f"== {written}", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
