"""The study's command line."""

from __future__ import annotations

import argparse
from pathlib import Path

import criteo

from . import grid, memory, report, settings
from .results import Results
from .run import run_all

EXAMPLES = """\
examples (from python/):
  python -m accuracy                                   # all that has no result yet; stop and start it as you like
  python -m accuracy --parts memory                    # bytes at Criteo-Kaggle's size: seconds
  python -m accuracy --report                          # only the page and the plots, from the results that are there
  python -m accuracy --data train.txt --limit 2000000  # your own click log, in Criteo-Kaggle's layout
  python -m accuracy --limit 20000 --seeds 1 --parts claims --out /tmp/try   # does it work at all?

parts:
  claims      the lines that claims are made about, with 5 seeds (--data)
  tables      some of them with a table for each column, with 5 seeds (--data)
  memory      bytes of Criteo-Kaggle's tables
  synthetic   made-up clicks at Criteo-Kaggle's size, with 5 seeds
  grid        the rest of precision x cache x rounding x policy, with 2 seeds (--data)
"""
PARTS = ["claims", "memory", "tables", "synthetic", "grid"]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m accuracy",
        description="What low precision costs in AUC and saves in bytes, through the real server.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=settings.FLIGHTS,
        metavar="FILE",
        help="Criteo's layout, plain or .gz (default: flights.tsv.gz in shared/data beside the repository)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N lines of --data")
    parser.add_argument(
        "--samples", type=int, default=400_000, metavar="N", help="synthetic samples (default: %(default)s)"
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), metavar="A,B", help="which parts, in this order (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=grid.CLAIM_SEEDS,
        metavar="N",
        help="of claims, tables and synthetic (default: %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="runs side by side, one core each (default: %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=settings.REPOSITORY / "docs" / "accuracy",
        metavar="DIR",
        help="results, page and plots (default: docs/accuracy of the repository)",
    )
    parser.add_argument(
        "--cache-dir", type=Path, default=criteo.default_cache_dir(), metavar="DIR", help="where parsed data are kept"
    )
    parser.add_argument(
        "--report", action="store_true", help="run nothing, write the page from the results that are there"
    )
    given = parser.parse_args()
    given.parts = given.parts.split(",")
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"unknown parts {', '.join(unknown)}: there are {', '.join(PARTS)}")
    if not given.report and {"claims", "tables", "grid"} & set(given.parts) and not given.data.exists():
        parser.error(f"there is no {given.data}: give --data FILE, or --parts memory,synthetic")
    return given


def main() -> None:
    given = arguments()
    logs = settings.from_file(given.data, given.limit, given.cache_dir)
    made_up = settings.made_up(given.samples, given.cache_dir)
    tables = settings.separate_tables(logs)
    names = [logs.name, tables.name, made_up.name]
    for part in [] if given.report else given.parts:
        if part == "memory":
            memory.measure(given.out / "memory.jsonl")
        else:
            data, runs = {
                "claims": (logs, grid.claims(logs.name, grid.FLIGHTS_CLAIMS, given.seeds)),
                "tables": (tables, grid.claims(tables.name, grid.TABLES_CLAIMS, given.seeds)),
                "synthetic": (made_up, grid.claims(made_up.name, grid.SYNTHETIC_CLAIMS, given.seeds)),
                "grid": (logs, grid.rest(logs.name)),
            }[part]
            run_all(data, runs, Results(given.out / f"{data.name}.jsonl"), given.jobs)
        report.write(given.out, names)  # after each part: a long study has something to show
    report.write(given.out, names)


if __name__ == "__main__":
    main()
