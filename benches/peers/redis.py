"""Redis: a server on loopback, and `redis.c` on hiredis. A push overwrites; `redis-rmw` reads, steps and writes."""

from __future__ import annotations

import subprocess

from . import compiled, protocol

# Keys in a command: the best of 32 to 4096 here. From 1024 on a push takes half as long again, pulls hardly differ.
CHUNK = 128


def main() -> None:
    task = protocol.task(("redis", "redis-rmw"))
    rmw = task.variant == "redis-rmw"
    port = protocol.free_port()
    server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with protocol.process(server, stdout=subprocess.DEVNULL) as running:
        protocol.await_port(running, port)
        versions = {
            "redis": compiled.version(["redis-server", "--version"]),
            "hiredis": compiled.package("libhiredis-dev"),
        }
        how = "a push is MGET, SGD in C, MSET" if rmw else "a push is MSET, which overwrites"
        settings = f"loopback TCP, {CHUNK} keys a command, all of a batch in one pipeline; {how}"
        ready = protocol.ready_line(task.variant, versions, settings)
        own = ["--port", port, "--chunk", CHUNK, "--read-modify-write", int(rmw), "--ready", ready]
        compiled.run("redis", [*task.words(), *map(str, own)])


if __name__ == "__main__":
    main()
