"""Paired differences and their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

# Student's t, two-sided 95 %, by degrees of freedom. Ten seeds are more than anybody will run; no need for SciPy.
T95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its 95 % interval; the half-width is None for a single value."""

    mean: float
    half: float | None
    count: int


def interval(values: list[float]) -> Interval:
    """Student's t over the values."""
    if not values:
        raise ValueError("no values")
    mean = sum(values) / len(values)
    if len(values) == 1:
        return Interval(mean, None, 1)
    return Interval(mean, T95[min(len(values) - 2, len(T95) - 1)] * deviation(values) / sqrt(len(values)), len(values))


def deviation(values: list[float]) -> float:
    """The standard deviation of a sample (n - 1)."""
    mean = sum(values) / len(values)
    return sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def paired(values: dict[int, float], partners: dict[int, float]) -> Interval | None:
    """Of value minus partner, over the seeds that both have. None where there is no such seed."""
    seeds = sorted(values.keys() & partners.keys())
    return interval([values[seed] - partners[seed] for seed in seeds]) if seeds else None
