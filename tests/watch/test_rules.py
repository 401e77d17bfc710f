"""Prometheus's own tool takes the rules and their tests; each alert says what whoever is woken by it needs; each rule has data."""

import re
import subprocess
import time

import pytest
import yaml

from files import ALERTS, OPERATIONS, PROMETHEUS, RECORDS, RULES, TESTS
from process import PATIENCE

EXPECTED = [
    (test, case)
    for file in TESTS
    for test in yaml.safe_load(file.read_text())["tests"]
    for case in test["promql_expr_test"]
]


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr


def test_promtool_takes_configuration_and_rules():
    code, said = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert code == 0, said
    code, said = promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert code == 0 and "1 rule files found" in said, said


def test_promtool_runs_the_tests_of_the_rules():
    code, said = promtool("test", "rules", *TESTS)
    assert code == 0, said
    assert said.count("SUCCESS") == len(TESTS)


def test_promtool_would_speak_up(tmp_path):
    # An alert with another limit: the check above can fail.
    (tmp_path / "rules").mkdir()
    (tmp_path / "tests").mkdir()
    rules = RULES[0].read_text()
    assert "device_memory_used:ratio > 0.95" in rules
    (tmp_path / "rules" / "hotrow.yml").write_text(
        rules.replace("device_memory_used:ratio > 0.95", "device_memory_used:ratio > 0.93")
    )
    (tmp_path / "tests" / "memory.yml").write_text((PROMETHEUS / "tests" / "memory.yml").read_text())
    code, said = promtool("test", "rules", tmp_path / "tests" / "memory.yml")
    assert code != 0 and "HotrowDeviceMemoryNearBudget" in said


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_tested_both_ways(alert):
    cases = [case for test, case in EXPECTED if test["name"] == alert]
    silent = [case for case in cases if f'alertname="{alert}"' in case["expr"] and case["exp_samples"] == []]
    # All that fires is asked for, so that nothing else does.
    everything = [case for case in cases if case["expr"] == 'ALERTS{alertstate="firing"}']
    assert silent, f"no test says when {alert} does not fire"
    assert everything, f"no test says when {alert} fires"
    for case in everything:
        fired = {re.search(r'alertname="(\w+)"', sample["labels"])[1] for sample in case["exp_samples"]}
        assert fired == {alert}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_where_and_what_to_do(alert):
    rule = ALERTS[alert]
    assert re.fullmatch("Hotrow[A-Z][A-Za-z]+", alert)
    assert rule["labels"]["severity"] in ("warning", "critical")
    summary, description, link = (rule["annotations"][name] for name in ("summary", "description", "runbook_url"))
    if alert != "HotrowNoShards":
        assert "{{ $labels.instance }}" in summary or "{{ $labels.cluster }}" in summary
    if "_table" in rule["expr"]:
        assert "{{ $labels.table }}" in summary
    assert len(description) > 60 and description.endswith(".")
    page, anchor = link.split("#")
    assert page == "docs/OPERATIONS.md" and anchor == alert.lower()


def test_the_page_has_an_entry_for_each_alert_and_no_other():
    assert set(re.findall(r"^#+ (Hotrow\w+)$", OPERATIONS, re.M)) == set(ALERTS)


def test_links_of_the_page_lead_somewhere():
    code = re.compile(r"^```.*?^```", re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", code.sub("", OPERATIONS), re.M)
    # As GitHub makes anchors.
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    linked = set(re.findall(r"\]\(#([^)]+)\)", OPERATIONS)) | {alert.lower() for alert in ALERTS}
    assert linked - anchors == set()


def test_recording_rules_are_named_after_what_they_are():
    for name in RECORDS:
        assert re.fullmatch(r"(instance|job)(_[a-z]+)*:hotrow_[a-z_]+:[a-z0-9_]+", name), name


@pytest.mark.parametrize("record", RECORDS)
def test_a_recording_rule_has_data(watched, record):
    values = [value for _, value in watched.query(record)]
    if ":ratio" in record:
        assert all(0 <= value <= 1 for value in values), values


def test_every_rule_is_evaluated_without_an_error_and_nothing_fires(watched):
    deadline = time.monotonic() + PATIENCE
    while True:
        rules = [rule for group in watched.prometheus.api("rules")["groups"] for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in rules):
            break
        assert time.monotonic() < deadline, "a rule was not evaluated"
        time.sleep(0.5)
    assert {rule["name"] for rule in rules} == set(RECORDS) | set(ALERTS)
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
