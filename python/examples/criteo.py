"""Click logs in the layout of Criteo-Kaggle's `train.txt`: label, 13 integers, 26 hex categoricals, tab separated.

Parsing is slow beside training, so what was parsed is kept as an .npz file in a cache folder.
"""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Iterator

import numpy as np

INTEGERS, CATEGORICALS = 13, 26
FIELDS = 1 + INTEGERS + CATEGORICALS
CHUNK_BYTES = 16 << 20


@dataclass
class Clicks:
    """Samples in memory. Column c of `ids` runs over 0..len(vocabulary[c])."""

    labels: np.ndarray  # (samples,) float32, 0 or 1
    integers: np.ndarray  # (samples, 13) float32, log(1 + max(x, 0))
    ids: np.ndarray  # (samples, columns) int64
    names: list[str]  # of the columns, C1 to C26
    cardinalities: list[int]
    vocabulary: list[np.ndarray] | None = None  # per column the hex number of each id; what --hashed uses as key

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Split:
    """Positions of the samples of each part."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split(samples: int, seed: int) -> Split:
    """80/10/10 at random. The order of `train` is the order of training."""
    order = np.random.default_rng(seed).permutation(samples)
    tenth = samples // 10
    return Split(order[2 * tenth :], order[:tenth], order[tenth : 2 * tenth])


def default_cache_dir() -> Path:
    """A hotrow folder in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotrow"


def load(path: Path, limit: int | None = None, cache_dir: Path | None = None) -> Clicks:
    """Reads a file (plain or .gz), or what an earlier call has kept of it."""
    path = path.resolve()
    status = path.stat()
    # Size and time are part of the name: a file that was replaced is read again.
    identity = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{limit}\0v1"
    kept = (cache_dir or default_cache_dir()) / f"{path.name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npz"
    if not kept.exists():
        labels, integers, raw = parse(path, limit)
        save(kept, number(labels, integers, raw))
    return read(kept)


def save(kept: Path, clicks: Clicks) -> None:
    """Writes beside the final name first, so that a file with that name is always whole."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f"{kept.name}.{os.getpid()}.partial.npz")
    columns = {f"vocabulary_{name}": values for name, values in zip(clicks.names, clicks.vocabulary or [])}
    np.savez(
        partial,
        labels=clicks.labels,
        integers=clicks.integers,
        ids=clicks.ids.astype(np.uint32),
        names=np.array(clicks.names),
        cardinalities=np.array(clicks.cardinalities),
        **columns,
    )
    partial.replace(kept)


def read(kept: Path) -> Clicks:
    """What `save` has written."""
    with np.load(kept) as file:
        names = [str(name) for name in file["names"]]
        vocabulary = [file[f"vocabulary_{name}"] for name in names if f"vocabulary_{name}" in file]
        return Clicks(
            file["labels"],
            file["integers"],
            file["ids"].astype(np.int64),
            names,
            [int(rows) for rows in file["cardinalities"]],
            vocabulary or None,
        )


def number(labels: np.ndarray, integers: np.ndarray, raw: np.ndarray) -> Clicks:
    """Maps the values of each column to 0..n-1. Columns with no value at all are left out."""
    used = [column for column in range(raw.shape[1]) if raw[:, column].any()]
    ids = np.empty((len(labels), len(used)), np.int64)
    vocabulary = []
    for place, column in enumerate(used):
        values, ids[:, place] = np.unique(raw[:, column], return_inverse=True)
        vocabulary.append(values)
    names = [f"C{column + 1}" for column in used]
    return Clicks(labels, integers, ids, names, [len(values) for values in vocabulary], vocabulary)


def parse(path: Path, limit: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, logarithms of the integers, and the categoricals as numbers (an empty one is 0, as in DLRM)."""
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    read_lines = 0
    opened: BinaryIO = gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")  # type: ignore[assignment]
    with opened as file:
        for text in whole_lines(file):
            if limit is not None:
                text = b"".join(text.splitlines(keepends=True)[: limit - read_lines])
            if text:
                parts.append(parse_lines(text, path, read_lines))
                read_lines += len(parts[-1][0])
            if limit is not None and read_lines >= limit:
                break
    if not parts:
        raise ValueError(f"{path} has no lines")
    labels, integers, raw = (np.concatenate(columns) for columns in zip(*parts))
    return labels, integers, raw


def whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in pieces that end where a line ends."""
    rest = b""
    while piece := file.read(CHUNK_BYTES):
        end = piece.rfind(b"\n") + 1
        if end:
            yield rest + piece[:end]
            rest = piece[end:]
        else:
            rest += piece
    if rest:
        yield rest


def parse_lines(text: bytes, path: Path, lines_before: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    text = text.replace(b"\r\n", b"\n").rstrip(b"\n") + b"\n"
    # All fields of the piece in one list: twenty times as fast as line by line.
    fields = text.replace(b"\n", b"\t").split(b"\t")[:-1]
    lines = text.count(b"\n")
    if len(fields) != lines * FIELDS:
        bad = next((n for n, line in enumerate(text.split(b"\n")[:-1]) if line.count(b"\t") != FIELDS - 1), 0)
        raise ValueError(f"{path}, line {lines_before + bad + 1}: not {FIELDS} fields separated by tabs")
    table = np.array(fields, dtype="S").reshape(lines, FIELDS)
    try:
        labels = table[:, 0].astype(np.float32)
        integers = table[:, 1 : 1 + INTEGERS]
        integers = np.where(integers == b"", b"0", integers).astype(np.float32)
        return labels, np.log1p(np.maximum(integers, 0)), hex_numbers(table[:, 1 + INTEGERS :])
    except ValueError as error:
        raise ValueError(f"{path}, lines {lines_before + 1} to {lines_before + lines}: {error}") from None


def hex_numbers(fields: np.ndarray) -> np.ndarray:
    """Hex digits to numbers, digit by digit over all fields at once."""
    digits = np.full(256, 255, np.uint8)
    for value, pair in enumerate(
        ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "aA", "bB", "cC", "dD", "eE", "fF"]
    ):
        digits[[ord(letter) for letter in pair]] = value
    letters = np.ascontiguousarray(fields).view(np.uint8).reshape(*fields.shape, fields.dtype.itemsize)
    if (letters[..., 8:] != 0).any() or (digits[letters[letters != 0]] == 255).any():
        raise ValueError("a categorical is not up to eight hex digits")
    numbers = np.zeros(fields.shape, np.uint32)
    for place in range(min(8, letters.shape[-1])):
        letter = letters[..., place]
        numbers = np.where(letter == 0, numbers, (numbers << np.uint32(4)) | digits[letter])
    return numbers
