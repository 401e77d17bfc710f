#!/usr/bin/env python3
"""Writes dashboards/hotrow.json. A panel's place, id and data source follow from where it stands here.

deploy/grafana/make_dashboard.py            # writes the file
deploy/grafana/make_dashboard.py --print    # prints what it would be
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parent / "dashboards" / "hotrow.json"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# What a query selects: the shards that are chosen, and the tables that are.
SHARDS = 'job=~"$job", instance=~"$shard"'
TABLES = SHARDS + ', table=~"$table"'
# More of it: alone, or on a stream.
PULLS = ', method=~"Data/(Stream[.])?Pull"'
OF_PULLS, OF_PUSHES = ', op="pull"', ', op="push"'

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"


def rate(metric, selector, more=""):
    """Per second; Grafana chooses the time so that it holds some scrapes."""
    return f"rate({metric}{{{selector}{more}}}[$__rate_interval])"


def hit_rate(op, by):
    """The share of looked-up keys that were in the cache; absent where nothing was looked up, or there is no cache."""
    part = rate("hotrow_cache_lookups_total", TABLES, f', op="{op}", result="hit"')
    whole = rate("hotrow_cache_lookups_total", TABLES, f', op="{op}"')
    # A table without a cache only misses: that is no hit rate.
    cached = f"and on (job, instance, table) hotrow_cache_slots{{{TABLES}}} > 0"
    by = f" by ({by})" if by else ""
    return f"sum{by} ({part} {cached}) / (sum{by} ({whole} {cached}) > 0)"


def quantile(q, by, selector):
    """A quantile of the time that requests take; absent where there are none."""
    buckets = rate("hotrow_rpc_duration_seconds_bucket", selector)
    by = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({by}) ({buckets})) >= 0"


def target(expr, legend="", **more):
    return {"expr": expr, "legendFormat": legend, **more}


def thresholds(*steps):
    """Colours from values on; the first has no value."""
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def panel(
    kind,
    title,
    targets,
    width,
    height,
    description,
    *,
    unit="short",
    defaults=None,
    overrides=None,
    options=None,
    **more,
):
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "range": kind not in ("stat", "table", "bargauge"),
            **t,
        }
        for i, t in enumerate(targets)
    ]
    for t in targets:
        t["instant"] = not t["range"]
    return {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": unit, **(defaults or {})}, "overrides": overrides or []},
        "options": options or {},
        "gridPos": {"w": width, "h": height},
        **more,
    }


def stat(title, targets, description, *, unit="short", steps=((None, BLUE),), decimals=None, graph=False, **defaults):
    defaults |= {"thresholds": thresholds(*steps), "color": {"mode": "thresholds"}, "noValue": "-"}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area" if graph else "none",
        "textMode": "auto",
        "justifyMode": "center",
        "orientation": "auto",
    }
    if graph:
        targets = [{**t, "range": True} for t in targets]
    return panel("stat", title, targets, 4, 4, description, unit=unit, defaults=defaults, options=options)


def graph(
    title,
    targets,
    description,
    *,
    unit="short",
    width=8,
    minimum=0,
    maximum=None,
    stacked=False,
    steps=None,
    overrides=None,
    soft_maximum=None,
):
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "axisPlacement": "auto",
        "thresholdsStyle": {"mode": "line" if steps else "off"},
    }
    if soft_maximum is not None:
        custom["axisSoftMax"] = soft_maximum
    defaults = {
        "custom": custom,
        "color": {"mode": "palette-classic"},
        "min": minimum,
        "thresholds": thresholds(*(steps or [(None, GREEN)])),
    }
    if maximum is not None:
        defaults["max"] = maximum
    options = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["mean", "max", "lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel(
        "timeseries",
        title,
        targets,
        width,
        8,
        description,
        unit=unit,
        defaults=defaults,
        options=options,
        overrides=overrides,
    )


def dashed(name):
    """A limit, drawn as one."""
    properties = {
        "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
        "custom.fillOpacity": 0,
        "custom.stacking": {"mode": "none"},
        "color": {"mode": "fixed", "fixedColor": RED},
    }
    return {
        "matcher": {"id": "byRegexp", "options": f"/{name}/"},
        "properties": [{"id": k, "value": v} for k, v in properties.items()],
    }


def table(title, columns, by, description, width=24):
    """One line for each value of `by`; a column for each (name, expr, unit)."""
    targets = [target(expr, format="table") for _, expr, _ in columns]
    names = {f"Value #{chr(ord('A') + i)}": name for i, (name, _, _) in enumerate(columns)}
    if len(columns) == 1:
        names = {"Value": columns[0][0]}
    units = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]}
        for name, _, unit in columns
    ]
    transformations = [
        {"id": "merge", "options": {}},
        {
            "id": "organize",
            "options": {
                "excludeByName": {"Time": True},
                "renameByName": names,
                "indexByName": {label: i for i, label in enumerate(by)},
            },
        },
    ]
    made = panel("table", title, targets, width, 7, description, overrides=units, transformations=transformations)
    made["options"] = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": by[0], "desc": False}]}
    made["fieldConfig"]["defaults"]["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": False}
    return made


def overview():
    age = (
        f"time() - (hotrow_checkpoint_last_timestamp_seconds{{{SHARDS}}} > 0"
        f" or process_start_time_seconds{{{SHARDS}}} and hotrow_checkpoint_interval_seconds{{{SHARDS}}} > 0)"
    )
    return [
        stat(
            "Shards ready",
            [
                target(f"sum(hotrow_ready{{{SHARDS}}})", "ready"),
                target(
                    "sum(max by (cluster) ("
                    f"hotrow_shards{{{SHARDS}}} * on (job, instance) group_left (cluster) hotrow_build_info{{{SHARDS}}}))",
                    "configured",
                ),
            ],
            "Shards that take requests, and shards that there are as they are configured. Less: one is down, "
            "recovers or drains.",
            decimals=0,
        ),
        stat(
            "Alerts firing",
            [target(f'count(ALERTS{{alertname=~"Hotrow.*", alertstate="firing", job=~"$job"}}) or vector(0)')],
            "Of the rules in deploy/prometheus/rules. docs/OPERATIONS.md, Alerts, says what each means.",
            steps=((None, GREEN), (1, RED)),
            decimals=0,
        ),
        stat(
            "Rows pulled",
            [target(f"sum({rate('hotrow_cache_lookups_total', TABLES, OF_PULLS)})")],
            "Keys of pulls per second, as sent, over all shards.",
            unit="si:rows/s",
            graph=True,
        ),
        stat(
            "Rows pushed",
            [target(f"sum({rate('hotrow_cache_lookups_total', TABLES, OF_PUSHES)})")],
            "Keys of pushes per second, as sent, over all shards.",
            unit="si:rows/s",
            graph=True,
        ),
        stat(
            "Hit rate, pulls",
            [target(hit_rate("pull", ""))],
            "Of tables with a cache: the share of pulled keys that were in it.",
            unit="percentunit",
            steps=((None, RED), (0.5, YELLOW), (0.8, GREEN)),
            decimals=1,
            graph=True,
        ),
        stat(
            "Hit rate, pushes",
            [target(hit_rate("push", ""))],
            "Of tables with a cache: the share of pushed keys that were in it. What is not was rounded before, and "
            "will be again.",
            unit="percentunit",
            steps=((None, RED), (0.5, YELLOW), (0.8, GREEN)),
            decimals=1,
            graph=True,
        ),
        stat(
            "Pulls, 99th percentile",
            [target(quantile(0.99, "", SHARDS + PULLS))],
            "From a pull's arrival to its answer, over all shards.",
            unit="s",
            steps=((None, GREEN), (0.1, YELLOW), (0.25, RED)),
            graph=True,
        ),
        stat(
            "Memory of tables",
            [target(f"sum(hotrow_memory_used_bytes{{{SHARDS}}})")],
            "Bytes that the tables of all shards have taken.",
            unit="bytes",
            graph=True,
        ),
        stat(
            "Fullest memory budget",
            [target(f"max(hotrow_memory_used_bytes{{{SHARDS}}} / (hotrow_memory_budget_bytes{{{SHARDS}}} > 0))")],
            "Of the shard that is nearest to its budget (engine.memory). At 100 % new keys and tables are refused. "
            "Without a budget there is nothing here.",
            unit="percentunit",
            steps=((None, GREEN), (0.9, YELLOW), (0.99, RED)),
            decimals=1,
        ),
        stat(
            "Shed",
            [target(f"sum({rate('hotrow_rpc_shed_total', SHARDS)})")],
            "Requests per second that were refused because too many were under way. Clients try them again.",
            unit="reqps",
            steps=((None, GREEN), (0.1, YELLOW), (10, RED)),
        ),
        stat(
            "Oldest checkpoint",
            [target(f"max({age})")],
            "Since the last checkpoint of the shard that was saved longest ago; since its start where it has none yet.",
            unit="s",
            steps=((None, GREEN),),
        ),
        stat(
            "Log waiting",
            [target(f"max(hotrow_log_waiting_bytes{{{SHARDS}}})")],
            "Bytes that wait to be written, on the shard with most. From 64 MiB on pushes wait for the disk.",
            unit="bytes",
            steps=((None, GREEN), (32 << 20, YELLOW), (64 << 20, RED)),
        ),
        graph(
            "Rows per second",
            [target(f"sum by (op) ({rate('hotrow_cache_lookups_total', TABLES)})", "{{op}}")],
            "Keys as sent, by operation, over all shards and tables.",
            unit="si:rows/s",
            width=12,
        ),
        graph(
            "Rows per second, by shard",
            [target(f"sum by (instance) ({rate('hotrow_cache_lookups_total', TABLES)})", "{{instance}}")],
            "All operations. Shards have about as many partitions each: one that has much more to do has the popular"
            " keys.",
            unit="si:rows/s",
            width=12,
        ),
    ]


def tables():
    write_backs = rate("hotrow_write_backs_total", TABLES)
    updates = rate("hotrow_updated_rows_total", TABLES)
    cached = f"and on (job, instance, table) hotrow_cache_slots{{{TABLES}}} > 0"
    return [
        graph(
            "Hit rate of pulls",
            [target(hit_rate("pull", "table"), "{{table}}")],
            "The share of pulled keys that were in the cache, over the chosen shards. A pull changes nothing in the "
            "cache. Tables without a cache are left out.",
            unit="percentunit",
            maximum=1,
        ),
        graph(
            "Hit rate of pushes",
            [target(hit_rate("push", "table"), "{{table}}")],
            "The share of pushed keys that were in the cache: what decides how often a row is rounded.",
            unit="percentunit",
            maximum=1,
        ),
        graph(
            "Write-backs per update",
            [
                target(
                    f"sum by (table) ({write_backs} {cached}) / (sum by (table) ({updates} {cached}) > 0)", "{{table}}"
                )
            ],
            "How often a row is rounded for each time that it is stepped: what predicts the noise of rounding. Near "
            "1 the cache does not help.",
            unit="none",
            soft_maximum=1,
        ),
        graph(
            "Rounding error",
            [target(f"max by (table) (hotrow_rounding_error_rms{{{TABLES}}})", "{{table}}")],
            "Root of the mean squared rounding error of a weight, over a sample; of the shard with most. If it "
            "grows, weights grow: look at the loss.",
            unit="sci",
        ),
        graph(
            "Evictions",
            [target(f"sum by (table, kind) ({rate('hotrow_cache_evictions_total', TABLES)})", "{{table}}, {{kind}}")],
            "Rows that left the cache: clean ones are dropped, dirty ones are rounded and written back.",
            unit="si:rows/s",
        ),
        graph(
            "Conflicts",
            [target(f"sum by (table) ({rate('hotrow_cache_conflicts_total', TABLES)})", "{{table}}")],
            "Rows that were stepped in place because the cache had no way for them: right, but rounded at once. Many"
            " mean that the cache is small for the batches.",
            unit="si:rows/s",
        ),
        graph(
            "Cache in use",
            [
                target(
                    f'sum by (table) (hotrow_rows{{{TABLES}, state="cached"}})'
                    f" / (sum by (table) (hotrow_cache_slots{{{TABLES}}}) > 0)",
                    "{{table}}",
                )
            ],
            "Rows in the cache of those that fit. Full is as it should be; one that does not fill is larger than "
            "what is trained.",
            unit="percentunit",
            maximum=1,
        ),
        graph(
            "Updated rows",
            [target(f"sum by (table) ({updates})", "{{table}}")],
            "Rows that pushes stepped: each distinct key of a push once.",
            unit="si:rows/s",
        ),
        graph(
            "Rows that exist",
            [target(f'sum by (table) (hotrow_rows{{{TABLES}, state="all"}})', "{{table}}")],
            "All rows of dense tables, the keys present in hashed ones.",
        ),
        panel(
            "bargauge",
            "Hit rate if the cache were ... times as large",
            [target(f"avg by (table, size) (hotrow_cache_predicted_hit_ratio{{{TABLES}}})", "{{table}} x {{size}}")],
            16,
            9,
            "What the miss-ratio curve of each table predicts for pushes, at a quarter, a half, twice and four times "
            "today's cache. Where the bars are level, a larger cache is wasted.",
            unit="percentunit",
            defaults={
                "min": 0,
                "max": 1,
                "decimals": 1,
                "color": {"mode": "continuous-RdYlGr"},
                "thresholds": thresholds((None, GREEN)),
            },
            options={
                "orientation": "horizontal",
                "displayMode": "basic",
                "valueMode": "color",
                "showUnfilled": True,
                "minVizHeight": 14,
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            },
        ),
        graph(
            "Keys sampled for the prediction",
            [target(f"sum by (table) (hotrow_cache_sampled_keys{{{TABLES}}})", "{{table}}")],
            "The more, the closer the prediction.",
        )
        | {"gridPos": {"w": 8, "h": 9}},
        table(
            "Tables",
            [
                ("rows", f'sum by (table) (hotrow_rows{{{TABLES}, state="all"}})', "short"),
                ("stored", f'sum by (table) (hotrow_rows{{{TABLES}, state="stored"}})', "short"),
                ("cached", f'sum by (table) (hotrow_rows{{{TABLES}, state="cached"}})', "short"),
                ("cache slots", f"sum by (table) (hotrow_cache_slots{{{TABLES}}})", "short"),
                ("bytes", f"sum by (table) (hotrow_table_bytes{{{TABLES}}})", "bytes"),
                ("hit rate of pulls", hit_rate("pull", "table"), "percentunit"),
                ("hit rate of pushes", hit_rate("push", "table"), "percentunit"),
                (
                    "write-backs per update",
                    f"sum by (table) ({write_backs}) / (sum by (table) ({updates}) > 0)",
                    "none",
                ),
            ],
            ["table"],
            "As they are now, over the chosen shards.",
        ),
    ]


def requests():
    data = ', method=~"Data/.*"'
    return [
        graph(
            "Requests",
            [target(f"sum by (method) ({rate('hotrow_rpc_requests_total', SHARDS)}) > 0", "{{method}}")],
            "Answered requests per second, refused ones included. Messages on a stream are Data/Stream.Pull and "
            "Data/Stream.Push.",
            unit="reqps",
        ),
        graph(
            "Median time",
            [target(quantile(0.5, "method", SHARDS), "{{method}}")],
            "From a request's arrival to its answer, without sending it. Half of the requests take less.",
            unit="s",
        ),
        graph(
            "99th percentile",
            [target(quantile(0.99, "method", SHARDS), "{{method}}")],
            "From a request's arrival to its answer, without sending it. One in a hundred takes longer.",
            unit="s",
        ),
        panel(
            "heatmap",
            "Times of pulls",
            [
                target(
                    f"sum by (le) (increase(hotrow_rpc_duration_seconds_bucket{{{SHARDS}{PULLS}}}[$__rate_interval]))",
                    "{{le}}",
                    format="heatmap",
                )
            ],
            8,
            8,
            "How many pulls took how long.",
            unit="s",
            options={
                "calculate": False,
                "yAxis": {"unit": "s", "axisPlacement": "left"},
                "color": {"mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "steps": 64, "fill": "dark-orange"},
                "cellGap": 1,
                "filterValues": {"le": 1e-9},
                "tooltip": {"show": True, "yHistogram": False},
                "legend": {"show": True},
                "rowsFrame": {"layout": "auto"},
            },
        ),
        graph(
            "99th percentile of pulls, by shard",
            [target(quantile(0.99, "instance", SHARDS + PULLS), "{{instance}}")],
            "A trainer waits for the slowest shard.",
            unit="s",
        ),
        graph(
            "Answers by code",
            [target(f"sum by (code) ({rate('hotrow_rpc_requests_total', SHARDS, data)})", "{{code}}")],
            "Of Data. What each code means, and what to do, is in docs/OPERATIONS.md.",
            unit="reqps",
            overrides=[
                {
                    "matcher": {"id": "byName", "options": "OK"},
                    "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": GREEN}}],
                }
            ],
        ),
        graph(
            "Shed",
            [target(f"sum by (instance) ({rate('hotrow_rpc_shed_total', SHARDS)})", "{{instance}}")],
            "Calls and streams that were refused because too many were under way.",
            unit="reqps",
        ),
        graph(
            "In flight",
            [
                target(f"hotrow_rpc_in_flight{{{SHARDS}}}", "{{instance}}"),
                target(f"min(hotrow_rpc_in_flight_limit{{{SHARDS}}})", "limit"),
            ],
            "Requests under way, as of each scrape, and how many there may be (server.max_in_flight).",
            overrides=[dashed("^limit$")],
        ),
        graph(
            "Open clients",
            [target(f"hotrow_open_clients{{{SHARDS}}}", "{{instance}}")],
            "Clients whose pushes are remembered. Those that were not closed are forgotten after "
            "server.client_idle_seconds.",
        ),
    ]


def memory():
    return [
        graph(
            "Memory by tier",
            [target(f"sum by (tier) (hotrow_table_bytes{{{TABLES}}})", "{{tier}}")],
            "Bytes set aside: rows with their index, cache, and the cache's directory. The cache is on the GPU where"
            " there is one.",
            unit="bytes",
            stacked=True,
        ),
        graph(
            "Memory by table",
            [target(f"sum by (table) (hotrow_table_bytes{{{TABLES}}})", "{{table}}")],
            "All tiers, over the chosen shards.",
            unit="bytes",
            stacked=True,
        ),
        graph(
            "Memory against the budget",
            [
                target(f"hotrow_memory_used_bytes{{{SHARDS}}}", "{{instance}}"),
                target(f"hotrow_memory_budget_bytes{{{SHARDS}}} > 0", "budget of {{instance}}"),
            ],
            "What tables have taken, and what they may take (engine.memory). Shards without a budget show none.",
            unit="bytes",
            overrides=[dashed("^budget of")],
        ),
    ]


def log():
    return [
        graph(
            "Appended",
            [target(f"sum by (instance) ({rate('hotrow_log_appended_bytes_total', SHARDS)})", "{{instance}}")],
            "Bytes written to the log per second.",
            unit="Bps",
        ),
        graph(
            "Waiting to be written",
            [target(f"hotrow_log_waiting_bytes{{{SHARDS}}}", "{{instance}}")],
            "The disk is behind where this grows. From 64 MiB on pushes wait, at 1 GiB they are refused.",
            unit="bytes",
        ),
        graph(
            "Changes not yet synced",
            [target(f"hotrow_log_unsynced_changes{{{SHARDS}}}", "{{instance}}")],
            "What a loss of power would take. With sync = always nothing of it was acknowledged.",
        ),
        graph(
            "Syncs",
            [target(f"sum by (instance) ({rate('hotrow_log_syncs_total', SHARDS)})", "{{instance}}")],
            "Syncs per second. One serves all changes that wait.",
            unit="ops",
        ),
        graph(
            "Changes per group",
            [
                target(
                    f"sum by (instance) ({rate('hotrow_changes_total', SHARDS)}) / (sum by (instance) "
                    f"({rate('hotrow_log_groups_total', SHARDS)}) > 0)",
                    "{{instance}}",
                )
            ],
            "How many changes one write to the log has: more under more load.",
            unit="none",
        ),
        graph(
            "Size on disk",
            [target(f"hotrow_log_bytes{{{SHARDS}}}", "{{instance}}")],
            "A checkpoint lets go of what it covers; without any, the log only grows, and a start replays all of it.",
            unit="bytes",
        ),
        stat(
            "Disk full",
            [target(f"max(hotrow_log_full{{{SHARDS}}})")],
            "Whether a log's disk is full, so that changes are refused.",
            steps=((None, GREEN), (1, RED)),
            mappings=[
                {"type": "value", "options": {"0": {"text": "no", "index": 0}, "1": {"text": "yes", "index": 1}}}
            ],
        ),
        stat(
            "Cut off at the start",
            [target(f"sum(hotrow_log_cut_bytes{{{SHARDS}}})")],
            "Bytes of a last group that was never whole, because power went while it was written.",
            unit="bytes",
            steps=((None, GREEN), (1, YELLOW)),
        ),
        stat(
            "Shards with a log",
            [target(f"count(hotrow_log_info{{{SHARDS}}})"), target(f"count(hotrow_build_info{{{SHARDS}}})", "of")],
            "A shard without a log that ends loses what is in no checkpoint.",
            decimals=0,
        ),
    ]


def checkpoints():
    return [
        graph(
            "Age",
            [
                target(f"time() - (hotrow_checkpoint_last_timestamp_seconds{{{SHARDS}}} > 0)", "{{instance}}"),
                target(f"max(hotrow_checkpoint_interval_seconds{{{SHARDS}}} > 0)", "interval"),
            ],
            "Since the last checkpoint that has the shard, and how often one is made (checkpoint.interval_seconds). "
            "Before the first since its start there is none.",
            unit="s",
            width=6,
            overrides=[dashed("^interval$")],
        ),
        graph(
            "Size",
            [target(f"hotrow_checkpoint_last_bytes{{{SHARDS}}}", "{{instance}}")],
            "Of each shard's last part. Small ones hold only what changed.",
            unit="bytes",
            width=6,
        ),
        graph(
            "Time that it took",
            [target(f"hotrow_checkpoint_last_seconds{{{SHARDS}}}", "{{instance}}")],
            "Of each shard's last part. Pulls and pushes go on meanwhile.",
            unit="s",
            width=6,
        ),
        graph(
            "Failures within an hour",
            [target(f"increase(hotrow_checkpoint_failures_total{{{SHARDS}}}[1h])", "{{instance}}")],
            "Checkpoints, or parts of them, that came to nothing. The log of the shard that was asked says why.",
            width=6,
            steps=[(None, GREEN), (1, RED)],
        ),
        table(
            "Last checkpoints",
            [
                ("checkpoint", f"max by (instance) (hotrow_checkpoint_last{{{SHARDS}}})", "none"),
                (
                    "made",
                    f"max by (instance) (hotrow_checkpoint_last_timestamp_seconds{{{SHARDS}}} > 0) * 1000",
                    "dateTimeFromNow",
                ),
                ("bytes", f"max by (instance) (hotrow_checkpoint_last_bytes{{{SHARDS}}})", "bytes"),
                ("took", f"max by (instance) (hotrow_checkpoint_last_seconds{{{SHARDS}}})", "s"),
            ],
            ["instance"],
            "The number of the last checkpoint that has each shard.",
        ),
    ]


def gpu():
    return [
        graph(
            "Hot rows on the GPU",
            [
                target(f"hotrow_device_memory_used_bytes{{{SHARDS}}}", "{{instance}}"),
                target(f"hotrow_device_memory_budget_bytes{{{SHARDS}}}", "budget of {{instance}}"),
            ],
            "What they take, and what they may take (cache.device_memory).",
            unit="bytes",
            width=6,
            overrides=[dashed("^budget of")],
        ),
        graph(
            "Kernels at work",
            [target(f"sum by (operation) ({rate('hotrow_device_kernel_seconds_total', SHARDS)})", "{{operation}}")],
            "Seconds of the GPU's time per second, by operation; over the chosen shards.",
            unit="percentunit",
            stacked=True,
            width=6,
        ),
        graph(
            "Kernels given",
            [target(f"sum by (operation) ({rate('hotrow_device_kernels_total', SHARDS)})", "{{operation}}")],
            "Per second, by operation.",
            unit="ops",
            width=6,
        ),
        graph(
            "Copied",
            [
                target(
                    f"sum by (instance, direction) ({rate('hotrow_device_transferred_bytes_total', SHARDS)})",
                    "{{instance}}, {{direction}}",
                )
            ],
            "Bytes per second to the GPU (up) and from it (down).",
            unit="Bps",
            width=6,
        ),
    ]


def process():
    return [
        graph(
            "Processor",
            [target(rate("process_cpu_seconds_total", SHARDS), "{{instance}}")],
            "Cores in use.",
            unit="none",
            width=6,
        ),
        graph(
            "Resident memory",
            [target(f"process_resident_memory_bytes{{{SHARDS}}}", "{{instance}}")],
            "Below the tables' bytes as long as rows are untrained.",
            unit="bytes",
            width=6,
        ),
        graph(
            "Open files and connections",
            [
                target(f"process_open_fds{{{SHARDS}}}", "{{instance}}"),
                target(f"min(process_max_fds{{{SHARDS}}})", "limit"),
            ],
            "Keep the limit above server.max_connections.",
            width=6,
            overrides=[dashed("^limit$")],
        ),
        graph(
            "Up since",
            [target(f"time() - process_start_time_seconds{{{SHARDS}}}", "{{instance}}")],
            "A line that falls is a restart. Without a log or a checkpoint, rows are gone then.",
            unit="s",
            width=6,
        ),
        table(
            "Shards",
            [
                (
                    "partitions",
                    "sum by (instance, cluster, shard, version, simd, topology, seed)"
                    f" (hotrow_build_info{{{SHARDS}}}"
                    f" * on (job, instance) group_left () hotrow_owned_partitions{{{SHARDS}}})",
                    "none",
                ),
            ],
            ["instance", "cluster", "shard", "version", "simd", "topology", "seed"],
            "What runs where. Topology and seed must be the same on all shards of a cluster.",
            width=16,
        ),
        table(
            "Where hot rows are",
            [("shards", f"count by (instance, pool, device, name) (hotrow_pool_info{{{SHARDS}}})", "none")],
            ["instance", "pool", "device", "name"],
            "In host memory, or on which GPU.",
            width=8,
        ),
    ]


ROWS = [
    ("Overview", overview, False),
    ("Tables", tables, False),
    ("Requests", requests, False),
    ("Memory", memory, False),
    ("Log", log, False),
    ("Checkpoints", checkpoints, False),
    ("Process", process, False),
    # Only where there is one.
    ("GPU", gpu, True),
]


def placed(panels, y):
    """Gives panels their places, from left to right, and the first line below them."""
    x = height = 0
    for made in panels:
        if x + made["gridPos"]["w"] > 24:
            x, y, height = 0, y + height, 0
        made["gridPos"] |= {"x": x, "y": y}
        x += made["gridPos"]["w"]
        height = max(height, made["gridPos"]["h"])
    return y + height


def variable(name, label, query, **more):
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        # When the time range changes: shards come and go.
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "hide": 0,
        "skipUrlSync": False,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        **more,
    }


def dashboard():
    several = {"multi": True, "includeAll": True, "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    panels, y, number = [], 0, 0
    for title, make, collapsed in ROWS:
        inside = make()
        row = {
            "type": "row",
            "title": title,
            "collapsed": collapsed,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        }
        end = placed(inside, y + 1)
        for made in [row, *inside]:
            number += 1
            made["id"] = number
        if collapsed:
            row["panels"] = inside
            panels.append(row)
            y += 1
        else:
            panels += [row, *inside]
            y = end
    return {
        "uid": "hotrow",
        "title": "hotrow",
        "description": "Shards and tables of a hotrow cluster. Made by deploy/grafana/make_dashboard.py.",
        "tags": ["hotrow"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "timepicker": {},
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                    "regex": "",
                    "hide": 0,
                    "skipUrlSync": False,
                    "multi": False,
                    "includeAll": False,
                    "current": {},
                    "options": [],
                },
                variable("job", "Job", "label_values(hotrow_build_info, job)"),
                variable("cluster", "Cluster", 'label_values(hotrow_build_info{job=~"$job"}, cluster)'),
                variable(
                    "shard",
                    "Shard",
                    'label_values(hotrow_build_info{job=~"$job", cluster=~"$cluster"}, instance)',
                    **several,
                ),
                variable("table", "Table", f"label_values(hotrow_rows{{{SHARDS}}}, table)", **several),
            ]
        },
        "annotations": {
            "list": [
                {
                    "builtIn": 1,
                    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
                    "enable": True,
                    "hide": True,
                    "iconColor": "rgba(0, 211, 255, 1)",
                    "name": "Annotations & Alerts",
                    "type": "dashboard",
                },
                {
                    "datasource": DATASOURCE,
                    "enable": True,
                    "hide": False,
                    "iconColor": RED,
                    "name": "Starts",
                    "expr": f"process_start_time_seconds{{{SHARDS}}} * 1000",
                    "step": "60s",
                    "titleFormat": "{{instance}} was started",
                    "textFormat": "",
                    "tagKeys": "instance",
                    "useValueForTime": True,
                },
            ]
        },
        "panels": panels,
    }


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(text())
    else:
        FILE.write_text(text())
