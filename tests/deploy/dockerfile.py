"""A Dockerfile as its stages and instructions: as much of the format as ours uses."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Instruction:
    name: str
    flags: dict[str, str]
    text: str

    def words(self) -> list[str]:
        """The exec form, or words as they stand."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


@dataclass
class Stage:
    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]


def parse(path: Path) -> dict[str, Stage]:
    """The stages by name, in the order of the file."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        name, rest = line.split(maxsplit=1)
        flags = {}
        while match := re.match(r"--([a-z-]+)=(\S+)\s+", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        if name == "FROM":
            base, _, stage = rest.split()
            stages[stage] = Stage(stage, base)
        else:
            list(stages.values())[-1].instructions.append(Instruction(name, flags, rest))
    return stages


def environment(stage: Stage) -> dict[str, str]:
    """What a stage sets for whatever runs in it."""
    pairs = [word.split("=", 1) for instruction in stage.all("ENV") for word in instruction.words()]
    return {name: value for name, value in pairs}
