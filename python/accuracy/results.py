"""Finished runs, one JSON line each, appended as they finish: the study can be stopped and started at any time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Iterator

from .grid import Line, Run


class Results:
    """The file of one data set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.by_key: dict[str, dict[str, Any]] = {}
        if path.exists():
            for text in path.read_text().splitlines():
                # A line that was cut off when the study was killed is run again.
                if text.endswith("}"):
                    result = json.loads(text)
                    self.by_key[result["key"]] = result

    def check(self, fingerprint: dict[str, Any]) -> None:
        """Results of other settings must not stand in one table with these."""
        for result in self.by_key.values():
            if result["settings"] != fingerprint:
                raise SystemExit(
                    f"{self.path} has results of other settings: {result['settings']}, now {fingerprint}; "
                    "move it away, or give another --out"
                )

    def __contains__(self, run: Run) -> bool:
        return run.key in self.by_key

    def add(self, run: Run, fingerprint: dict[str, Any], figures: dict[str, Any]) -> None:
        rounded = {name: round(value, 8) if isinstance(value, float) else value for name, value in figures.items()}
        result = {"key": run.key, "seed": run.seed, **rounded, "line": asdict(run.line), "settings": fingerprint}
        self.by_key[run.key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(result) + "\n")

    def lines(self) -> Iterator[tuple[Line, dict[int, dict[str, Any]]]]:
        """Each line with its results by seed, in the order in which they were first run."""
        found: dict[Line, dict[int, dict[str, Any]]] = {}
        for result in self.by_key.values():
            found.setdefault(Line(**result["line"]), {})[result["seed"]] = result
        yield from found.items()
