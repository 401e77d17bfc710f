"""Two shards with log, checkpoints and a memory budget, under load, and a Prometheus with the rules that scrapes them."""

import os
import re
import sys
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

from files import PROMETHEUS, RULES, SCRAPE  # noqa: E402
from process import PATIENCE, Process, run  # noqa: E402
from prometheus import Prometheus, free_address, get  # noqa: E402


class Watched:
    """The shards, and who watches them."""

    def __init__(self):
        self.processes = []

    def start_all(self, folder):
        binary = os.environ["HOTROW_BIN"]
        addresses = [free_address(), free_address()]
        more = [{}, self.on_a_gpu(folder)]
        self.http = [self.start_shard(binary, folder, addresses, number, **more[number]) for number in range(2)]
        endpoint = ("--endpoint", addresses[0])
        # One whose cache does not hold what is trained, so that rows are rounded, and one without a cache.
        made = run(binary, "table", "create", "small", "--dim", "8", "--rows", "100", *endpoint)
        assert made.returncode == 0, made
        train = ("--rows", "100000", "--dim", "16", "--cache", "2%", "--batch", "512", "--seconds", "600")
        self.start(binary, "bench", "train", "--table", "item", *train, *endpoint)
        self.prometheus = Prometheus(yaml.safe_dump(self.config()), folder)
        self.processes.append(self.prometheus.process)
        # Both shards, and both tables of each, are seen.
        self.prometheus.wait_until('count(hotrow_rows{state="all"})', 4)
        self.began = time.monotonic()

    def start(self, *command, **more):
        self.processes.append(Process(*command, **more))
        return self.processes[-1]

    def start_shard(self, binary, folder, addresses, number, flags=(), environment={}):
        shard = self.start(
            *(binary, "serve", "--listen", addresses[number], "--http", "127.0.0.1:0", "--memory", "1GiB"),
            *("--shards", ",".join(addresses), "--shard", number, "--data-dir", folder / f"shard-{number}"),
            *("--checkpoints", folder / "checkpoints", "--checkpoint-interval-seconds", 2, *flags),
            **environment,
        )
        return shard.wait_for_line(r"metrics on http://(127\.0\.0\.1:\d+)/metrics")

    def on_a_gpu(self, folder):
        """What a shard needs to have its hot rows on the emulated GPU."""
        driver = folder / "driver"
        driver.mkdir()
        (driver / "libcuda.so.1").symlink_to(os.environ["EMULATED_DRIVER"])
        flags = ("--pool", "cuda", "--nvrtc", os.environ["NVRTC"], "--kernel-cache", os.environ["KERNELS"])
        return {"flags": flags, "environment": {"LD_LIBRARY_PATH": str(driver)}}

    def config(self):
        """That of deploy/, with these shards, and quicker."""
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {
            "scrape_interval": f"{SCRAPE}s",
            "scrape_timeout": f"{SCRAPE}s",
            "evaluation_interval": "1s",
        }
        config["rule_files"] = [str(file) for file in RULES]
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": self.http}]
        return config

    def served(self):
        """The names of all time series of the shards."""
        text = "".join(get(f"{http}/metrics") for http in self.http)
        return set(re.findall(r"^(\w+)[{ ]", text, re.M)) | set(re.findall(r"^# TYPE (\w+) ", text, re.M))

    def query(self, expr):
        """Label sets and values, of which at least one is a number; waits for them."""
        # What is not there by now will not come.
        deadline = max(self.began + PATIENCE, time.monotonic() + 5 * SCRAPE)
        while True:
            result = self.prometheus.api("query", query=expr)["result"]
            values = [(one["metric"], float(one["value"][1])) for one in result]
            values = [(labels, value) for labels, value in values if value == value]
            if values:
                return values
            assert time.monotonic() < deadline, f"no data for {expr}"
            time.sleep(0.5)

    def end(self):
        # Prometheus and load first: nobody is left to see the shards go.
        for process in reversed(self.processes):
            process.terminate()


@pytest.fixture(scope="session")
def watched(tmp_path_factory):
    watched = Watched()
    try:
        watched.start_all(tmp_path_factory.mktemp("watched"))
        yield watched
    finally:
        watched.end()
