"""What is run: lines (a setting of the paper's four knobs) times seeds, in the order of their worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator

PRECISIONS = [
    "f16",
    "int8",
    "int4",
    "int2",
]  # beside f32, which has no other knob: its tables have no cache and are never rounded
CACHES = [0.0, 1.0, 5.0, 10.0]
ROUNDINGS = ["stochastic", "nearest"]
POLICIES = ["lru", "lfu"]
CLAIM_SEEDS, GRID_SEEDS = 5, 2


@dataclass(frozen=True)
class Line:
    """One setting. `cache` is a percentage of the rows."""

    precision: str
    cache: float = 0.0
    rounding: str = "stochastic"
    policy: str = "lru"
    quantizer: str | None = None  # None: the server's default
    freeze: bool = False  # the large tables are not trained
    of_seen: bool = False  # the cache is a percentage of the rows that occur in the data, and not of all
    state_precision: str = "f32"  # of the optimizer's state

    @property
    def name(self) -> str:
        if self.freeze:
            return "large tables not trained"
        if self.precision == "f32":
            return "f32"
        words = [self.precision]
        if self.quantizer:
            words.append(self.quantizer)
        words.append(self.rounding)
        # Without a cache there is nothing for a policy to do.
        words.append(
            "no cache" if not self.cache else f"{self.cache:g} %{' of seen' if self.of_seen else ''} {self.policy}"
        )
        if self.state_precision != "f32":
            words.append(f"{self.state_precision} state")
        return ", ".join(words)

    @property
    def key(self) -> str:
        """A name that never changes, for the results file."""
        bf16 = self.state_precision == "bf16"
        extra = [word for word, there in (("frozen", self.freeze), ("of-seen", self.of_seen), ("bf16-state", bf16)) if there]
        return "/".join(
            [self.precision, f"{self.cache:g}%", self.rounding, self.policy, self.quantizer or "default", *extra]
        )


F32 = Line("f32")
FROZEN = Line("f32", freeze=True)
# What must lose: rounding to nearest at every update stalls training. Data that do not show it cannot show "no loss".
CONTROL = Line("int4", 0, rounding="nearest")

FLIGHTS_CLAIMS = [
    F32,
    FROZEN,
    Line("int8", 5, policy="lru"),
    Line("int8", 5, policy="lfu"),
    Line("int4", 5, policy="lfu"),
    CONTROL,
    Line("int4", 0),
    Line("int8", 0),
    Line("int8", 0, rounding="nearest"),
    Line("int8", 5, rounding="nearest", policy="lru"),
    Line("int8", 5, rounding="nearest", policy="lfu"),
    Line("int4", 1, policy="lfu"),
    Line("int4", 10, policy="lfu"),
    Line("int4", 1, policy="lru"),
    Line("int4", 5, policy="lru"),
    Line("int4", 10, policy="lru"),
    Line("int4", 5, rounding="nearest", policy="lfu"),
    Line("int4", 5, policy="lfu", quantizer="symmetric"),
    Line("int2", 5, policy="lfu"),
    Line("int4", 1, policy="lfu", quantizer="symmetric"),
    Line("int4", 1, policy="lfu", state_precision="bf16"),
    Line("int4", 5, policy="lfu", state_precision="bf16"),
    Line("int4", 0, quantizer="symmetric"),
    Line("int8", 5, policy="lru", quantizer="affine"),
]

# Separate tables: fewer lines.
TABLES_CLAIMS = [
    *FLIGHTS_CLAIMS[:6],
    Line("int4", 1, policy="lfu"),
    Line("int4", 1, policy="lfu", quantizer="symmetric"),
    Line("int4", 1, policy="lfu", state_precision="bf16"),
]

SYNTHETIC_CLAIMS = [
    F32,
    FROZEN,
    Line("int8", 5, policy="lfu"),
    Line("int4", 1, policy="lfu"),
    CONTROL,
    Line("int8", 5, policy="lru"),
    Line("int4", 5, policy="lfu"),
    Line("int8", 5, policy="lru", of_seen=True),
    Line("int4", 5, policy="lru", of_seen=True),
    Line("int4", 5, policy="lfu", of_seen=True),
]


@dataclass(frozen=True)
class Run:
    """One line with one seed on one data set."""

    data: str
    line: Line
    seed: int

    @property
    def key(self) -> str:
        return f"{self.data}:{self.line.key}:{self.seed}"


def full_grid() -> Iterator[Line]:
    """All combinations; where there is no cache, policies are the same."""
    for precision in PRECISIONS:
        for cache in CACHES:
            for rounding in ROUNDINGS:
                for policy in POLICIES if cache else POLICIES[:1]:
                    yield Line(precision, cache, rounding, policy)


def claims(data: str, lines: list[Line], seeds: int = CLAIM_SEEDS) -> list[Run]:
    """Seed by seed, so that every line has a partner from the start."""
    return [Run(data, line, seed) for seed in range(seeds) for line in lines]


def rest(data: str) -> list[Run]:
    """The grid's lines that no claim is made about, with fewer seeds."""
    return [Run(data, line, seed) for seed in range(GRID_SEEDS) for line in full_grid() if line not in FLIGHTS_CLAIMS]
