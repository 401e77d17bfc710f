"""What the page shows is what /metrics says, and it moves without a reload."""

import re
import time

import pytest

from numbers_for_people import SPACE, count, percent, size, span
from shards import PATIENCE

TABLES = ["item", "tiny"]


def number(text):
    """`12.3 k rows/s` as a number; None for anything else."""
    found = re.match(r"([\d.,]+)\s*([kMG]?)\b", text)
    return float(found[1].replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[found[2]] if found else None


def cell(page, row, name, part=".main"):
    return page.locator(f"{row} [data-cell='{name}'] {part}").first


def reader(page, row):
    """What cells of a row show, and what they say when they are pointed at."""

    def shown(name, part=".main"):
        found = cell(page, row, name, part)
        return found.inner_text(), found.get_attribute("title")

    return shown


@pytest.fixture(scope="module")
def settled(cluster):
    """Nothing happens any more: what was to be synced is, and answers from before are forgotten."""
    deadline = time.monotonic() + PATIENCE
    while cluster.total("hotrow_log_unsynced_changes") or cluster.total("hotrow_log_waiting_bytes"):
        assert time.monotonic() < deadline, "the log is never synced"
        time.sleep(0.05)
    time.sleep(1)
    return cluster


def test_tables_match_the_metrics(settled, open_page):
    page, total = open_page(settled.page), settled.total
    assert [row.get_attribute("data-table") for row in page.locator("[data-table]").all()] == TABLES
    for table in TABLES:
        row = f"[data-table='{table}']"
        shown = reader(page, row)
        rows = total("hotrow_rows", table=table, state="all")
        assert shown("rows") == (count(rows), f"{rows:,.0f}")
        assert shown("rows", ".sub")[0] == percent(total("hotrow_rows", table=table, state="stored") / rows) + " stored"
        tiers = [total("hotrow_table_bytes", table=table, tier=tier) for tier in ("rows", "cache", "directory")]
        assert shown("memory") == (size(sum(tiers)), f"{sum(tiers):,.0f} bytes")
        split = page.locator(f"{row} [data-cell='memory'] .bar").get_attribute("aria-label")
        assert split == "rows {}, cache {}, directory {}".format(*map(size, tiers))
        slots, cached = total("hotrow_cache_slots", table=table), total("hotrow_rows", table=table, state="cached")
        lookups = {
            (op, result): total("hotrow_cache_lookups_total", table=table, op=op, result=result)
            for op in ("pull", "push") for result in ("hit", "miss")
        }
        if slots == 0:
            assert table == "tiny" and shown("cache")[0] == "no cache" and shown("pull-hits")[0] == "–"
            continue
        assert shown("cache") == (f"{count(slots)} rows", f"{slots:,.0f}")
        assert shown("cache", ".sub") == (f"lru {percent(cached / slots)} full", f"{cached:,.0f} rows are in it")
        for op in ("pull", "push"):
            hit, miss = lookups[op, "hit"], lookups[op, "miss"]
            title = f"{hit:,.0f} hits, {miss:,.0f} misses since the start"
            assert hit > 0 and shown(f"{op}-hits", ".sub") == (percent(hit / (hit + miss)) + " ever", title)
        backs, updated = total("hotrow_write_backs_total", table=table), total("hotrow_updated_rows_total", table=table)
        title = f"{backs:,.0f} roundings of {updated:,.0f} updated rows"
        assert backs > 0 and shown("write-backs", ".sub") == (f"{backs / updated:.2f} ever", title)


def test_shards_match_the_metrics(settled, open_page):
    page = open_page(settled.page)
    for shard in settled.shards:
        metrics, row = shard.metrics(), f"[data-shard='{shard.number}']"
        value = lambda name: metrics[(name,)]
        shown = reader(page, row)
        assert page.locator(f"{row} .pill").inner_text() == "ready"
        assert shard.address in page.inner_text(row)
        used, budget = value("hotrow_memory_used_bytes"), value("hotrow_memory_budget_bytes")
        assert shown("memory") == (size(used), f"{used:,.0f} bytes")
        assert shown("memory", ".sub")[0] == f"{percent(used / budget)} of {size(budget)}"
        assert shown("log") == (size(value("hotrow_log_bytes")), f"{value('hotrow_log_bytes'):,.0f} bytes")
        assert shown("log", ".sub")[0] == "0 unsynced"
        assert shown("changes") == (count(value("hotrow_changes_total")), f"{value('hotrow_changes_total'):,.0f}")
        assert shown("requests", ".sub")[0] == f"0 of {value('hotrow_rpc_in_flight_limit'):.0f} in flight"
        saved = f"#{value('hotrow_checkpoint_last'):.0f}, {size(value('hotrow_checkpoint_last_bytes'))}"
        assert shown("checkpoint", ".sub")[0] == saved
        age = time.time() - value("hotrow_checkpoint_last_timestamp_seconds")
        # The page was told some seconds ago.
        assert shown("checkpoint")[0] in [span(age - told) + " ago" for told in range(10)]


def test_the_cluster_and_its_methods_match_the_metrics(settled, open_page):
    page, total = open_page(settled.page), settled.total
    assert "ranking" in page.inner_text("#about") and page.title() == "ranking · hotrow"
    assert page.inner_text("[data-tile='shards'] .figure") == "2 of 2 ready"
    used = total("hotrow_memory_used_bytes")
    assert page.inner_text("[data-tile='memory'] .figure") == size(used)
    for tile, op in [("pulled", "pull"), ("pushed", "push")]:
        both = [(table, result) for table in TABLES for result in ("hit", "miss")]
        lookups = sum(total("hotrow_cache_lookups_total", table=table, op=op, result=result) for table, result in both)
        assert page.inner_text(f"[data-tile='{tile}'] .sub") == f"{count(lookups)} since the start"
    methods = [row.get_attribute("data-method") for row in page.locator("[data-method]").all()]
    assert {"Data/Pull", "Data/Stream.Push", "Tables/Create", "Checkpoints/Save"} <= set(methods)
    assert methods[:2] == ["Data/Pull", "Data/Stream.Push"], "what trainers wait for comes first"
    for method in methods:
        if method == "Admin/Stats":
            continue  # The page itself is the reason that these go on.
        requests = total("hotrow_rpc_duration_seconds_count", method=method)
        assert requests > 0
        assert cell(page, f"[data-method='{method}']", "total").get_attribute("title") == f"{requests:,.0f}"


def test_numbers_move_without_a_reload_and_nothing_jumps(cluster, open_page):
    page = open_page(cluster.page)
    page.evaluate("window.stillHere = true")
    places = """() => [...document.querySelectorAll('section h2, thead th, tbody tr, .tile, td, .picture, .bar')]
        .filter(e => e.checkVisibility()).map(e => e.getBoundingClientRect())
        .map(r => [r.top, r.left, r.width, r.height].join(' '))"""
    page.wait_for_function("() => document.querySelector('[data-tile=pulled] .value').textContent === '0'")
    assert page.inner_text("[data-tile='pull-hits'] .value") == "idle"
    before = page.evaluate(places)
    updated = cluster.total("hotrow_updated_rows_total", table="item")
    load = cluster.load("item", 5, "--rows", "200000", "--dim", "16", "--batch", "2048")
    seen, pictures, jumps = set(), set(), []
    deadline = time.monotonic() + PATIENCE
    while len(seen) < 4 or len(pictures) < 4:
        assert time.monotonic() < deadline, f"the numbers do not move: {seen}"
        page.wait_for_timeout(200)
        shown = number(page.inner_text("[data-tile='pulled'] .value"))
        if shown:
            seen.add(shown)
            pictures.add(page.locator("[data-table='item'] [data-cell='pull-hits'] path").last.get_attribute("d"))
        if (after := page.evaluate(places)) != before:
            jumps.append([pair for pair in zip(before, after) if pair[0] != pair[1]])
    assert load.wait() == 0, load.text()
    assert page.evaluate("window.stillHere"), "without a reload"
    assert jumps == []
    grown = cluster.total("hotrow_updated_rows_total", table="item") - updated
    assert grown > 0 and max(seen) < grown, "it is a rate of rows, and not of anything smaller or larger"
    for tile in ("pull-hits", "push-hits"):
        assert 0 < number(page.inner_text(f"[data-tile='{tile}'] .value")) < 100
    assert re.match(r"[\d.]+\s(µs|ms|s)", cell(page, "[data-method='Data/Pull']", "p99").inner_text())
    range_of = page.locator("[data-method='Data/Pull'] .range").get_attribute("aria-label")
    assert re.match(r"from [\d.]+\s(µs|ms|s) to ", range_of)


def test_quantiles_and_rates_are_those_of_the_time_between(cluster, open_page):
    """Two answers whose difference is known."""
    first = cluster.status()
    bounds = first["shards"][0]["status"]["bucket_seconds"]
    turn = {"n": 0}

    def answer():
        # 200 pulls a second on each shard: half take up to 1 ms, 99 of 100 up to 10 ms, the others up to 20 ms.
        n = turn["n"] = turn["n"] + 1
        for shard in first["shards"]:
            shard["status"]["uptime_ms"] = 1_000_000 + 1000 * n
            pulls = [200 * n if b >= 0.02 else 198 * n if b >= 0.01 else 100 * n if b >= 0.001 else 0 for b in bounds]
            shard["status"]["methods"] = [{"method": "Data/Pull", "requests": 200 * n, "failed": n, "buckets": pulls}]
        first["uptime_ms"] = 1_000_000 + 1000 * n
        for table in first["tables"]:
            table["pull_hits"], table["pull_misses"] = (900 * n, 100 * n) if table["table"] == "item" else (0, 500 * n)
        return first

    page = open_page(cluster.page, stub=answer)
    page.wait_for_function("() => document.querySelector('[data-method] [data-cell=p99] .main').textContent !== '–'")
    row = "[data-method='Data/Pull']"
    assert cell(page, row, "p50").inner_text() == f"1.00{SPACE}ms"
    assert cell(page, row, "p99").inner_text() == f"10.0{SPACE}ms"
    assert cell(page, row, "rate").inner_text() == "400"
    assert cell(page, row, "total", ".sub").inner_text().endswith("failed")
    assert cell(page, "[data-shard='1']", "requests").inner_text() == "200/s"
    assert cell(page, "[data-shard='1']", "p99").inner_text() == f"pull 10.0{SPACE}ms"
    # A table without a cache takes part in what was pulled, and not in how much of that was found.
    assert page.inner_text("[data-tile='pulled'] .value") == "1,500"
    assert page.inner_text("[data-tile='pull-hits'] .value") == percent(0.9)
    assert cell(page, "[data-table='item']", "rate").inner_text() == "1,000 pulled"
