"""The page loads with no request to anywhere but its server, and could make none."""

import re
from urllib.parse import urlsplit

from shards import ROOT, free_port

PAGE = (ROOT / "src" / "server" / "console.html").read_text()


def test_all_requests_go_to_the_server(cluster, open_page):
    page = open_page(cluster.page)
    page.wait_for_function("() => performance.getEntriesByType('resource').length > 3")
    assert {urlsplit(url)[:2] for url in page.requested if not url.startswith("data:")} == {urlsplit(cluster.page)[:2]}
    paths = [urlsplit(url).path for url in page.requested if not url.startswith("data:")]
    assert set(paths) == {"/", "/api/status"} and paths.count("/") == 1
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", PAGE), "no address of anybody else stands in it"


def test_the_browser_would_refuse_others(cluster, open_page):
    page = open_page(cluster.page, allow=["Content Security Policy", "Fetch API cannot load"])
    # Another origin that would answer: the other shard.
    other = f"http://{cluster.shards[1].http}/metrics"
    refused = page.evaluate(
        """async other => {
            const refused = [];
            document.addEventListener('securitypolicyviolation', event => refused.push(event.effectiveDirective));
            await fetch(other).catch(() => {});
            document.body.append(Object.assign(new Image(), { src: other }));
            const script = document.createElement('script');
            script.textContent = 'window.injected = 1';
            document.body.append(script);
            document.body.insertAdjacentHTML('beforeend', '<p style="color: red"></p><iframe src="/metrics"></iframe>');
            await new Promise(done => setTimeout(done, 300));
            return refused;
        }""",
        other,
    )
    expected = {"connect-src", "img-src", "script-src-elem", "style-src-attr", "frame-src"}
    assert set(refused) == expected
    assert page.evaluate("window.injected") is None
    assert other not in page.answered


def test_headers(cluster, open_page):
    page = open_page(cluster.page)
    policy = page.request.get(cluster.page).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "*" not in policy
    for path in ["", "api/status"]:
        headers = page.request.get(cluster.page + path).headers
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")


def test_whatever_names_say_is_text(cluster, open_page):
    bad = '<img src=x onerror="window.injected = 1"><b>name</b>'
    answer = cluster.status()
    answer["cluster"] = bad
    for table in answer["tables"]:
        table["table"] = bad + table["table"]
    answer["shards"][1] = {"shard": 1, "address": bad, "state": "down", "reason": bad}
    page = open_page(cluster.page, stub=answer)
    assert page.locator("main img, main b").count() == 0 and page.evaluate("window.injected") is None
    assert bad in page.inner_text("#about") and bad in page.inner_text("[data-shard='1']")


def test_nothing_listens_where_the_proxy_should_be(browser):
    # The browser of these tests reaches loopback only: the checks above can fail.
    page = browser.new_page()
    try:
        page.goto(f"http://hotrow.example:{free_port()}/")
    except Exception as error:
        assert "ERR_PROXY_CONNECTION_FAILED" in str(error)
    else:
        raise AssertionError("there is a way out")
    finally:
        page.close()
