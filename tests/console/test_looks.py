"""Light and dark, wide and narrow: everything can be read, and nothing sticks out."""

import copy
import itertools
import json

import pytest

from numbers_for_people import count

PHONE = {"width": 375, "height": 812}
SIZES = [PHONE, {"width": 768, "height": 1024}, {"width": 1024, "height": 768}, {"width": 1440, "height": 900}]
CURVE = [0.62, 0.71, 0.79, 0.86, 0.91]

# Every piece of text with its colour and what is behind it, layer by layer.
CONTRASTS = """() => {
    const parse = text => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
    const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
    const light = ([r, g, b]) => {
        const part = x => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4;
        return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
    };
    const behind = element => {
        const layers = [];
        for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
        return layers.reverse().reduce((under, top) => over(top, under), [255, 255, 255, 1]);
    };
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
        const element = node.parentElement;
        if (!node.textContent.trim() || element.closest('script, style, noscript')) continue;
        if (!element.checkVisibility()) continue;
        const style = getComputedStyle(element);
        const back = behind(element);
        const front = over(parse(element.closest('svg') ? style.fill : style.color), back);
        const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
        found.push([(a + 0.05) / (b + 0.05), node.textContent.trim().slice(0, 40), element.className.toString()]);
    }
    return found;
}"""

OVERHANG = """() => [...document.querySelectorAll('body *')].filter(e => e.checkVisibility())
    .filter(e => {
        const r = e.getBoundingClientRect();
        return r.width > 1 && (r.right > innerWidth + 0.5 || r.left < -0.5);
    })
    .map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`)"""


@pytest.fixture(scope="module")
def everything(cluster):
    """An answer with all that the page can show: each state, a curve, alarms, and a name as long as names may be."""
    answer = cluster.status()
    item = answer["tables"][0]
    slots = item["cache_slots"]
    item["curve"] = [{"rows": round(slots * 2 ** (i - 2)), "hit_rate": rate} for i, rate in enumerate(CURVE)]
    longest = copy.deepcopy(item)
    longest["table"] = "a/very-long.name_" + "x" * 238
    answer["tables"].append(longest)
    shard = answer["shards"][1]
    for number, state in enumerate(["ready", "draining", "recovering"], 2):
        other = copy.deepcopy(shard)
        other.update(shard=number, state=state, address="a-long-host-name.with-a-domain.example.internal:7700")
        other["status"]["log"]["full"] = state == "ready"
        other["status"]["shed"] = 12
        other["status"]["checkpoint"]["failures"] = 3
        other["memory_used"] = other["memory_budget"] - 1
        other["status"]["methods"][0]["failed"] = 5
        answer["shards"].append(other)
    reason = "no answer in 1 s: recovering, or busy"
    answer["shards"].append({"shard": 5, "address": "10.0.0.5:7700", "state": "silent", "reason": reason})
    reason = "Connection refused (os error 111)"
    answer["shards"].append({"shard": 6, "address": "10.0.0.6:7700", "state": "down", "reason": reason})
    return answer


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(cluster, open_page, everything, scheme):
    passed = itertools.count(1)

    def later():
        answer = copy.deepcopy(everything)
        milliseconds = 1000 * next(passed)
        answer["uptime_ms"] += milliseconds
        for shard in answer["shards"]:
            if "status" in shard:
                shard["status"]["uptime_ms"] += milliseconds
        return answer

    page = open_page(cluster.page, stub=later, color_scheme=scheme)
    page.wait_for_function("() => document.querySelector('[data-tile=pulled] .value').textContent !== '–'")
    found = page.evaluate(CONTRASTS)
    states = {text for _, text, kind in found if "pill" in kind}
    assert {"ready", "draining", "recovering", "no answer", "down", "log full", "live"} <= states
    assert any("today" in text for _, text, _ in found) and len(found) > 100
    assert [each for each in found if each[0] < 4.5] == []


def test_light_is_light_and_dark_is_dark(cluster, open_page):
    page = open_page(cluster.page, color_scheme="light")
    ground = "() => getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert min(light) > 200 and max(dark) < 50


@pytest.mark.parametrize("size", SIZES, ids=lambda size: size["width"])
def test_nothing_sticks_out(cluster, open_page, everything, size):
    for stub in (None, everything):
        page = open_page(cluster.page, stub=stub, viewport=size)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= size["width"]
        assert page.evaluate(OVERHANG) == []


def test_on_a_phone_every_number_has_its_name(cluster, open_page):
    page = open_page(cluster.page, viewport=PHONE, has_touch=True, is_mobile=True)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= PHONE["width"]
    label = "e => getComputedStyle(e, '::before').content"
    cells = page.locator("tbody td").all()
    assert len(cells) > 10
    for cell in cells:
        assert cell.evaluate(label) == json.dumps(cell.get_attribute("data-label"), ensure_ascii=False) != '""'


def test_it_can_be_heard(cluster, open_page, everything):
    """What a screen reader is told: names for pictures, heads for columns and rows."""
    for viewport in (SIZES[-1], PHONE):
        page = open_page(cluster.page, stub=everything, viewport=viewport)
        nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        by_id = {node["nodeId"]: node for node in nodes}

        def below(node, role):
            children = [by_id[child] for child in node.get("childIds", []) if child in by_id]
            found = [child for child in children if child.get("role", {}).get("value") == role]
            return found + [deeper for child in children for deeper in below(child, role)]

        name = lambda node: node.get("name", {}).get("value", "")
        pictures = below(nodes[0], "image")
        assert len(pictures) > 20 and all(map(name, pictures))
        tables = below(nodes[0], "table")
        assert [name(table).split()[0] for table in tables] == ["Shards", "Tables", "Latency"]
        for table in tables:
            first, *lines = below(table, "row")
            heads = len(below(first, "columnheader"))
            assert heads >= 6 and lines
            for line in lines:
                assert (len(below(line, "rowheader")), len(below(line, "cell"))) == (1, heads - 1)
        assert [name(each) for each in below(nodes[0], "heading")][:2] == ["hotrow", "Shards"]


def test_the_curve_is_drawn_and_says_it_in_words(cluster, open_page, everything):
    page = open_page(cluster.page, stub=everything)
    card = page.locator("[data-curve='item']")
    assert page.locator("#curves .curve").count() == 2, "one for each table that has a curve"
    words = "At half the cache 71.0 %, at twice 86.0 %, at four times 91.0 %"
    assert card.locator("p").inner_text().replace("\u00a0", " ") == words
    slots = count(everything["tables"][0]["cache_slots"])
    assert card.locator(".today-text").text_content() == f"today {slots} rows, 79.0\u00a0%"
    # Today's size is in the middle of five, on the line; and more cache is never less.
    place = lambda dot: tuple(float(dot.get_attribute(name)) for name in ("cx", "cy"))
    dots = list(map(place, card.locator(".predicted-dot").all()))
    assert place(card.locator(".today-dot")) == pytest.approx(dots[2], abs=0.1)
    assert len(dots) == 5 and dots == sorted(dots, key=lambda dot: (dot[0], -dot[1]))
    assert [round((150 - y) / 128, 2) for _, y in dots] == CURVE


def test_without_a_curve_there_is_no_empty_picture(cluster, open_page):
    answer = cluster.status()
    for table in answer["tables"]:
        table["curve"] = []
    assert open_page(cluster.page, stub=answer).locator("#curves").is_hidden()
