"""What is under /metrics is what Prometheus's own checker takes, without a warning."""

import re
import subprocess
import urllib.request

import numpy as np
from hotrow.v1 import admin_pb2, data_pb2, tables_pb2

from process import PATIENCE


def scrape(server):
    # Loopback is never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{server.http}/metrics", timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


def use(server):
    server.create("item", 16, rows=100_000, precision="int8")
    server.create("odd/name-1.x", 4)
    server.push("item", np.arange(100), np.ones((100, 16)))
    server.pull("item", np.arange(200))
    # More than fit in the cache: rows are rounded, and what that costs is a metric.
    server.push("item", np.arange(30_000), np.random.default_rng(1).normal(size=(30_000, 16)))


def families(text):
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def test_promtool_has_nothing_to_say(server):
    use(server)
    text = scrape(server)
    said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
    found = families(text)
    for name in ["hotrow_rounding_error_rms", "hotrow_cache_lookups_total", "hotrow_rpc_duration_seconds"]:
        assert name in found, "the check has seen what there is to see"
    assert found["hotrow_rpc_duration_seconds"] == "histogram"


def test_promtool_would_speak_up():
    # A counter must end in _total: the check above can fail.
    text = "# HELP a_b Help.\n# TYPE a_b counter\na_b 1\n"
    said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert said.returncode != 0


def test_every_method_is_counted_under_its_name(server):
    use(server)
    files = {"Data": data_pb2, "Tables": tables_pb2, "Admin": admin_pb2}
    expected = set()
    for name, file in files.items():
        for method in file.DESCRIPTOR.services_by_name[name].methods:
            expected.add(f"{name}/{method.name}")
            path = f"/hotrow.v1.{name}/{method.name}"
            if method.name == "Drain":
                continue
            kind = server.channel.stream_stream if method.name == "Stream" else server.channel.unary_unary
            call = kind(path, _registered_method=False)
            try:
                # An empty message: some refuse it, and are counted all the same.
                list(call(iter([b""]))) if method.name == "Stream" else call(b"", timeout=PATIENCE)
            except Exception as error:
                assert hasattr(error, "code"), error
    counted = set(re.findall(r'^hotrow_rpc_requests_total\{.*method="([^"]+)"', scrape(server), re.M))
    assert expected - {"Admin/Drain"} <= counted
    assert "other" not in counted
