"""docs/BENCHMARKS.md: tables between markers, in a page that is written by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from . import plots
from .lines import layer
from .results import Results
from .targets import LINES, Line

MARKED = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
SYSTEMS = {
    "systems-service": "Servers, one client, loopback",
    "systems-engine": "In process, one thread",
    "systems-codec": "Rows to int8 (push) and back (pull), one thread",
}


def write(page: Path, results: Results) -> None:
    """Replaces what is between the markers; all else stays as it is."""
    plotted = plots.draw(page.parent / "benchmarks", results.points())
    parts = {
        "machine": machine_part(results),
        "targets": targets_part(results),
        "systems": systems_part(results, plotted),
        "sweeps": sweeps_part(results, plotted),
        "ratios": ratios_part(results),
    }
    page.write_text(fill(page.read_text(), parts))


def fill(text: str, parts: dict[str, str]) -> str:
    """Every part has its place, and every place its part."""
    places = [name for _, name, _ in MARKED.findall(text)]
    if sorted(places) != sorted(parts):
        raise SystemExit(
            f"the page has places for {', '.join(places)}; there must be one for each of {', '.join(parts)}"
        )
    return MARKED.sub(lambda found: f"{found[1]}\n{parts[found[2]]}\n\n{found[3]}", text)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def machine_part(results: Results) -> str:
    facts = {**results.all.get("machine", {}), **results.all.get("versions", {}), **peers(results.points())}
    runs = []
    for name, step in results.steps().items():
        where = "" if step["folder"] == "." else f" (in `{step['folder']}/`)"
        state = f"**failed**: {step['failure']}" if step["failure"] else "done"
        runs.append(
            [
                name,
                f"`{step['command']}`{where}",
                step["date"],
                step["commit"],
                f"{step['seconds']} s",
                state + (", quick" if step["quick"] else ""),
            ]
        )
    whole = table(["", ""], [[name, value] for name, value in facts.items()])
    return whole + "\n\n" + table(["benchmark", "command", "begun", "hotrow at", "took", ""], runs)


def peers(points: list[dict[str, Any]]) -> dict[str, str]:
    """Their versions, as their workers say them."""
    found: dict[str, str] = {}
    for point in points:
        found.update(point.get("settings", {}).get("versions", {}))
    return {name: version for name, version in sorted(found.items()) if name != "hotrow"}


def targets_part(results: Results) -> str:
    ratios = results.ratios()
    wanted = {name: line for name, line in LINES.items() if line.target is not None}
    met = sum(1 for name, line in wanted.items() if name in ratios and line.met(ratios[name]["value"]))
    rows = [ratio_row(name, ratios.get(name), line) for name, line in wanted.items()]
    return f"{met} of {len(wanted)} met.\n\n" + table(HEAD, rows)


def ratios_part(results: Results) -> str:
    rest = {name: ratio for name, ratio in results.ratios().items() if LINES.get(name, Line("")).target is None}
    rows = [ratio_row(name, ratio, LINES.get(name, Line("what its benchmark says"))) for name, ratio in rest.items()]
    return table(HEAD, rows)


HEAD = ["layer", "ratio", "measured", "to", "median of", "target", ""]


def ratio_row(name: str, ratio: dict[str, Any] | None, line: Line) -> list[str]:
    target = "" if line.target is None else f"{line.sense} {line.target:g}"
    if ratio is None:
        return [layer(name), f"`{name}`", "", line.limit, "", target, "**not measured**"]
    verdict = {None: "", True: "met", False: "**missed**"}[line.met(ratio["value"])]
    repetitions = str(ratio["repetitions"] or "")
    return [ratio["layer"], f"`{name}`", f"{ratio['value']:.2f}", line.limit, repetitions, target, verdict]


def systems_part(results: Results, plotted: dict[str, str]) -> str:
    text = []
    for sweep, title in SYSTEMS.items():
        points = [point for point in results.points() if point["sweep"] == sweep]
        if not points:
            continue
        by_name: dict[str, dict[str, dict[str, Any]]] = {}
        for point in points:
            by_name.setdefault(point["x"], {})[point["what"]] = point
        rows = []
        for name, done in by_name.items():
            any_point = next(iter(done.values()))
            cells = [any_point["layer"], name]
            for what in ("pull", "push"):
                cells += [rate(done.get(what)), share(done.get(what))]
            rows.append([*cells, any_point["settings"]["settings"]])
        text += [f"### {title}", "", f"![{title}](benchmarks/{plotted[sweep]})", ""]
        text += [
            table(["layer", "system", "pull Mrows/s", "of the limit", "push Mrows/s", "of the limit", "how"], rows),
            "",
        ]
    return "\n".join(text).rstrip()


def sweeps_part(results: Results, plotted: dict[str, str]) -> str:
    text = []
    sweeps: dict[str, list[dict[str, Any]]] = {}
    for point in results.points():
        if point["sweep"] not in SYSTEMS:
            sweeps.setdefault(point["sweep"], []).append(point)
    for sweep, points in sweeps.items():
        rows = []
        for point in points:
            cost = f"{1e9 / point['rows_per_s']:.1f}"
            x = plots.number(point["x"])
            rows.append([point["layer"], point["what"], x, rate(point), cost, limit(point), share(point)])
        text += [f"### {sweep.capitalize()}", "", f"![{plots.title(sweep)}](benchmarks/{plotted[sweep]})", ""]
        text += [common(points), ""]
        head = ["layer", "what", sweep, "Mrows/s", "ns a row", "limit, Mrows/s", "of the limit"]
        text += [table(head, rows), ""]
    return "\n".join(text).rstrip()


def common(points: list[dict[str, Any]]) -> str:
    """The settings that are the same for all points of a sweep."""
    first = points[0].get("settings", {})
    same = {name: first[name] for name in first if all(point["settings"].get(name) == first[name] for point in points)}
    words = ", ".join(f"{name.replace('_', ' ')} {plots.number(value)}" for name, value in same.items())
    return words[:1].upper() + words[1:]


def rate(point: dict[str, Any] | None) -> str:
    return f"{point['rows_per_s'] / 1e6:.2f}" if point else ""


def limit(point: dict[str, Any]) -> str:
    return f"{point['limit_rows_per_s'] / 1e6:.2f}" if point.get("limit_rows_per_s") else ""


def share(point: dict[str, Any] | None) -> str:
    if not point or not point.get("limit_rows_per_s"):
        return ""
    return f"{point['rows_per_s'] / point['limit_rows_per_s']:.2f}"
