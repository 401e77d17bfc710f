"""One browser and two shards for all tests; a page of its own for each."""

import pytest
from playwright.sync_api import expect

from browser import chromium
from shards import PATIENCE, Cluster

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Two shards with tables, a log, a checkpoint, and some training behind them."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), "--memory", "2GiB", "--cluster", "ranking")
    cluster.run("table", "create", "tiny", "--dim", "4", "--rows", "100")
    cluster.run("push", "tiny", "3", "14", "--fill", "0.1")
    cluster.load("item", 1, "--rows", "200000", "--dim", "16", "--batch", "2048").wait()
    cluster.run("checkpoint", "save")
    yield cluster
    cluster.end()


@pytest.fixture
def open_page(browser):
    """Opens pages, and looks at the end whether anything in them went wrong."""
    contexts, errors = [], []

    def open_page(address, stub=None, allow=(), **settings):
        """With `stub` the page gets this answer in place of the server's."""
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.answered = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("response", lambda response: page.answered.append(response.url))
        page.on("pageerror", lambda error: errors.append(str(error)))

        def said(message):
            if message.type in ("error", "warning") and not any(words in message.text for words in allow):
                errors.append(message.text)

        page.on("console", said)
        if stub is not None:
            page.route("**/api/status", lambda route: route.fulfill(json=stub() if callable(stub) else stub))
        page.goto(address)
        page.wait_for_selector("#link.good")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []
