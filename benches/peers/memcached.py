"""memcached: a server on loopback, and `memcached.c` on libmemcached. A push overwrites."""

from __future__ import annotations

import os

from . import compiled, protocol


def main() -> None:
    task = protocol.task(("memcached",))
    port = protocol.free_port()
    # Room for all rows twice: nothing may be evicted. It asks to be told when it runs as root.
    megabytes = max(64, 2 * task.rows * (task.dim * 4 + 100) >> 20)
    server = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", str(megabytes)]
    server += ["-u", "root"] if os.geteuid() == 0 else []
    with protocol.process(server) as running:
        protocol.await_port(running, port)
        versions = {
            "memcached": compiled.version(["memcached", "--version"]),
            "libmemcached": compiled.package("libmemcached-dev"),
        }
        settings = (
            "loopback TCP, binary protocol, one mget; a push overwrites: sets without replies, confirmed at the end"
        )
        ready = protocol.ready_line(task.variant, versions, settings)
        compiled.run("memcached", [*task.words(), "--port", str(port), "--ready", ready])


if __name__ == "__main__":
    main()
