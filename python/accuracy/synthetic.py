"""Made-up clicks at Criteo-Kaggle's scale: its 26 cardinalities, a skew like its own, and a model that is known.

* **Ids.** A column with n values draws ranks from a power law, P(rank) proportional to rank^-1.05, cut off at n (the
  inverse of the continuous distribution's integral, rounded down). In a table of ten million rows, one in a hundred
  rows gets about four in five of the accesses. Ranks are spread over the table by a multiplication modulo n, so that
  hot rows are not neighbours.
* **Labels.** A factorization machine: each id has a weight and a vector of four numbers. They are computed from the id
  by hashing and never stored, so the 33.8 million rows cost nothing here. The label is drawn from the logistic of
  bias + weights + dot products + a linear term in the logarithms of the integers.
* The large tables (at dim 16, those of 16,384 rows and more) get most of the strength: the study is about them.

The data are the same for every seed of the study; a seed changes the split, the order and the initial values.
"""

from __future__ import annotations

from math import gcd
from pathlib import Path

import numpy as np

import criteo

CARDINALITIES = [
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
]  # fmt: skip
NAMES = [f"C{column + 1}" for column in range(len(CARDINALITIES))]
EXPONENT = 1.05
VECTOR = 4
LARGE_ROWS = 16_384
VERSION = 1  # part of the kept file's name: raise it when anything here changes


def load(samples: int, cache_dir: Path | None = None) -> criteo.Clicks:
    """The first `samples` samples, made once and then kept."""
    kept = (cache_dir or criteo.default_cache_dir()) / f"synthetic-v{VERSION}-{samples}.npz"
    if not kept.exists():
        criteo.save(kept, generate(samples))
    return criteo.read(kept)


def generate(samples: int, seed: int = 20101130) -> criteo.Clicks:
    rng = np.random.default_rng(seed)
    integers = np.floor(rng.lognormal(1.5, 1.2, (samples, criteo.INTEGERS))).astype(np.float32)
    integers = np.log1p(integers)
    ids = np.empty((samples, len(CARDINALITIES)), np.int64)
    logits = (integers - integers.mean(0)) @ rng.normal(0, 0.1, criteo.INTEGERS)
    vectors = np.zeros((samples, VECTOR))
    squares = np.zeros(samples)
    for column, rows in enumerate(CARDINALITIES):
        ids[:, column] = spread(power_law(rng.random(samples), rows), rows)
        strength = 1.0 if rows >= LARGE_ROWS else 0.25
        planted = strength * normals(ids[:, column], column, 1 + VECTOR)
        logits += 0.5 * planted[:, 0]
        vectors += 0.35 * planted[:, 1:]
        squares += (0.35**2 * planted[:, 1:] ** 2).sum(1)
    # All pairs at once: the sum over c < d of <v_c, v_d> is half of |sum v|^2 - sum |v|^2.
    logits += 0.5 * ((vectors**2).sum(1) - squares)
    logits -= np.quantile(logits, 0.75)  # about a quarter of the labels positive, as in Criteo
    labels = (rng.random(samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return criteo.Clicks(labels, integers, ids, NAMES, CARDINALITIES)


def power_law(uniform: np.ndarray, rows: int) -> np.ndarray:
    """Ranks 0..rows, the smaller the likelier."""
    power = 1 - EXPONENT
    top = (rows + 1.0) ** power
    return np.minimum(np.floor((1 - uniform * (1 - top)) ** (1 / power)).astype(np.int64) - 1, rows - 1)


def spread(ranks: np.ndarray, rows: int) -> np.ndarray:
    """A fixed one-to-one map of 0..rows onto itself."""
    factor = next(f for f in range(max(1, int(rows * 0.6180339887)), 2 * rows + 2) if gcd(f, rows) == 1)
    return ranks * factor % rows


def normals(ids: np.ndarray, column: int, count: int) -> np.ndarray:
    """`count` standard normal numbers per id that depend on id and column alone."""
    with np.errstate(over="ignore"):
        base = mix(ids.astype(np.uint64) + np.uint64((column + 1) << 40))
        words = mix(base[:, None] + np.arange(2 * count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.sqrt(-2 * np.log(uniform[:, :count])) * np.cos(2 * np.pi * uniform[:, count:])


def mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
