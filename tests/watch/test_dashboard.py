"""Grafana can show the dashboard, and a real Prometheus has data for each of its queries."""

import itertools
import re
import subprocess
import sys

import pytest
import yaml

from files import DASHBOARD, GRAFANA, PROMETHEUS, SCRAPE, panels

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
QUERIES = [
    pytest.param(panel, target, id=f"{panel['id']} {panel['title']} {target['refId']}")
    for panel in panels()
    for target in panel["targets"]
]
ANNOTATIONS = [annotation for annotation in DASHBOARD["annotations"]["list"] if "expr" in annotation]


def test_it_is_what_the_script_writes():
    made = subprocess.run(
        [sys.executable, GRAFANA / "make_dashboard.py", "--print"], capture_output=True, text=True, check=True
    )
    assert made.stdout == (GRAFANA / "dashboards" / "hotrow.json").read_text(), "run deploy/grafana/make_dashboard.py"


def test_grafana_finds_it_and_prometheus():
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    scrape = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/hotrow.yaml").read_text())["providers"]
    assert provider["type"] == "file" and provider["options"]["path"]


def test_ids_are_unique():
    every = [*panels(), *(panel for panel in DASHBOARD["panels"] if panel["type"] == "row")]
    ids = [panel["id"] for panel in every]
    assert len(set(ids)) == len(ids)
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and DASHBOARD["title"]


def test_panels_do_not_overlap():
    groups = [DASHBOARD["panels"]] + [panel["panels"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    for group in groups:
        places = [panel["gridPos"] for panel in group]
        assert all(p["x"] >= 0 and p["w"] > 0 and p["h"] > 0 and p["x"] + p["w"] <= 24 for p in places)
        for a, b in itertools.combinations(places, 2):
            beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
            assert beside or below, (a, b)


@pytest.mark.parametrize("panel", list(panels()), ids=lambda panel: panel["title"])
def test_a_panel_explains_itself(panel):
    assert panel["title"] and panel["description"].endswith(".")
    assert panel["datasource"] == DATASOURCE
    assert panel["targets"] and all(target["datasource"] == DATASOURCE for target in panel["targets"])
    letters = [target["refId"] for target in panel["targets"]]
    assert len(set(letters)) == len(letters)
    assert panel["fieldConfig"]["defaults"]["unit"]
    if panel["type"] == "timeseries":
        assert all(target["legendFormat"] for target in panel["targets"])


def test_variables_are_defined_and_used():
    text = repr(DASHBOARD["panels"]) + repr([variable["query"] for variable in VARIABLES.values()])
    used = set(re.findall(r"\$\{?([a-z]\w*)", text))
    assert used == set(VARIABLES)


@pytest.fixture(scope="session")
def chosen(watched):
    """The values that Grafana offers for each variable, found with the variable's own query; all of them are chosen."""
    found = {}
    for name, variable in VARIABLES.items():
        if variable["type"] == "query":
            assert variable["datasource"] == DATASOURCE
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()
            selector = filled_in(selector, found)
            watched.query(selector)
            found[name] = watched.prometheus.api(f"label/{label}/values", **{"match[]": selector})
    return found


def filled_in(expr, chosen):
    """As Grafana fills in variables: values as regular expressions, and a time that holds some scrapes."""
    for name, values in chosen.items():
        escaped = [re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value) for value in values]
        text = escaped[0] if len(escaped) == 1 else "(" + "|".join(escaped) + ")"
        expr = re.sub(rf"\${name}\b", lambda _: text, expr)
    # An hour on a panel of some hundred pixels has a point every five seconds.
    expr = expr.replace("$__rate_interval", f"{max(5 + SCRAPE, 4 * SCRAPE)}s")
    assert "$" not in expr, expr
    return expr


def test_variables_have_the_values_that_there_are(watched, chosen):
    assert chosen["job"] == ["hotrow"]
    assert chosen["cluster"] == ["hotrow"]
    assert chosen["shard"] == sorted(watched.http)
    assert chosen["table"] == ["item", "small"]


@pytest.mark.parametrize("panel, target", QUERIES)
def test_a_query_has_data(watched, chosen, panel, target):
    values = [value for _, value in watched.query(filled_in(target["expr"], chosen))]
    defaults = panel["fieldConfig"]["defaults"]
    assert all(value >= defaults.get("min", value) for value in values), values
    assert all(value <= defaults.get("max", value) for value in values), values


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda annotation: annotation["name"])
def test_an_annotation_has_data(watched, chosen, annotation):
    assert len(watched.query(filled_in(annotation["expr"], chosen))) == 2


def test_legends_name_labels_that_there_are(watched, chosen):
    for panel in panels():
        for target in panel["targets"]:
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            if named:
                for labels, _ in watched.query(filled_in(target["expr"], chosen)):
                    assert named <= set(labels), (panel["title"], labels)
