"""docs/benchmarks/results.json: what the steps brought, each from its last run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import machine


class Results:
    """A step's results are replaced as a whole: what stands together was measured in one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"steps": {}}

    def add(self, name: str, result: dict[str, Any]) -> None:
        where = {"machine": machine.machine(), "versions": machine.versions()}
        if self.all["steps"] and self.all.get("machine") != where["machine"]:
            raise SystemExit(f"{self.path} is of another machine: move it away, or give another --out")
        self.all = {**where, "steps": {**self.all["steps"], name: result}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.all, indent=1) + "\n")

    def steps(self) -> dict[str, dict[str, Any]]:
        return dict(self.all["steps"])

    def ratios(self) -> dict[str, dict[str, Any]]:
        """By name. The last one counts where a step prints a name twice."""
        return {ratio["name"]: ratio for step in self.steps().values() for ratio in step["ratios"]}

    def points(self) -> list[dict[str, Any]]:
        return [point for step in self.steps().values() for point in step["points"]]
