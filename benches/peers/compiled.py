"""The workers in C, which `prepare` compiles."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from . import protocol

REPOSITORY = Path(__file__).resolve().parents[2]


def run(name: str, words: list[str]) -> None:
    """Runs it with this process's input and output."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "peers"
    with protocol.process([str(folder / name), *words]) as worker:
        if status := worker.wait():
            raise SystemExit(f"the worker {name} ended with {status}")


def version(command: list[str]) -> str:
    """The first number with points in what it says of itself."""
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"\d+(\.\d+)+", said)
    return found[0] if found else said.strip()


def package(name: str) -> str:
    """Debian's version of a package."""
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", name], capture_output=True, text=True)
    return asked.stdout if asked.returncode == 0 else "not from a package"
