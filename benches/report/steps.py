"""The benchmarks that make up a run, and running them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from . import machine
from .lines import Printed


@dataclass(frozen=True)
class Step:
    """One command. `quick` are the words that make it short; None: it has no short way, a quick run leaves it out."""

    name: str
    command: tuple[str, ...]
    quick: tuple[str, ...] | None
    folder: str = "."


def cargo(name: str, quick: tuple[str, ...] | None = None) -> Step:
    return Step(name, ("cargo", "bench", "--locked", "--bench", name), quick)


STEPS = {
    step.name: step
    for step in (
        cargo("ratios"),
        Step("compare", ("python", "-m", "compare"), ("--rounds", "2", "--rows", "100000"), folder="benches"),
        cargo("service"),
        cargo("latency", ("--", "--quick")),
        cargo("durability"),
        Step("python", ("python", "python/benches/pull.py"), None),
        cargo("sweeps", ("--", "--quick")),
        cargo("codec"),
    )
}


def run(step: Step, quick: bool) -> dict[str, Any]:
    """Runs it, shows what it prints as it comes, and gives what is kept of that. It ends with this process."""
    words = [*step.command, *(step.quick or () if quick else ())]
    print(f"== {step.name}: {shlex.join(words)}", flush=True)
    # The page shows the command as one would type it; this is which Python it is.
    real = [sys.executable if word == "python" else word for word in words]
    begun, printed, failure = time.monotonic(), Printed(), None
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    process = subprocess.Popen(
        real, cwd=machine.REPOSITORY / step.folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            try:
                printed.feed(line)
            except ValueError as error:
                failure = str(error)
        if status := process.wait():
            failure = f"ended with {status}"
    finally:
        end(process)
    if failure:
        print(f"== {step.name} failed: {failure}", file=sys.stderr, flush=True)
    return {
        "command": shlex.join(words),
        "folder": step.folder,
        "date": date,
        "commit": machine.commit(),
        "seconds": round(time.monotonic() - begun),
        "quick": quick,
        "failure": failure,
        "ratios": printed.ratios,
        "points": printed.points,
        "notes": printed.notes,
    }


def end(process: subprocess.Popen[str]) -> None:
    """With all that it started and that is still there: it is the first of its group."""
    for number, seconds in ((signal.SIGTERM, 60), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
