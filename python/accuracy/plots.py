"""The plots, as SVG files that come out the same from the same results."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from .grid import F32, Line
from .statistics import interval, paired

COLOURS = {
    "f32": "#444444",
    "f16": "#7b5ea7",
    "bf16": "#7b5ea7",
    "int8": "#1f77b4",
    "int4": "#e07b00",
    "int2": "#c0392b",
}
Lines = dict[Line, dict[int, dict[str, Any]]]


def figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("svg")
    # Text stays text, and nothing random or dated gets into the file.
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "hotrow",
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    import matplotlib.pyplot as plt

    return plt.subplots(1, panels, figsize=(width, height), layout="constrained", squeeze=False)


def save(drawn: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, format="svg", metadata={"Date": None})
    plt.close(drawn)


def loss_against_bytes(path: Path, name: str, lines: Lines) -> None:
    """One point per line: how much smaller than f32, how much AUC it costs."""
    drawn, ((axes,),) = figure(8, 4.5)
    partners = {seed: result["auc"] for seed, result in lines.get(F32, {}).items()}
    beside: Counter[float] = Counter()
    for line, found in lines.items():
        difference = paired({seed: result["auc"] for seed, result in found.items()}, partners)
        one = next(iter(found.values()))
        if line.precision == "f32" or difference is None or not one["large_f32_bytes"]:
            continue
        marker = "o" if not line.cache else {"lru": "s", "lfu": "^"}[line.policy]
        # An interval of two seeds would hide everything else.
        error = difference.half if difference.count > 2 else None
        share = one["large_bytes"] / one["large_f32_bytes"]
        # Lines of the same size stand beside each other, and not on top.
        beside[round(share, 4)] += 1
        axes.errorbar(
            share * (1 + 0.006 * (beside[round(share, 4)] - 1)),
            difference.mean,
            yerr=error,
            marker=marker,
            color=COLOURS[line.precision],
            markerfacecolor=COLOURS[line.precision] if line.rounding == "stochastic" else "white",
            markersize=6,
            capsize=2,
        )
    for precision in sorted({line.precision for line in lines} - {"f32"}, key=list(COLOURS).index):
        axes.plot([], [], "o", color=COLOURS[precision], label=precision)
    axes.axhline(0, color="#444444", linewidth=1)
    axes.set_yscale("symlog", linthresh=0.001)  # int2 loses fifty times what int8 does
    axes.set_xlabel("bytes of the large tables, as a share of f32 with the same optimizer")
    axes.set_ylabel("AUC minus f32's of the same seed")
    axes.set_title(f"{name}: circle no cache, square lru, triangle lfu; filled stochastic, hollow nearest", fontsize=9)
    axes.legend(frameon=False)
    save(drawn, path)


def cache_size(path: Path, name: str, lines: Lines) -> bool:
    """Hit rate and write-backs per update against the size of the cache; false where there are too few sizes.

    Which rows are hot does not depend on the precision, so all lines of a policy and a size are one point.
    """
    points: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for line, found in lines.items():
        if line.precision != "f32" and not line.of_seen:
            for policy in [line.policy] if line.cache else ["lru", "lfu"]:
                points.setdefault((policy, line.cache), []).extend(found.values())
    if len({size for _, size in points}) < 3:
        return False
    drawn, ((left, right),) = figure(8, 3.4, panels=2)
    for policy, marker, colour in (("lru", "s", "#1f77b4"), ("lfu", "^", "#e07b00")):
        sizes = sorted(size for kind, size in points if kind == policy)
        for axes, figure_name, scale in ((left, "hit_rate", 100), (right, "write_backs_per_update", 1)):
            values = [
                interval([result[figure_name] or 0.0 for result in points[policy, size]]).mean * scale for size in sizes
            ]
            axes.plot(sizes, values, marker=marker, color=colour, label=policy)
    for axes, title in ((left, "hit rate of pulls, %"), (right, "write-backs per update")):
        axes.set_xlabel("cache, % of the rows")
        axes.set_title(f"{name}: {title}", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    save(drawn, path)
    return True
