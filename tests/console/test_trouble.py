"""Shards that come and go, a server that is gone, a page that nobody looks at, a cluster without tables."""

from playwright.sync_api import expect

from shards import Cluster

GONE = ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET", "ERR_INCOMPLETE_CHUNKED_ENCODING"]


def test_no_tables_yet(tmp_path, open_page):
    cluster = Cluster(tmp_path, shards=1)
    page = open_page(cluster.page)
    expect(page.locator("#empty")).to_contain_text("No tables yet")
    command = page.inner_text("#empty code")
    words = command.split()
    assert words[:3] == ["hotrow", "table", "create"] and words[-2:] == ["--endpoint", cluster.shards[0].address]
    cluster.run(*words[1:-2])
    expect(page.locator("[data-table='item']")).to_be_visible()
    expect(page.locator("#empty")).to_be_hidden()
    cluster.end()


def test_a_shard_that_is_killed_is_down_until_it_is_back(cluster, open_page):
    page = open_page(cluster.page)
    state = page.locator("[data-shard='1'] .pill")
    expect(state).to_have_text("ready")
    cluster.shards[1].kill()
    expect(state).to_have_text("down")
    expect(page.locator("[data-shard='1']")).to_contain_text("refused")
    expect(page.locator("[data-tile='shards'] .figure")).to_have_text("1 of 2 ready")
    expect(page.locator("#without")).to_have_text("without shard 1, which does not answer")
    expect(page).to_have_title("(!) ranking · hotrow")
    rows = page.locator("[data-table='item'] [data-cell='rows'] .main")
    left = cluster.shards[0].metrics()[("hotrow_rows", ("state", "all"), ("table", "item"))]
    expect(rows).to_have_attribute("title", f"{left:,.0f}")
    cluster.shards[1].start()
    expect(state).to_have_text("ready")
    expect(rows).to_have_attribute("title", "200,000")
    expect(page.locator("#without")).to_be_empty()


def test_a_server_that_is_gone_is_said_and_waited_for(cluster, open_page):
    page = open_page(cluster.page, allow=GONE)
    page.evaluate("window.stillHere = true")
    cluster.shards[0].kill()
    expect(page.locator("#link")).to_have_text("not reachable")
    expect(page.locator("#notice")).to_contain_text("Not reachable since ")
    expect(page.locator("[data-table='item']")).to_be_visible()
    cluster.shards[0].start()
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#notice")).to_be_hidden()
    # Counts start again from zero, and no rate comes out of that.
    expect(page.locator("[data-tile='pulled'] .value")).to_have_text("0")
    assert page.evaluate("window.stillHere")


def test_a_server_that_recovers_says_how_far_it_is(cluster, open_page):
    answer = cluster.status()
    answer["readiness"] = "recovering: 12 changes applied, 3000 of 9000 bytes of the log read"
    page = open_page(cluster.page, stub=answer)
    expect(page.locator("#notice")).to_have_text(f"Shard 0 is {answer['readiness']}")


def test_a_page_that_nobody_sees_asks_nothing(cluster, open_page):
    page = open_page(cluster.page)
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    expect(page.locator("#link")).to_have_text("paused")
    page.wait_for_timeout(500)
    asked = len(page.requested)
    page.wait_for_timeout(2500)
    assert len(page.requested) == asked
    page.evaluate(hide, False)
    expect(page.locator("#link")).to_have_text("live")
    assert len(page.requested) > asked
