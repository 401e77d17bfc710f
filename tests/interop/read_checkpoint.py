"""Reads one row out of a checkpoint in a folder. It needs what docs/CHECKPOINT.md and docs/NUMERICS.md say, and nothing else.

python read_checkpoint.py FOLDER NUMBER TABLE KEY
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import xxhash


def manifest(place, number):
    text = Path(place, f"{number:08}", "manifest.json").read_bytes()
    assert xxhash.xxh3_64_hexdigest(text[42:-2]) == text[13:29].decode(), "the manifest is damaged"
    return json.loads(text[42:-2])


def partition_of(key, partitions, dense):
    for shift, factor in [] if dense else [(30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)]:
        key = (key ^ key >> shift) * factor % 2**64
    return key % partitions if dense else key * partitions >> 64


def pieces(place, file, section):
    data, before, kind = Path(place, file["path"]).read_bytes()[section["offset"] :][: section["length"]], 0, 0
    while data:
        magic, kind, partition, _, size, chained, seal = struct.unpack("<4sIIIQQQ", data[:40])
        own = xxhash.xxh3_64_intdigest(data[:32] + data[40 : 40 + size])
        assert (magic, partition, chained, seal) == (b"HRC1", section["partition"], before, own), "a frame is damaged"
        piece, data, before = data[40 : 40 + size], data[40 + size :], seal
        yield kind, piece
    assert (kind, before) == (7, section["seal"]), "this is not what the manifest names"


def rows_of(piece):
    first, count, flags, keys = struct.unpack_from("<4I", piece)
    at = 16 + (count + 63) // 64 * 8 * (1 + (flags & 1))
    bits = np.unpackbits(np.frombuffer(piece[16:at], "u1"), bitorder="little").reshape(1 + (flags & 1), -1)
    named, rest = iter(np.frombuffer(piece, "<u8", keys, at).tolist()), piece[at + 8 * keys :]
    forms = iter(np.split(np.frombuffer(rest, "u1"), max(1, int(bits[-1].sum()))))
    for i in np.flatnonzero(bits[0] if flags & 1 else np.arange(bits.size) < count).tolist():
        yield first + i, (next(named, None), next(forms).tobytes() if bits[-1][i] else None)


def decode(spec, row):
    if spec["precision"] == "f32" or spec.get("rows", 2**62) * spec["dim"] * 4 < 1 << 20:
        return np.frombuffer(row, "<f4", spec["dim"])
    assert (spec["precision"], spec["quantizer"]) == ("int8", "symmetric"), "other precisions are left to the reader"
    return np.frombuffer(row, "i1", spec["dim"], 2) * (np.frombuffer(row, "<u2", 1).astype("<u4") << 16).view("<f4")


def read_row(place, number, name, key):
    """The row's weights as f32; None if it is untrained."""
    chain, rows, spec = [], {}, None
    while number is not None:
        m = manifest(place, number)
        spec = spec or next(t["spec"] for f in m["files"] for t in f["tables"] if t["spec"]["name"] == name)
        partition = partition_of(key, m["cluster"]["partitions"], "rows" in spec)
        chain[:0] = [(f, s) for f in m["files"] for s in f["sections"] if s["partition"] == partition]
        number = chain[0][0].get("base")
    born = {t["spec"]["name"]: t["born"] for t in chain[-1][0]["tables"]}[name]
    for file, section in chain:
        ours, tables, found = False, [(t["spec"]["name"], t["born"]) for t in file["tables"]], {kind: [] for kind in range(8)}
        for kind, piece in pieces(place, file, section):
            ours = tables[struct.unpack("<Q", piece)[0]] == (name, born) if kind == 2 else ours
            found[kind] += [piece] if ours else []
        rows.update(row for piece in found[3] for row in rows_of(piece))
    end, _, *free = np.frombuffer(found[4][0], "<u4").tolist()
    of_key = [row for row in rows if rows[row][0] == key and row < end and row not in free]
    row = key // m["cluster"]["partitions"] if "rows" in spec else of_key[0] if of_key else None
    for slots in (np.frombuffer(piece, "<u4") for piece in found[6] if row is not None):
        for i in np.flatnonzero(np.frombuffer(found[5][0], "<u4")[6:][slots[2 : 2 + slots[0]]] == row + 1):
            return slots[2 + slots[0] :].view("<f4").reshape(slots[:2])[i, : spec["dim"]]
    return decode(spec, rows[row][1]) if rows.get(row, (0, None))[1] else None


if __name__ == "__main__":
    print(read_row(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
