"""`hotrow table import`, of files that NumPy and safetensors wrote."""

import json

import ml_dtypes
import numpy as np
import pytest
from hotrow.v1 import admin_pb2, tables_pb2
from safetensors.numpy import save_file

import packing
import stored

DIM, ROWS = 15, 20_000
WEIGHTS = np.random.default_rng(11).normal(0, 0.3, (ROWS, DIM)).astype("<f4")
KEYS = np.random.default_rng(12).integers(0, 2**64, ROWS, dtype="u8")


def bring_in(server, path, *flags):
    return json.loads(server.run("table", "import", "t", "--from", path, "--output", "json", *flags))


def refused(server, path, text, *flags):
    said = server.run("table", "import", "t", "--from", path, *flags, expect=1)
    assert text in said, said


def test_f32_is_exact(server, tmp_path):
    server.create("t", DIM, rows=ROWS)
    np.save(tmp_path / "t.npy", WEIGHTS)
    summary = bring_in(server, tmp_path / "t.npy")
    assert (summary["rows"], summary["dim"], summary["precision"]) == (ROWS, DIM, "f32")
    np.testing.assert_array_equal(server.pull("t", range(ROWS)), WEIGHTS)
    save_file({"weights": WEIGHTS[::-1].copy()}, tmp_path / "t.safetensors")
    bring_in(server, tmp_path / "t.safetensors")
    np.testing.assert_array_equal(server.pull("t", range(ROWS)), WEIGHTS[::-1])


def test_some_rows_of_a_dense_table(server, tmp_path):
    server.create("t", DIM, rows=ROWS)
    some = np.array([19_999, 3, 0, 77])
    np.save(tmp_path / "t.npy", WEIGHTS[:4])
    # Whole numbers are i64 unless one says otherwise.
    np.save(tmp_path / "keys.npy", some)
    bring_in(server, tmp_path / "t.npy", "--keys", tmp_path / "keys.npy")
    expected = np.zeros((ROWS, DIM), "<f4")
    expected[some] = WEIGHTS[:4]
    np.testing.assert_array_equal(server.pull("t", range(ROWS)), expected)


@pytest.mark.parametrize("inside", [False, True], ids=["npy", "safetensors"])
def test_a_hashed_table(server, tmp_path, inside):
    server.create("t", DIM)
    if inside:
        save_file({"keys": KEYS, "weights": WEIGHTS}, tmp_path / "t.safetensors")
        bring_in(server, tmp_path / "t.safetensors")
    else:
        np.save(tmp_path / "t.npy", WEIGHTS)
        np.save(tmp_path / "keys.npy", KEYS)
        bring_in(server, tmp_path / "t.npy", "--keys", tmp_path / "keys.npy")
    np.testing.assert_array_equal(server.pull("t", KEYS), WEIGHTS)
    assert server.admin.Stats(admin_pb2.StatsRequest()).tables[0].rows == ROWS


def test_half_precision(server, tmp_path):
    server.create("t", DIM, rows=ROWS)
    halves = {"f16": WEIGHTS.astype("<f2"), "bf16": WEIGHTS.astype(ml_dtypes.bfloat16)}
    for name, half in halves.items():
        np.save(tmp_path / f"{name}.npy", half)
        save_file({"weights": half}, tmp_path / f"{name}.safetensors")
        for kind in ["npy", "safetensors"]:
            server.assign("t", range(ROWS), np.zeros((ROWS, DIM)))
            assert bring_in(server, tmp_path / f"{name}.{kind}")["precision"] == name
            np.testing.assert_array_equal(server.pull("t", range(ROWS)), half.astype("<f4"))


@pytest.mark.parametrize("hashed", [False, True], ids=["dense", "hashed"])
@pytest.mark.parametrize("form", stored.FORMS, ids="-".join)
def test_what_was_exported_comes_back(server, tmp_path, form, hashed):
    keys = KEYS if hashed else np.arange(ROWS)
    rows = 0 if hashed else ROWS
    server.create("source", DIM, rows=rows, precision=form[0], quantizer=form[1])
    server.assign("source", keys, WEIGHTS)
    expected = server.pull("source", keys)
    server.create("t", DIM, rows=rows)
    for kind in ["npy", "safetensors"]:
        path = tmp_path / f"t.{kind}"
        flags = ["--keys", tmp_path / "keys.npy"] if hashed and kind == "npy" else []
        server.run("table", "export", "source", "--to", path, "--precision", "stored", *flags)
        server.assign("t", keys, np.zeros((ROWS, DIM)))
        assert bring_in(server, path, *flags)["precision"] == form[0]
        np.testing.assert_array_equal(server.pull("t", keys), expected)


def test_bytes_with_scales_of_others(server, tmp_path):
    server.create("t", DIM, rows=ROWS)
    scales, codes = packing.to_int8(WEIGHTS)
    save_file({"codes": codes, "scales": scales.view(ml_dtypes.bfloat16)}, tmp_path / "t.safetensors")
    assert bring_in(server, tmp_path / "t.safetensors")["precision"] == "int8"
    expected = stored.decode("int8", "symmetric", DIM, scales, None, codes)
    np.testing.assert_array_equal(server.pull("t", range(ROWS)), expected)


def test_a_quantized_table_rounds_what_comes_in(server, tmp_path):
    server.create("t", DIM, rows=ROWS, precision="int8", rounding="nearest")
    np.save(tmp_path / "t.npy", WEIGHTS)
    bring_in(server, tmp_path / "t.npy")
    scales, codes = packing.to_int8(WEIGHTS)
    expected = stored.decode("int8", "symmetric", DIM, scales, None, codes)
    np.testing.assert_array_equal(server.pull("t", range(ROWS)), expected)


def test_optimizer_state_becomes_zeros(server, tmp_path):
    server.create("t", 4, rows=10, optimizer=tables_pb2.Optimizer(name="adagrad"))
    server.push("t", [3], [[1, 2, 3, 4]])
    state = lambda: np.frombuffer(server.admin.InspectRow(admin_pb2.InspectRowRequest(table="t", key=3)).state, "<f4")
    np.testing.assert_array_equal(state(), [1, 4, 9, 16])
    np.save(tmp_path / "t.npy", np.ones((10, 4), "<f4"))
    bring_in(server, tmp_path / "t.npy")
    np.testing.assert_array_equal(state(), np.zeros(4))


def test_of_a_key_given_twice_the_last_counts(server, tmp_path):
    server.create("t", DIM)
    keys = KEYS.copy()
    # Both in one batch, and in two.
    keys[1], keys[ROWS - 1] = keys[0], keys[2]
    np.save(tmp_path / "t.npy", WEIGHTS)
    np.save(tmp_path / "keys.npy", keys)
    bring_in(server, tmp_path / "t.npy", "--keys", tmp_path / "keys.npy")
    np.testing.assert_array_equal(server.pull("t", [keys[0], keys[2]]), WEIGHTS[[1, ROWS - 1]])


def two_shards(start):
    """Ports must be known before the servers start."""
    import socket

    sockets = [socket.socket() for _ in range(2)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = ["127.0.0.1:%d" % each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    flags = ["--shards", ",".join(addresses)]
    return [start(*flags, "--shard", shard, listen=address) for shard, address in enumerate(addresses)]


@pytest.mark.parametrize("hashed", [False, True], ids=["dense", "hashed"])
def test_two_shards(start, tmp_path, hashed):
    servers = two_shards(start)
    one = servers[1]
    keys, rows = (KEYS, []) if hashed else (np.arange(ROWS, dtype="u8"), ["--rows", ROWS])
    one.run("table", "create", "t", "--dim", DIM, *rows, "--precision", "int8", "--rounding", "nearest")
    tensors = {"weights": WEIGHTS, **({"keys": keys} if hashed else {})}
    save_file(tensors, tmp_path / "in.safetensors")
    bring_in(one, tmp_path / "in.safetensors")
    scales, codes = packing.to_int8(WEIGHTS)
    expected = stored.decode("int8", "symmetric", DIM, scales, None, codes)

    # Each shard has a part of the rows, and it is the right one.
    owners = np.frombuffer(one.admin.Topology(admin_pb2.TopologyRequest()).partition_shards, "<u4")
    partitions = packing.mix64(keys) >> np.uint64(57) if hashed else keys % 128
    for shard, server in enumerate(servers):
        mine = owners[partitions.astype(int)] == shard
        assert 0.4 < mine.mean() < 0.6
        np.testing.assert_array_equal(server.pull("t", keys[mine]), expected[mine])

    flags = ["--keys", tmp_path / "keys.npy"] if hashed else []
    for precision, form in [("f32", ("f32", "")), ("stored", ("int8", "symmetric"))]:
        out = tmp_path / "out.npy"
        one.run("table", "export", "t", "--to", out, "--precision", precision, "--force", *flags)
        rows = stored.from_npy(np.load(out), form, DIM)
        order = np.load(tmp_path / "keys.npy") if hashed else keys
        assert len(order) == len(rows) == ROWS
        by_key = np.argsort(keys)
        found = by_key[np.searchsorted(keys, order, sorter=by_key)]
        np.testing.assert_array_equal(keys[found], order)
        np.testing.assert_array_equal(rows, expected[found])


def test_what_cannot_be_imported(server, tmp_path):
    server.create("t", DIM, rows=ROWS)
    server.create("hashed", DIM)
    good = tmp_path / "good.npy"
    np.save(good, WEIGHTS)

    def npy(array):
        np.save(tmp_path / "bad.npy", array)
        return tmp_path / "bad.npy"

    def tensors(metadata=None, **tensors):
        save_file(tensors, tmp_path / "bad.safetensors", metadata)
        return tmp_path / "bad.safetensors"

    before = server.counts()
    # The file itself.
    refused(server, tmp_path / "nowhere.npy", "cannot read")
    refused(server, tmp_path / "t.csv", "must end in .npy or .safetensors")
    refused(server, npy(WEIGHTS[:, :7]), f"has rows of 7 numbers, table 't' has {DIM}")
    refused(server, npy(WEIGHTS.astype("<f8")), "holds '<f8'")
    refused(server, npy(WEIGHTS.astype("<i4")), "holds '<i4'")
    refused(server, npy(WEIGHTS[0]), "rows are float32 or float16 in two dimensions")
    refused(server, npy(np.asfortranarray(WEIGHTS)), "is in Fortran order: save np.ascontiguousarray(array)")
    refused(server, npy(WEIGHTS.astype(">f4")), "is big-endian ('>f4')")
    refused(server, npy(WEIGHTS[:-1]), f"has {ROWS - 1} rows, table 't' has {ROWS}: to set some of them, give their --keys")
    refused(server, npy(np.zeros(ROWS, [("scale", "<u2"), ("codes", "u1", (DIM,))])), "holds [('scale', '<u2')")
    refused(server, npy(np.zeros(ROWS, [("scale", "<u2"), ("zero", "<i2"), ("codes4", "u1", (9,))])), "has rows of 18 numbers")
    refused(server, tensors(other=WEIGHTS), "neither a tensor 'weights' nor 'codes', only: other")
    refused(server, tensors(weights=WEIGHTS.astype("<f8")), "'weights' is F64: it must be F32, F16 or BF16")
    refused(server, tensors(weights=WEIGHTS[:, :7].copy()), f"has rows of 7 numbers, table 't' has {DIM}")
    refused(server, tensors(weights=WEIGHTS[0].copy()), "'weights' must have two dimensions")
    codes = np.zeros((ROWS, DIM), "i1")
    scales = np.zeros(ROWS, ml_dtypes.bfloat16)
    refused(server, tensors(codes=codes), "there is no tensor 'scales', BF16 [20000]")
    refused(server, tensors(codes=codes, scales=np.zeros(ROWS, "<f4")), "'scales' is F32 [20000]: it must be BF16 [20000]")
    refused(server, tensors(codes=codes, scales=scales[:7]), "'scales' is BF16 [7]: it must be BF16 [20000]")
    refused(server, tensors(codes=codes.view("u1"), scales=scales), "need 'precision' and 'quantizer' in the metadata")
    odd = {"precision": "int3", "quantizer": "affine"}
    refused(server, tensors(odd, codes=codes, scales=scales), "its metadata says precision 'int3'")
    wrong_dim = {"precision": "int8", "quantizer": "symmetric", "dim": "14"}
    refused(server, tensors(wrong_dim, codes=codes, scales=scales), "its metadata says dim 14")
    refused(server, tensors(weights=WEIGHTS, keys=KEYS[:7]), "'keys' is U64 [7]: it must be U64 [20000]")

    # What is cut off, or is something else.
    whole = good.read_bytes()
    short, tail = tmp_path / "short.npy", tmp_path / "short.safetensors"
    for length, text in [(len(whole) - 1, "is truncated"), (100, "not a whole .npy file"), (3, "not a whole .npy file")]:
        short.write_bytes(whole[:length])
        refused(server, short, text)
    short.write_bytes(whole + b"more")
    refused(server, short, "but its header speaks of")
    whole = tensors(weights=WEIGHTS).read_bytes()
    for length, text in [(len(whole) - 1, "is truncated"), (20, "not a whole safetensors"), (3, "not a whole safetensors")]:
        tail.write_bytes(whole[:length])
        refused(server, tail, text)
    tail.write_bytes(good.read_bytes())
    refused(server, tail, "not a whole safetensors file")

    # Keys.
    keys = tmp_path / "keys.npy"

    def with_keys(numbers, text, path=good):
        np.save(keys, numbers)
        refused(server, path, text, "--keys", keys)

    with_keys(KEYS[:7], f"has 7 keys, but {good} has {ROWS} rows")
    with_keys(np.arange(ROWS)[::-1] + 1, f"key {ROWS} of row 0 is out of range, table 't' has keys 0 to {ROWS - 1}")
    with_keys(np.arange(ROWS) - 1, "key -1 of row 0 is negative")
    with_keys(np.arange(ROWS, dtype="<u4"), "holds '<u4': keys are uint64")
    with_keys(np.arange(ROWS, dtype=">u8"), "is big-endian")
    with_keys(np.zeros((ROWS, 1), "<u8"), "keys are in one dimension")
    with_keys(KEYS, "has its keys in it: leave --keys out", tensors(weights=WEIGHTS, keys=KEYS))
    said = server.run("table", "import", "hashed", "--from", good, expect=1)
    assert "'hashed' is a hashed table: give the keys of the rows, --keys" in said

    # None of this has changed anything.
    assert server.counts() == before

    # The table.
    said = server.run("table", "import", "nobody", "--from", good, expect=1)
    assert f"hotrow table create nobody --dim {DIM} --rows {ROWS}\n" in said
    said = server.run("table", "import", "nobody", "--from", good, "--keys", keys, expect=1)
    assert f"hotrow table create nobody --dim {DIM}\n" in said
    server.run("table", "create", "nobody", "--dim", DIM, "--rows", ROWS)
    server.run("table", "import", "nobody", "--from", good)


def test_a_nan_is_refused_and_named(server, tmp_path):
    server.create("t", DIM, rows=ROWS)
    spoiled = WEIGHTS.copy()
    spoiled[18_000, 4] = np.nan
    np.save(tmp_path / "t.npy", spoiled)
    refused(server, tmp_path / "t.npy", "to 19999 (see row 18000); those before are set")
    refused(server, tmp_path / "t.npy", "weights holds a NaN or an infinity")
    np.testing.assert_array_equal(server.pull("t", [18_001]), np.zeros((1, DIM)))
    np.testing.assert_array_equal(server.pull("t", [0]), WEIGHTS[:1])
