"""What is under deploy/ and docs/: rules, their tests, the dashboard, and the names of metrics in all of them."""

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = sorted(PROMETHEUS.glob("rules/*.yml"))
TESTS = sorted(PROMETHEUS.glob("tests/*.yml"))
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "hotrow.json").read_text())
OPERATIONS = (ROOT / "docs" / "OPERATIONS.md").read_text()

# How often the tests' Prometheus scrapes, in seconds: one sees something soon.
SCRAPE = 1

_rules = [rule for file in RULES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
RECORDS = {rule["record"]: rule for rule in _rules if "record" in rule}
ALERTS = {rule["alert"]: rule for rule in _rules if "alert" in rule}


def panels():
    """All panels but rows, those of collapsed rows included."""
    for panel in DASHBOARD["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def metrics_in(text):
    """Names of metrics and of recording rules."""
    return set(re.findall(r"(?<![\w:/.-])(?:\w+:)?(?:hotrow|process)_[a-z0-9_]+(?::\w+)?", text))
