"""No metric in rules, dashboard or documents is missing from /metrics."""

import time

import pytest

from files import RECORDS, ROOT, metrics_in
from process import PATIENCE

# What looks like a metric and is none.
OTHER = {
    "hotrow_format",  # a key of safetensors' metadata
    "hotrow_default",  # the network of compose.yaml
}
FILES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *(path for path in ROOT.glob("deploy/**/*") if path.is_file() and path.suffix != ".pyc"),
]


@pytest.fixture(scope="session")
def known(watched):
    """All that shards serve, once rows are rounded and saved."""
    deadline = time.monotonic() + PATIENCE
    while not {"hotrow_rounding_error_rms", "hotrow_log_info"} <= (served := watched.served()):
        assert time.monotonic() < deadline, served
        time.sleep(0.5)
    return served


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_metric_named_here_exists(known, file):
    named = metrics_in(file.read_text())
    assert named - known - set(RECORDS) - OTHER == set()


def test_names_are_found():
    found = metrics_in(
        'rate(hotrow_rpc_shed_total{job="a"}[5m]) / instance:hotrow_x:ratio > `process_open_fds`, hotrow_a_bucket'
    )
    assert found == {"hotrow_rpc_shed_total", "instance:hotrow_x:ratio", "process_open_fds", "hotrow_a_bucket"}
