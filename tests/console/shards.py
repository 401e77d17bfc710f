"""Two real shards on loopback, load for them, and what their metrics say."""

import json
import os
import re
import socket
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "interop"))

from process import PATIENCE, Process, run  # noqa: E402

BINARY = os.environ.get("HOTROW_BIN", str(ROOT / "target" / "debug" / "hotrow"))


def free_port():
    """A free port below those that the system gives to outgoing connections: a shard comes back to its own."""
    first = 32000 - os.getpid() % 1000
    for port in range(first, first - 2000, -1):
        with socket.socket() as tried:
            # A connection of before that still lingers there is nobody's.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in free_port.given:
                free_port.given.add(port)
                return port
    raise AssertionError("there is no free port")


free_port.given = set()


def fetch(address):
    # Loopback is never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}", timeout=PATIENCE) as answer:
        return answer.read().decode()


class Shard:
    """A process that can be killed and started again where it was."""

    def __init__(self, number, addresses, flags):
        self.number, self.address = number, addresses[number]
        self.http = f"127.0.0.1:{free_port()}"
        place = ["--listen", self.address, "--http", self.http, "--shards", ",".join(addresses), "--shard", str(number)]
        self.command = [BINARY, "serve", *place, *flags]
        self.start()

    def start(self):
        self.process = Process(*self.command)
        self.process.wait_for_line(r"hotrow serves shard (\d)")

    def kill(self):
        self.process.child.kill()
        self.process.wait()

    def metrics(self):
        """Every line of /metrics: name and sorted labels to value."""
        lines = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", fetch(f"{self.http}/metrics"), re.M)
        return {(name, *sorted(re.findall(r'(\w+)="([^"]*)"', labels))): float(value) for name, labels, value in lines}


class Cluster:
    """Shards with a log and checkpoints under a folder."""

    def __init__(self, folder, *flags, shards=2):
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(shards)]
        saved = ["--checkpoints", str(folder / "saved"), "--sync", "interval"]
        data = [["--data-dir", str(folder / f"data-{number}")] for number in range(shards)]
        self.shards = [Shard(number, addresses, [*saved, *data[number], *flags]) for number in range(shards)]
        self.page = f"http://{self.shards[0].http}/"

    def run(self, *arguments):
        done = run(BINARY, *arguments, "--endpoint", self.shards[0].address)
        assert done.returncode == 0, done
        return done.stdout

    def load(self, table, seconds, *flags, what="train"):
        """A load generator that runs by itself. The table is made if it is not there."""
        arguments = ["bench", what, "--table", table, "--seconds", str(seconds), "--warm-up", "0", *flags]
        return Process(BINARY, *arguments, "--endpoint", self.shards[0].address)

    def total(self, name, **labels):
        """A metric, added up over the shards."""
        return sum(shard.metrics().get((name, *sorted(labels.items())), 0) for shard in self.shards)

    def status(self):
        """What the page is told."""
        return json.loads(fetch(f"{self.shards[0].http}/api/status"))

    def end(self):
        codes = [shard.process.terminate() for shard in self.shards]
        assert codes == [0] * len(codes), "\n".join(shard.process.text() for shard in self.shards)
