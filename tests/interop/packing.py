"""Numbers as they travel: packed little-endian bytes. Written from proto/ and docs/NUMERICS.md with NumPy alone."""

import numpy as np


def keys(numbers):
    return np.asarray(numbers, "<u8").tobytes()


offsets = keys


def sizes(numbers):
    return np.asarray(numbers, "<u4").tobytes()


def f32(numbers):
    return np.asarray(numbers, "<f4").tobytes()


def f16(numbers):
    return np.asarray(numbers, "<f4").astype("<f2").tobytes()


def bf16(numbers):
    return to_bf16(np.asarray(numbers, "<f4")).tobytes()


def to_bf16(numbers):
    """The upper half of each f32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(numbers, "<f4").view("<u4").astype("u8")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def from_bf16(halves):
    return (np.asarray(halves).astype("<u4") << 16).view("<f4")


def to_int8(rows):
    """For each row a bf16 scale and signed bytes: the smallest scale that holds the row, codes rounded half to even."""
    largest = np.abs(rows).max(axis=1)
    scale_bits = ((largest / np.float32(127)).view("<u4").astype("u8") + 0xFFFF >> 16).astype("<u2")
    while (short := largest > np.float32(127) * from_bf16(scale_bits)).any():
        scale_bits = scale_bits + short.astype("<u2")
    scales = from_bf16(scale_bits)[:, None]
    codes = np.rint(np.divide(rows, scales, out=np.zeros_like(rows), where=scales != 0)).astype("i1")
    return scale_bits, codes


def rows_from(form, data, dim):
    """The rows in `data`, as f32."""
    if form == "f32":
        return np.frombuffer(data, "<f4").reshape(-1, dim)
    if form == "f16":
        return np.frombuffer(data, "<f2").astype("<f4").reshape(-1, dim)
    if form == "bf16":
        return from_bf16(np.frombuffer(data, "<u2")).reshape(-1, dim)
    assert form == "int8"
    packed = np.frombuffer(data, np.dtype([("scale", "<u2"), ("codes", "i1", (dim,))]))
    return packed["codes"].astype("<f4") * from_bf16(packed["scale"])[:, None]


def mix64(keys):
    """What spreads the keys of hashed tables over partitions."""
    x = np.asarray(keys, "u8")
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)
