"""A real Prometheus scrapes a server and answers the question that users ask first."""

import numpy as np
import pytest

from prometheus import Prometheus

HIT_RATE = (
    'sum(hotrow_cache_lookups_total{op="pull",result="hit"}) / sum(hotrow_cache_lookups_total{op="pull"})'
)
LOOKUPS = 'sum(hotrow_cache_lookups_total{op="pull"})'

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: hotrow
  static_configs: [{{targets: ['{target}']}}]
"""


@pytest.fixture
def prometheus(server, tmp_path):
    prometheus = Prometheus(CONFIG.format(target=server.http), tmp_path)
    yield prometheus
    prometheus.process.terminate()


def test_the_hit_rate_is_that_of_the_keys_sent(server, prometheus):
    # Of this table 5 % of the rows fit in the cache; a push brings its rows in, a pull does not.
    server.create("item", 16, rows=100_000, precision="int8")
    server.push("item", np.arange(300), np.ones((300, 16)))
    pulls = [np.arange(200, 500), np.arange(290, 1000), np.array([5, 5, 5, 70_000])]
    hits = lookups = 0
    for keys in pulls:
        server.pull("item", keys)
        hits += int((keys < 300).sum())
        lookups += len(keys)
    assert (hits, lookups) == (113, 1014)
    prometheus.wait_until(LOOKUPS, lookups)
    assert prometheus.ask(HIT_RATE) == hits / lookups
    assert prometheus.ask("up") == 1
    assert prometheus.ask('hotrow_rpc_requests_total{method="Data/Pull",code="OK"}') == len(pulls)
    assert prometheus.ask('hotrow_rpc_duration_seconds_count{method="Data/Pull"}') == len(pulls)
    assert prometheus.ask('hotrow_rows{table="item",state="cached"}') == 300

    # Later scrapes count on.
    server.pull("item", np.arange(300))
    prometheus.wait_until(LOOKUPS, lookups + 300)
    assert prometheus.ask(HIT_RATE) == (hits + 300) / (lookups + 300)
