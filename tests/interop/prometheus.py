"""A real Prometheus, on a port that the system chooses."""

import json
import socket
import time
import urllib.parse
import urllib.request

from process import PATIENCE, Process


def free_address():
    """One that nobody listens on, for programs that must be told theirs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return "127.0.0.1:%d" % free.getsockname()[1]


def get(address):
    # Loopback is never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}", timeout=PATIENCE) as answer:
        return answer.read().decode()


class Prometheus:
    def __init__(self, config, folder):
        """`config` is the text of its configuration file; `folder` is empty, and its own."""
        file = folder / "prometheus.yml"
        file.write_text(config)
        self.address = free_address()
        self.process = Process(
            "prometheus",
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        )
        self.process.wait_for_line("(Server is ready to receive web requests)")

    def api(self, path, **query):
        """What its HTTP interface answers."""
        answer = json.loads(get(f"{self.address}/api/v1/{path}?" + urllib.parse.urlencode(query, doseq=True)))
        assert answer["status"] == "success", answer
        return answer["data"]

    def ask(self, query):
        """The value of a query, or None while there is none."""
        result = self.api("query", query=query)["result"]
        return float(result[0]["value"][1]) if result else None

    def wait_until(self, query, value):
        deadline = time.monotonic() + PATIENCE
        while (found := self.ask(query)) != value:
            assert time.monotonic() < deadline, f"{query} is {found}, not {value}:\n{self.process.text()}"
            time.sleep(0.2)
