"""The plots, as SVG files that come out the same from the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLES = {
    "rows": "rows of the table",
    "dim": "dim",
    "batch": "unique keys of a request",
    "clients": "clients",
    "precision": "precision of the table",
    "cache": "cache, % of the rows",
    "zipf": "exponent of the Zipf draw",
    "wire": "rows on the wire",
    "shards": "shards",
    "transport": "transport",
    "log": "log",
}
COLOURS = {"pull": "#1f77b4", "push": "#e07b00"}
MARKERS = {"engine": "o", "service": "s", "Python": "^"}
Points = list[dict[str, Any]]


def draw(folder: Path, points: Points) -> dict[str, str]:
    """One plot for each sweep; its file's name by the sweep's."""
    found: dict[str, Points] = {}
    for point in points:
        found.setdefault(point["sweep"], []).append(point)
    names = {}
    for sweep, of_sweep in found.items():
        names[sweep] = f"{sweep}.svg"
        (systems if sweep.startswith("systems-") else cost)(folder / names[sweep], sweep, of_sweep)
    return names


def title(sweep: str) -> str:
    return f"Cost per row against {TITLES.get(sweep, sweep)}"


def number(value: Any) -> str:
    """As people write it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"
    return str(value)


def cost(path: Path, sweep: str, points: Points) -> None:
    """Nanoseconds a row, hotrow's and its limit's."""
    drawn, axes = figure(7, 3.6)
    values = list(dict.fromkeys(point["x"] for point in points))
    numbers = all(isinstance(value, (int, float)) for value in values)
    series: dict[tuple[str, str], Points] = {}
    for point in points:
        series.setdefault((point["layer"], point["what"]), []).append(point)
    costs = []
    for (layer, what), of_line in series.items():
        xs = [point["x"] if numbers else values.index(point["x"]) for point in of_line]
        look = {"color": COLOURS.get(what, "#444444"), "marker": MARKERS.get(layer, "o"), "markersize": 5}
        look |= {"linestyle": "-" if numbers else ""}  # nothing lies between two names
        ours = [1e9 / point["rows_per_s"] for point in of_line]
        axes.plot(xs, ours, label=f"{layer}, {what}", **look)
        limits = [(x, 1e9 / point["limit_rows_per_s"]) for x, point in zip(xs, of_line) if "limit_rows_per_s" in point]
        if limits:
            look |= {"markerfacecolor": "white", "linestyle": "--" if numbers else "", "linewidth": 1}
            axes.plot(*zip(*limits), label=f"{layer}, {what}: limit", **look)
        costs += [*ours, *(limit for _, limit in limits)]
    if numbers and wide(values):
        axes.set_xscale("log")
    axes.set_xticks(values if numbers else range(len(values)), list(map(number, values)))
    axes.minorticks_off()
    if wide(costs, 20):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(TITLES.get(sweep, sweep))
    axes.set_ylabel("ns a row")
    axes.set_title(title(sweep), fontsize=9)
    axes.legend(frameon=False, fontsize=8, bbox_to_anchor=(1, 1), loc="upper left")  # never on the points
    save(drawn, path)


def wide(values: list[float], factor: float = 8) -> bool:
    """Whether a linear axis would press most of them together."""
    return min(values) > 0 and max(values) >= factor * min(values)


def systems(path: Path, sweep: str, points: Points) -> None:
    """Bars, the first system at the top."""
    names = list(dict.fromkeys(point["x"] for point in points))
    drawn, axes = figure(7, 0.8 + 0.42 * len(names))
    for shift, what in ((0.2, "pull"), (-0.2, "push")):
        of_what = {point["x"]: point["rows_per_s"] / 1e6 for point in points if point["what"] == what}
        places = [len(names) - 1 - names.index(name) + shift for name in of_what]
        axes.barh(places, list(of_what.values()), height=0.38, color=COLOURS[what], label=what)
        for place, value in zip(places, of_what.values()):
            axes.annotate(f"{value:.2f}", (value, place), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(names)), names[::-1])
    axes.set_xlabel("Mrows/s")
    axes.grid(axis="y", visible=False)
    axes.legend(frameon=False, fontsize=8, loc="best")
    save(drawn, path)


def figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    # Text stays text, and nothing random or dated gets into the file.
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "hotrow",
            "font.size": 9,
            "axes.grid": True,
            "axes.axisbelow": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")


def save(drawn: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, format="svg", metadata={"Date": None})
    plt.close(drawn)
