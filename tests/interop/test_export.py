"""`hotrow table export`, as NumPy and safetensors read it."""

import json
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from hotrow.v1 import admin_pb2, data_pb2, tables_pb2
from safetensors import safe_open
from safetensors.numpy import load_file

import packing
import stored
from process import environment

# Enough rows for two batches, and so many that the table is not small.
DIM, ROWS = 15, 20_000
WEIGHTS = np.random.default_rng(7).normal(0, 0.3, (ROWS, DIM)).astype("<f4")
SET = np.arange(1_000, 19_000)
DIRTY, CLEAN, UNTRAINED = [5, 17_500, 1_234], [*range(3_000, 3_100), 18_999], [0, 999, 19_500]


def bits(rows):
    return np.ascontiguousarray(rows, "<f4").view("<u4")


def fill(server, form, hashed=False):
    """A table of which some rows are set, some of those are in the cache, some are changed there, and some are neither."""
    precision, quantizer = form
    uniform = tables_pb2.Initializer(uniform=tables_pb2.Initializer.Uniform(low=-1, high=1))
    cache = tables_pb2.CacheBudget(rows=4_096)
    rows = 0 if hashed else ROWS
    server.create("t", DIM, rows=rows, precision=precision, quantizer=quantizer, initializer=uniform, cache=cache)
    server.assign("t", names(hashed, SET), WEIGHTS[SET])


def heat(server, hashed=False):
    """Touches and pushes some rows: the first are in the cache as they were, the others are newer there."""
    clean, dirty = packing.keys(names(hashed, CLEAN)), names(hashed, DIRTY)
    server.data.Touch(data_pb2.TouchRequest(tables=[data_pb2.TableTouch(table="t", keys=clean)]))
    server.push("t", dirty, WEIGHTS[: len(DIRTY)])


def names(hashed, keys):
    """The keys of a hashed table are far apart."""
    keys = np.asarray(keys, "u8")
    return keys * np.uint64(0x9E3779B97F4A7C15) if hashed else keys


def inspect(server, key):
    return server.admin.InspectRow(admin_pb2.InspectRowRequest(table="t", key=int(key)))


def export(server, path, *flags):
    return json.loads(server.run("table", "export", "t", "--to", path, "--output", "json", *flags))


@pytest.mark.parametrize("form", stored.FORMS, ids="-".join)
def test_a_dense_table_at_f32_is_what_a_pull_reads(server, tmp_path, form):
    fill(server, form)
    heat(server)
    expected = server.pull("t", range(ROWS))
    summary = export(server, tmp_path / "t.npy")
    array = np.load(tmp_path / "t.npy")
    assert (array.dtype, array.shape) == ("<f4", (ROWS, DIM))
    np.testing.assert_array_equal(bits(array), bits(expected))
    assert (summary["rows"], summary["dim"], summary["precision"]) == (ROWS, DIM, "f32")
    assert summary["bytes"] == (tmp_path / "t.npy").stat().st_size

    export(server, tmp_path / "t.safetensors")
    tensors = load_file(tmp_path / "t.safetensors")
    assert list(tensors) == ["weights"]
    np.testing.assert_array_equal(bits(tensors["weights"]), bits(expected))


@pytest.mark.parametrize("form", [("f32", ""), ("int8", "symmetric")], ids="-".join)
def test_a_hashed_table_is_its_rows_and_their_keys(server, tmp_path, form):
    fill(server, form, hashed=True)
    heat(server, hashed=True)
    there = set(names(True, [*SET, *DIRTY]).tolist())
    export(server, tmp_path / "t.npy", "--keys", tmp_path / "keys.npy")
    keys = np.load(tmp_path / "keys.npy")
    assert keys.dtype == "<u8"
    assert len(keys) == len(there) and set(keys.tolist()) == there
    np.testing.assert_array_equal(bits(np.load(tmp_path / "t.npy")), bits(server.pull("t", keys)))

    for precision, decoded in [("f32", ("f32", "")), ("stored", form)]:
        path = tmp_path / f"{precision}.safetensors"
        summary = export(server, path, "--precision", precision)
        tensors = load_file(path)
        assert summary["rows"] == len(tensors["keys"]) == len(there)
        assert set(tensors["keys"].tolist()) == there
        rows = stored.from_tensors(tensors, decoded, DIM)
        same = ~np.isin(tensors["keys"], names(True, DIRTY)) if precision == "stored" else slice(None)
        np.testing.assert_array_equal(bits(rows[same]), bits(server.pull("t", tensors["keys"])[same]))


def test_a_hashed_table_without_rows(server, tmp_path):
    server.create("t", DIM)
    assert export(server, tmp_path / "t.npy", "--keys", tmp_path / "keys.npy")["rows"] == 0
    assert np.load(tmp_path / "t.npy").shape == (0, DIM)
    assert np.load(tmp_path / "keys.npy").shape == (0,)
    export(server, tmp_path / "t.safetensors")
    assert load_file(tmp_path / "t.safetensors")["weights"].shape == (0, DIM)


@pytest.mark.parametrize("form", stored.FORMS, ids="-".join)
def test_the_stored_form_is_the_table_as_it_is(server, tmp_path, form):
    fill(server, form)
    export(server, tmp_path / "before.npy", "--precision", "stored")
    heat(server)
    summary = export(server, tmp_path / "t.npy", "--precision", "stored")
    export(server, tmp_path / "t.safetensors", "--precision", "stored")
    assert (summary["precision"], summary["quantizer"] or "") == form
    array = np.load(tmp_path / "t.npy")
    assert len(array) == ROWS
    rows = stored.from_npy(array, form, DIM)
    tensors = load_file(tmp_path / "t.safetensors")
    np.testing.assert_array_equal(bits(stored.from_tensors(tensors, form, DIM)), bits(rows))

    pulled = server.pull("t", range(ROWS))
    states = {key: inspect(server, key) for key in DIRTY + CLEAN + UNTRAINED}
    if form[0] != "f32":
        assert all(states[key].dirty for key in DIRTY)
        assert all(states[key].cached and not states[key].dirty and states[key].stored for key in CLEAN)
    assert not any(states[key].stored for key in UNTRAINED)
    # What is stored, and not newer in the cache, is handed out as it is. Those in the cache are not rounded again.
    unchanged = np.setdiff1d(SET, DIRTY)
    np.testing.assert_array_equal(bits(rows[unchanged]), bits(pulled[unchanged]))
    np.testing.assert_array_equal(array[unchanged], np.load(tmp_path / "before.npy")[unchanged])
    # All others are rounded to nearest.
    others = DIRTY + UNTRAINED
    if form[0] == "f32":
        np.testing.assert_array_equal(bits(rows[others]), bits(pulled[others]))
    elif form[0] == "f16":
        np.testing.assert_array_equal(array[others], pulled[others].astype("<f2"))
    elif form[0] == "bf16":
        np.testing.assert_array_equal(array["bf16"][others], packing.to_bf16(pulled[others]))
    elif form == ("int8", "symmetric"):
        scales, codes = packing.to_int8(pulled[others])
        np.testing.assert_array_equal(array["scale"][others], scales)
        np.testing.assert_array_equal(array["codes"][others], codes)
    else:
        error = np.abs(rows[others] - pulled[others])
        limit = stored.nearest(form, pulled[others])
        assert (error <= limit[:, None]).all(), (error.max(axis=1), limit)
        assert error.max() > 0


@pytest.mark.parametrize("form", stored.FORMS, ids="-".join)
def test_metadata_says_what_a_file_holds(server, tmp_path, form):
    fill(server, form, hashed=True)
    export(server, tmp_path / "t.safetensors", "--precision", "stored")
    with safe_open(tmp_path / "t.safetensors", framework="np") as file:
        metadata = file.metadata()
    packing_text = metadata.pop("packing", "")
    assert metadata == {
        "hotrow_format": "1",
        "table": "t",
        "dim": str(DIM),
        "precision": form[0],
        **({"quantizer": form[1]} if form[1] else {}),
    }
    assert packing_text.startswith({"int4": "two per byte", "int2": "four per byte"}.get(form[0], ""))
    assert bool(packing_text) == (form[0] in ("int4", "int2"))


def test_a_small_table_is_f32_whatever_it_was_to_be(server, tmp_path):
    server.create("t", DIM, rows=100, precision="int8")
    assert export(server, tmp_path / "t.npy", "--precision", "stored")["precision"] == "f32"
    assert np.load(tmp_path / "t.npy").dtype == "<f4"


def test_the_same_table_gives_the_same_file(server, tmp_path):
    fill(server, ("int4", "affine"))
    export(server, tmp_path / "a.safetensors", "--precision", "stored")
    export(server, tmp_path / "b.safetensors", "--precision", "stored")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("hashed", [False, True], ids=["dense", "hashed"])
def test_an_export_changes_and_counts_nothing(server, tmp_path, hashed):
    fill(server, ("int8", "symmetric"), hashed)
    heat(server, hashed)
    server.pull("t", names(hashed, range(100)))
    before = server.counts()
    assert before.tables[0].pull_misses > 0
    for precision in ["f32", "stored"]:
        export(server, tmp_path / f"{precision}.safetensors", "--precision", precision)
    assert server.counts() == before


def test_whoever_may_read_may_export(start, tmp_path):
    (tmp_path / "tokens").write_text("read aaa\nadmin bbb\n")
    server = start("--tokens", tmp_path / "tokens")
    server.run("table", "create", "t", "--dim", 4, "--rows", 100, "--token", "bbb")
    export(server, tmp_path / "t.npy", "--token", "aaa")
    wrong = server.run("table", "import", "t", "--from", tmp_path / "t.npy", "--token", "aaa", expect=1)
    assert "has the role read, this call needs admin" in wrong


def test_an_export_takes_little_memory(server, tmp_path):
    # 128 MB of rows, which the server computes as they are read.
    server.run("table", "create", "t", "--dim", 64, "--rows", 500_000)
    command = [server.binary, "table", "export", "t", "--to", tmp_path / "t.npy", "--endpoint", server.address]
    child = subprocess.Popen(list(map(str, command)), env=environment(), stdout=subprocess.DEVNULL)
    most = 0
    while child.poll() is None:
        # The most that it ever had, in KiB.
        status = Path(f"/proc/{child.pid}/status").read_text()
        most = max([most, *map(int, re.findall(r"VmHWM:\s*(\d+) kB", status))])
        time.sleep(0.001)
    assert child.returncode == 0
    assert np.load(tmp_path / "t.npy", mmap_mode="r").shape == (500_000, 64)
    assert 0 < most < 64 * 1024


def refused(server, folder, text, *flags):
    """An export that is refused leaves the folder as it was."""
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert text in server.run("table", "export", *flags, expect=1)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_cannot_be_exported(server, tmp_path):
    server.create("dense", 4, rows=100)
    server.create("hashed", 4)
    (tmp_path / "there.npy").write_bytes(b"precious")
    new = tmp_path / "new.npy"
    refused(server, tmp_path, "unknown table 'nobody'", "nobody", "--to", new)
    refused(server, tmp_path, "there.npy exists: give another name, or --force", "dense", "--to", tmp_path / "there.npy")
    refused(server, tmp_path, "must end in .npy or .safetensors", "dense", "--to", tmp_path / "new.csv")
    refused(server, tmp_path, "hashed table: give a file for the keys of its rows, --keys", "hashed", "--to", new)
    refused(server, tmp_path, "dense table, row i is key i: leave --keys out", "dense", "--to", new, "--keys", tmp_path / "k.npy")
    refused(server, tmp_path, "name the same file", "hashed", "--to", new, "--keys", new)
    refused(server, tmp_path, "there.npy exists", "hashed", "--to", new, "--keys", tmp_path / "there.npy")
    keys = ["--keys", tmp_path / "k.npy"]
    refused(server, tmp_path, "has the keys in it: leave --keys out", "hashed", "--to", tmp_path / "new.safetensors", *keys)
    refused(server, tmp_path, "cannot write to", "dense", "--to", tmp_path / "nowhere" / "new.npy")
    server.run("table", "export", "dense", "--to", tmp_path / "there.npy", "--force")
    assert np.load(tmp_path / "there.npy").shape == (100, 4)


def test_an_export_that_fails_leaves_nothing(start, tmp_path):
    # The first batch is refused when the file is begun already.
    server = start("--max-response", "1KiB")
    server.create("t", 4, rows=10_000)
    refused(server, tmp_path, "raise server.max_response", "t", "--to", tmp_path / "t.npy")
    refused(server, tmp_path, "raise server.max_response", "t", "--to", tmp_path / "t.safetensors", "--precision", "stored")
