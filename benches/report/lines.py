"""What benchmarks print for this report: `ratio NAME VALUE`, `point {json}` and `# words`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

LAYERS = {"engine": "engine", "codec": "engine", "service": "service", "durability": "service", "python": "Python"}


@dataclass
class Printed:
    """By one benchmark. It is fed line by line, and passes over what is none of its business."""

    ratios: list[dict[str, Any]] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    # Of what, as the last note says, the following ratios are the medians.
    repetitions: int | None = None

    def feed(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "#":
            self.notes.append(rest)
            if found := re.search(r"\bmedians? of (\d+)", rest):
                self.repetitions = int(found[1])
        elif word == "ratio":
            name, value = rest.split()
            ratio = {"name": name, "value": float(value), "layer": layer(name), "repetitions": self.repetitions}
            self.ratios.append(ratio)
        elif word == "point":
            point = json.loads(rest)
            if missing := {"sweep", "layer", "what", "x", "rows_per_s"} - point.keys():
                raise ValueError(f"a point without {', '.join(sorted(missing))}: {line.strip()}")
            self.points.append(point)


def layer(name: str) -> str:
    """Which layer a ratio measures: the first word of its name says it."""
    first = name.partition(".")[0]
    if first not in LAYERS:
        raise ValueError(f"a ratio of no known layer: {name}; there are {', '.join(LAYERS)}")
    return LAYERS[first]
