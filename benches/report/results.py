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

    def begin(self, everything: bool) -> None:
        """Before anything is measured: figures of two machines do not stand together. Those of another are replaced by a run of
        everything, and nothing less is added to them."""
        if not self.all["steps"] or self.all.get("machine") == machine.machine():
            return
        if not everything:
            raise SystemExit(f"{self.path} is of another machine: run all steps, or give another --out")
        self.all = {"steps": {}}

    def add(self, name: str, result: dict[str, Any]) -> None:
        where = {"machine": machine.machine(), "versions": machine.versions()}
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
