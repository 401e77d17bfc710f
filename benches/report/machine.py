"""Where and with what it was measured."""

from __future__ import annotations

import os
import platform
import re
import socket
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def machine() -> dict[str, str]:
    cpu = read("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.*)", cpu)
    flags = re.search(r"flags\s*:\s*(.*)", cpu)
    wide = [flag for flag in ("avx2", "avx512f") if flags and flag in flags[1].split()]
    memory = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    huge = re.search(r"\[(\w+)\]", read("/sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "CPU": model[1] if model else platform.processor(),
        "cores": str(os.cpu_count()),
        "SIMD": ", ".join(wide) or "neither AVX2 nor AVX-512",
        "caches": ", ".join(caches()),
        "memory": f"{int(memory[1]) / 2**20:.0f} GiB" if memory else "unknown",
        "kernel": platform.release().partition("-")[0],
        "transparent huge pages": huge[1] if huge else "unknown",
        "TCP congestion control": congestion_control(),
    }


def caches() -> list[str]:
    """Of the first core, from the smallest."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = (read(folder / name).strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return found


def congestion_control() -> str:
    """That of a loopback connection whose program chooses none."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def versions() -> dict[str, str]:
    """Those of the peers come with their points."""
    return {
        "rustc": said("rustc", "--version"),
        "Python": platform.python_version(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
    }


def commit() -> str:
    """hotrow's, and whether what was measured had changes that are not in it."""
    changes = said("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return said("git", "rev-parse", "--short=12", "HEAD") + (" with changes" if changes else "")


def said(*command: str) -> str:
    asked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else "unknown"


def read(path: str | Path) -> str:
    """Empty where the system has no such file."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
