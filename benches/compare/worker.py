"""A worker process: a line with orders, and one with answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from .systems import System

REPOSITORY = Path(__file__).resolve().parents[2]


class Failed(Exception):
    """A worker died, or says that it cannot."""


def rust_worker() -> str:
    """Compiles `benches/worker.rs` and gives its path: cargo itself must not stand between a worker and its signals."""
    command = [
        "cargo",
        "bench",
        "--locked",
        "--bench",
        "worker",
        "--no-run",
        "--message-format",
        "json-render-diagnostics",
    ]
    built = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        raise Failed("the Rust worker does not compile")
    for line in built.stdout.splitlines():
        said = json.loads(line)
        if said.get("executable") and said["target"]["name"] == "worker":
            return str(said["executable"])
    raise Failed("cargo does not say where the Rust worker is")


def command(system: System, rust: str | None) -> list[str]:
    """A peer's module, or the Rust worker, which knows systems by name."""
    if system.module:
        return [sys.executable, "-m", f"peers.{system.module}", "--variant", system.name]
    return [str(rust), system.name]


class Worker:
    """Started at once. It is the first of a group of processes of its own, so that its servers can be ended with it."""

    def __init__(self, system: System, command: list[str]) -> None:
        self.system = system
        self.about: dict[str, Any] = {}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY / "benches",
            start_new_session=True,
        )

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise Failed(f"{self.system.name} ended with {self.process.wait()}; what it said is above")
        if line.startswith("error "):
            raise Failed(f"{self.system.name}: {line.removeprefix('error ')}")
        return line

    def await_ready(self) -> None:
        word, _, about = self.answer().partition(" ")
        if word != "ready":
            raise Failed(f"{self.system.name} says {word!r} where it should say that it is ready")
        self.about = json.loads(about)

    def ask(self, what: str, first: int, count: int = 1) -> list[float]:
        """So many batches, one right after the other, as a system in use has them."""
        assert self.process.stdin is not None
        try:
            print(what, first, count, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # its answer says how it ended
        return [float(number) for number in self.answer().split()]

    def end(self, seconds: float = 30) -> None:
        """By asking, then by signals to its whole group."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            try:
                print("quit", file=self.process.stdin, flush=True)
                self.process.wait(seconds)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                pass
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
                self.process.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass
