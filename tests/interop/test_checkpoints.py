"""The state is saved to a folder and to an object store, and read back by servers of any number and by nobody's server."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import boto3
import grpc
import numpy as np
import pytest
from hotrow.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    checkpoint_pb2,
    checkpoint_pb2_grpc,
    data_pb2_grpc,
    tables_pb2,
    tables_pb2_grpc,
)

import conftest
import packing
from process import PATIENCE, Process
from read_checkpoint import partition_of, read_row

BINARY = os.environ.get("HOTROW_BIN", conftest.ROOT / "target" / "debug" / "hotrow")
PARTITIONS = 16
KEYS = np.arange(0, 3000, 7)
HASHED = (KEYS.astype("u8") * np.uint64(0x9E3779B97F4A7C15)).tolist()


def free_ports(count):
    """Ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    [s.close() for s in sockets]
    return ports


class Folder:
    """A place in a folder."""

    def __init__(self, path):
        self.url = str(path)

    def names(self):
        return {str(path.relative_to(self.url)) for path in Path(self.url).rglob("*") if path.is_file()}

    def read(self, name):
        return Path(self.url, name).read_bytes()

    def write(self, name, data):
        Path(self.url, name).write_bytes(data)


class Bucket:
    """A place in an object store."""

    def __init__(self, client, name):
        self.client, self.name, self.url = client, name, f"s3://{name}/some/where"

    def names(self):
        found = self.client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return {each["Key"].removeprefix("some/where/") for each in found}

    def read(self, name):
        return self.client.get_object(Bucket=self.name, Key=f"some/where/{name}")["Body"].read()

    def write(self, name, data):
        self.client.put_object(Bucket=self.name, Key=f"some/where/{name}", Body=data)


@pytest.fixture(scope="session")
def s3(tmp_path_factory):
    """A server with S3's interface, and a client that is not ours."""
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    log = open(tmp_path_factory.mktemp("moto") / "log", "w")
    command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            assert child.poll() is None and time.monotonic() < deadline, "moto_server does not answer"
            time.sleep(0.05)
    made_up = {"aws_access_key_id": "somebody", "aws_secret_access_key": "something", "region_name": "us-east-1"}
    yield endpoint, boto3.client("s3", endpoint_url=endpoint, config=boto3.session.Config(proxies={}), **made_up)
    child.terminate()
    child.wait(PATIENCE)


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path, monkeypatch):
    """Where checkpoints are."""
    if request.param == "folder":
        (tmp_path / "saved").mkdir()
        return Folder(tmp_path / "saved")
    endpoint, client = request.getfixturevalue("s3")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    settings = {"ACCESS_KEY_ID": "somebody", "SECRET_ACCESS_KEY": "something", "REGION": "us-east-1"}
    for name, value in {**settings, "ENDPOINT_URL": endpoint, "ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    # Loopback is never behind a proxy.
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    bucket = f"bucket-{abs(hash(request.node.name)):x}"
    client.create_bucket(Bucket=bucket)
    return Bucket(client, bucket)


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path / "saved")


class Shard:
    """One shard, and stubs that talk to it."""

    def __init__(self, address, *flags):
        self.address = address
        self.process = Process(BINARY, "serve", "--listen", address, "--http", "", "--partitions", PARTITIONS, *flags)

    def connect(self):
        self.channel = grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)])
        self.data, self.tables = data_pb2_grpc.DataStub(self.channel), tables_pb2_grpc.TablesStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)
        self.checkpoints = checkpoint_pb2_grpc.CheckpointsStub(self.channel)

    create, push, pull, assign = (getattr(conftest.Server, name) for name in ["create", "push", "pull", "assign"])

    def remove(self, table, keys):
        self.admin.RemoveRows(admin_pb2.RemoveRowsRequest(table=table, keys=packing.keys(keys)), timeout=PATIENCE)

    def inspect(self, table, key):
        row = self.admin.InspectRow(admin_pb2.InspectRowRequest(table=table, key=key), timeout=PATIENCE)
        return row.weights, row.state, row.cached, row.dirty, row.stored


class Cluster:
    """Shards on loopback."""

    def __init__(self, shards, place, data, *flags):
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(shards)]
        self.data = data
        if place:
            flags = ("--checkpoints", place.url, *flags)
        self.shards = []
        for number, address in enumerate(self.addresses):
            own = ["--shards", ",".join(self.addresses), "--shard", number, "--data-dir", f"{data}-{number}"]
            self.shards.append(Shard(address, *own, *flags))

    def ready(self):
        for shard in self.shards:
            shard.process.wait_for_line(r"(hotrow serves shard)")
            shard.connect()
        return self

    def owner(self, table_is_dense, key):
        return self.shards[partition_of(key, PARTITIONS, table_is_dense) * len(self.shards) // PARTITIONS]

    def each(self, dense, keys):
        """The shards, and which of the keys they own."""
        owners = np.array([self.shards.index(self.owner(dense, key)) for key in keys])
        return [(shard, np.flatnonzero(owners == number)) for number, shard in enumerate(self.shards)]

    def make_tables(self):
        for shard in self.shards:
            adagrad, cache = tables_pb2.Optimizer(name="adagrad"), tables_pb2.CacheBudget(rows=4 * PARTITIONS)
            shard.create("dense", 16, rows=20_000, precision="int8", optimizer=adagrad, cache=cache)
            shard.create("hashed", 8, precision="int8", quantizer="symmetric", cache=cache, policy="lfu", optimizer=adagrad)
            shard.create("plain", 4, rows=5000)

    def train(self, seed, keys=slice(None)):
        """Pushes to all tables; the caches are much too small, so that rows are cached, stored or both."""
        random = np.random.default_rng(seed)
        for table, dense, dim, all_keys in TABLES:
            some = all_keys[keys]
            gradients = random.normal(size=(len(some), dim)).astype("f4")
            for shard, mine in self.each(dense, some):
                for few in np.array_split(mine, max(1, len(mine) // 50)):
                    shard.push(table, [some[i] for i in few], gradients[few])

    def state(self):
        """Everything about every row, and what a pull gives."""
        rows = {}
        for table, dense, _, keys in TABLES:
            for shard, mine in self.each(dense, keys):
                mine = [keys[i] for i in mine]
                rows |= {(table, key): (*shard.inspect(table, key), pull.tobytes()) for key, pull in zip(mine, shard.pull(table, mine))}
        return rows

    def save(self, *flags, shard=0, fails=False):
        return hotrow("checkpoint", "save", "--endpoint", self.addresses[shard], *flags, fails=fails)

    def kill(self):
        for shard in self.shards:
            shard.channel.close()
            shard.process.child.send_signal(signal.SIGKILL)
            assert shard.process.wait() == -signal.SIGKILL


TABLES = [("dense", True, 16, KEYS.tolist()), ("hashed", False, 8, HASHED), ("plain", True, 4, KEYS.tolist())]


@pytest.fixture
def cluster(tmp_path):
    """Starts clusters; what is left of them is killed."""
    clusters = []

    def start(shards, place, *flags, data="data"):
        clusters.append(Cluster(shards, place, tmp_path / data, *flags))
        return clusters[-1]

    yield start
    for shard in (shard for each in clusters for shard in each.shards):
        if shard.process.child.poll() is None:
            shard.process.child.kill()
            shard.process.wait()


def hotrow(*words, fails=False):
    """Runs a command. Returns what it printed; its complaint where it is to fail."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOTROW_")}
    command = [str(word) for word in [BINARY, *words]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert (done.returncode != 0) == fails, (command, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


def listed(place):
    return json.loads(hotrow("checkpoint", "list", "--checkpoints", place.url, "--output", "json"))["checkpoints"]


def inspected(place, number):
    return json.loads(hotrow("checkpoint", "inspect", number, "--checkpoints", place.url, "--output", "json"))


def refuses_to_start(started):
    """The complaint of a server that does not start."""
    assert started.process.wait() == 1, started.process.text()
    text = started.process.text()
    assert "hotrow serves" not in text
    return text


def test_killed_and_started_from_a_chain_with_an_empty_folder(cluster, place):
    first = cluster(1, place).ready()
    first.make_tables()
    first.train(1)
    assert "checkpoint 1 is complete" in first.save("--label", "a b=1 ä")
    first.train(2, slice(0, 60))
    first.shards[0].remove("hashed", HASHED[:5])
    first.shards[0].remove("dense", KEYS[:5].tolist())
    assert "checkpoint 2 is complete" in first.save("--incremental")
    whole, difference = listed(place)
    assert (whole["label"], whole["complete"], whole["differs_from"], whole["shards"]) == ("a b=1 ä", True, None, [0])
    assert (difference["label"], difference["complete"], difference["differs_from"]) == ("", True, 1)
    assert difference["bytes"] < whole["bytes"]
    (file,) = inspected(place, 2)["files"]
    assert (file["base"], file["links"], file["bytes"]) == (1, 1, len(place.read(file["path"])))
    assert [table["spec"]["name"] for table in file["tables"]] == ["dense", "hashed", "plain"]
    assert "checkpoint 2 is whole" in hotrow("checkpoint", "verify", "--checkpoints", place.url)
    before = first.state()
    kinds = {(cached, dirty, stored) for _, _, cached, dirty, stored, _ in before.values()}
    assert kinds >= {(True, True, False), (True, True, True), (False, False, True), (False, False, False)}
    first.kill()
    again = cluster(1, place, data="fresh").ready()
    assert again.state() == before
    # It goes on bit for bit as the one that was killed, which has its log, would have.
    same = cluster(1, place).ready()
    assert same.state() == before
    for each in [again, same]:
        each.train(3)
    assert again.state() == same.state()


def test_two_shards_save_and_three_start(cluster, place):
    two = cluster(2, place).ready()
    two.make_tables()
    two.train(1)
    two.save(shard=1)
    two.train(2, slice(100, 200))
    two.save("--incremental")
    assert [each["shards"] for each in listed(place)] == [[0, 1], [0, 1]]
    before = two.state()
    two.kill()
    three = cluster(3, place, data="three").ready()
    assert three.state() == before
    three.train(3, slice(50, 150))
    assert "checkpoint 3 is complete" in three.save("--incremental")
    assert listed(place)[2]["differs_from"] is None, "nobody has exactly these partitions"
    before = three.state()
    three.kill()
    assert cluster(1, place, data="one").ready().state() == before


def test_a_drained_shard_goes_on_where_it_was(cluster, place):
    two = cluster(2, place).ready()
    two.make_tables()
    two.train(1)
    two.save()
    two.train(2)
    before = two.state()
    for shard in two.shards:
        shard.channel.close()
        assert shard.process.terminate() == 0
    assert [(each["complete"], each["shards"]) for each in listed(place)] == [(True, [0, 1]), (False, [0]), (False, [1])]
    assert cluster(2, place, data="fresh").ready().state() == before


def test_pruning_keeps_what_is_needed(cluster, place):
    one = cluster(1, place, "--checkpoint-keep", 0, "--checkpoint-chain", 2).ready()
    one.make_tables()
    for number in range(1, 8):
        one.train(number, slice(number, number + 20))
        one.save("--incremental")
    assert [each["differs_from"] for each in listed(place)] == [None, 1, 2, None, 4, 5, None]
    files = {number: inspected(place, number)["files"][0]["path"] for number in range(1, 8)}
    prune = ("checkpoint", "prune", "--checkpoints", place.url, "--keep")
    assert "would be" in hotrow(*prune, 2, "--dry-run")
    assert len(listed(place)) == 7
    assert hotrow(*prune, 2).splitlines() == [f"checkpoint {number} removed" for number in (1, 2, 3)]
    kept = {name for number in (4, 5, 6, 7) for name in (f"{number:08}/manifest.json", files[number])}
    assert place.names() == kept
    hotrow("checkpoint", "verify", 6, "--checkpoints", place.url)
    assert "keep 1 or more" in hotrow(*prune, 0, fails=True)
    hotrow(*prune, 1)
    assert place.names() == {"00000007/manifest.json", files[7]}
    before = one.state()
    one.kill()
    assert cluster(1, place, data="fresh").ready().state() == before


def test_a_label_finds_its_checkpoint(cluster, place, tmp_path):
    one = cluster(1, place).ready()
    one.make_tables()
    states = {}
    for step in (1, 2, 3):
        one.train(step)
        one.save("--label", f"step={step}", "--incremental")
        states[step] = one.state()
    one.kill()
    restore = ("checkpoint", "restore", "--checkpoints", place.url, "--data-dir", f"{tmp_path / 'data'}-0")
    assert "step=9" in hotrow(*restore, "--label", "step=9", fails=True)
    assert "checkpoint 2" in hotrow(*restore, "--label", "step=2", "--discard-log")
    back = cluster(1, place).ready()
    assert back.state() == states[2]
    back.train(3)
    assert back.state() == states[3], "the same changes give the same bits"


def test_a_row_is_read_without_a_server(cluster, folder):
    two = cluster(2, folder).ready()
    two.make_tables()
    two.train(1)
    two.train(2)
    states = []
    for number in (1, 2, 3):
        two.save("--incremental")
        states.append(two.state())
        two.train(10 + number, slice(0, 100 * number))
        for table, dense, _, keys in TABLES:
            for shard, mine in two.each(dense, keys[number::40]):
                shard.remove(table, [keys[number::40][i] for i in mine])
    assert [each["differs_from"] for each in listed(folder)] == [None, 1, 2]
    seen = set()
    for number, state in enumerate(states, 1):
        for (table, key), (weights, _, cached, dirty, stored, _) in list(state.items())[::9] + list(state.items())[::40]:
            row = read_row(folder.url, number, table, key)
            seen.add((table, number > 1, dirty, stored))
            if dirty or stored:
                assert row.tobytes() == weights, (number, table, key)
            else:
                assert row is None, (number, table, key)
    for table in ("dense", "hashed"):
        # Dirty, stored, and removed; in a whole checkpoint and in differences.
        assert {(table, True, True, True), (table, True, False, True), (table, True, False, False)} <= seen
        assert {(table, False, True, True), (table, False, False, True)} <= seen
    assert read_row(folder.url, 3, "dense", 19_999) is None
    assert read_row(folder.url, 3, "hashed", 12345) is None


def test_a_table_made_again_has_nothing_of_its_namesake(cluster, folder):
    one = cluster(1, folder).ready()
    one.make_tables()
    one.train(1)
    one.save()
    one.shards[0].tables.Drop(tables_pb2.DropTableRequest(table="dense"), timeout=PATIENCE)
    one.shards[0].create("another", 4)
    one.make_tables()
    one.shards[0].push("dense", [7], np.ones((1, 16)))
    one.save("--incremental")
    before = one.state()
    assert read_row(folder.url, 2, "dense", 7).tobytes() == before["dense", 7][0]
    assert read_row(folder.url, 2, "dense", 14) is None
    one.kill()
    assert cluster(1, folder, data="fresh").ready().state() == before


@pytest.mark.parametrize("damaged", ["manifest", "data"])
def test_a_flipped_bit_is_refused(cluster, place, damaged):
    one = cluster(1, place).ready()
    one.make_tables()
    one.train(1)
    one.save()
    one.save("--incremental")
    one.kill()
    name = "00000001/manifest.json" if damaged == "manifest" else inspected(place, 1)["files"][0]["path"]
    data = bytearray(place.read(name))
    for at in (len(data) // 2, len(data) - 3, 5):
        data[at] ^= 16
        place.write(name, bytes(data))
        assert name in hotrow("checkpoint", "verify", 2, "--checkpoints", place.url, fails=True)
        data[at] ^= 16
    data[len(data) // 3] ^= 1
    place.write(name, bytes(data))
    complaint = refuses_to_start(cluster(1, place, data="fresh").shards[0])
    assert name in complaint and "damaged" in complaint
    data[len(data) // 3] ^= 1
    place.write(name, bytes(data))
    cluster(1, place, data="fresh").ready()


def test_a_save_without_a_shard_says_so_and_leaves_nothing(cluster, place):
    two = cluster(2, place).ready()
    two.make_tables()
    two.shards[1].process.child.kill()
    two.shards[1].process.wait()
    begun = time.monotonic()
    complaint = two.save(fails=True)
    assert "shard 1" in complaint
    assert time.monotonic() - begun < 20
    assert not [name for name in place.names() if name.endswith("manifest.json")]
    assert listed(place) == []


def test_a_save_needs_the_admin_s_token(cluster, folder, tmp_path):
    (tmp_path / "tokens").write_text("write www\nadmin aaa\n")
    one = cluster(1, folder, "--tokens", tmp_path / "tokens").ready()
    for flags, why in [((), "token"), (("--token", "www"), "admin"), (("--token", "xxx"), "token")]:
        assert why in one.save(*flags, fails=True)
    assert listed(folder) == []
    assert "complete" in one.save("--token", "aaa")


def test_a_server_without_a_place_says_so(cluster):
    one = cluster(1, None).ready()
    assert "--checkpoints" in one.save(fails=True)


def test_two_clusters_in_one_place_are_refused(cluster, place):
    one = cluster(1, place).ready()
    one.make_tables()
    one.save()
    complaint = refuses_to_start(cluster(1, place, "--cluster", "another", data="another").shards[0])
    assert "'another'" in complaint and "'hotrow'" in complaint and place.url in complaint
    assert "seed 7" in refuses_to_start(cluster(1, place, "--seed", 7, data="seed").shards[0])


def test_a_store_that_fails_once_loses_no_changes(cluster, folder):
    """A shard that cannot look for the manifest of a part that nobody settled still knows which rows had changed."""
    one = cluster(1, folder).ready()
    one.make_tables()
    one.train(1)
    one.save()
    one.train(2)

    def save_shard(number):
        # As a coordinating shard does that is not heard of again.
        request = checkpoint_pb2.SaveShardRequest(sequence=number, incremental=True, url=folder.url)
        return list(one.shards[0].checkpoints.SaveShard(request, timeout=PATIENCE))

    save_shard(2)
    unreadable = Path(folder.url, "00000002", "manifest.json")
    unreadable.write_text("what a read error stands for")
    with pytest.raises(grpc.RpcError):
        save_shard(3)
    unreadable.unlink()
    one.save("--incremental")
    hotrow("checkpoint", "verify", "--checkpoints", folder.url)
    before = one.state()
    one.kill()
    assert cluster(1, folder, data="fresh").ready().state() == before


def test_a_new_shard_does_not_start_behind_the_others(cluster, folder, tmp_path):
    """From two shards to three: the two old folders refuse; the third, a fresh one, has started from the old checkpoint, and
    takes the new one when the others have been saved as the message says."""
    two = cluster(2, folder).ready()
    two.make_tables()
    two.train(1)
    two.save()
    two.train(2)
    before = two.state()
    two.kill()
    three = cluster(3, folder)
    for old in three.shards[:2]:
        assert "it would be lost" in refuses_to_start(old)
    time.sleep(1)
    if three.shards[2].process.child.poll() is None:
        three.shards[2].process.child.kill()
        three.shards[2].process.wait()
    folders = [word for number in (0, 1) for word in ("--data-dir", f"{tmp_path / 'data'}-{number}")]
    hotrow("checkpoint", "save", "--checkpoints", folder.url, *folders)
    assert cluster(3, folder).ready().state() == before


def test_saves_at_once_leave_every_shard_able_to_start(cluster, folder):
    """Whatever saves get in each other's way, what a shard's base.toml names is not removed."""
    two = cluster(2, folder, "--checkpoint-keep", 1).ready()
    two.make_tables()
    two.train(1)
    two.save()
    command = [str(BINARY), "checkpoint", "save", "--endpoint", two.addresses[0]]
    for attempt in range(12):
        two.train(attempt, slice(attempt, attempt + 5))
        saves = []
        for _ in range(3):
            saves.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            time.sleep(0.004)
        assert all(save.wait(PATIENCE) in (0, 1) for save in saves)
        there = {each["checkpoint"] for each in listed(folder)}
        for number in (0, 1):
            base = tomllib.loads(Path(f"{two.data}-{number}", "base.toml").read_text())
            assert set(base["checkpoints"]) <= there, (attempt, number)


def test_a_cluster_does_not_save_into_another_s_place(cluster, folder):
    """Nor does it remove what is there."""
    ours = cluster(1, folder, data="ours").ready()
    other = cluster(1, folder, "--cluster", "other", "--checkpoint-keep", 1, data="other").ready()
    for each in (ours, other):
        each.make_tables()
    ours.save()
    (mine,) = folder.names() - {"00000001/manifest.json"}
    done = subprocess.run([str(BINARY), "checkpoint", "save", "--endpoint", other.addresses[0]], capture_output=True, text=True)
    assert mine in folder.names(), "the other cluster has removed our checkpoint"
    assert done.returncode != 0


def test_memory_is_no_place(cluster):
    """The log would be removed for a checkpoint that is gone when the process ends."""

    class Memory:
        url = "memory:///x"

    with pytest.raises(AssertionError, match="nothing is saved to 'memory'"):
        cluster(1, Memory).ready()


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_only_the_cloud_s_own_variables_count(place, monkeypatch):
    """TIMEOUT or ENDPOINT may be anybody's."""
    monkeypatch.setenv("TIMEOUT", "5")
    assert listed(place) == []
    monkeypatch.delenv("TIMEOUT")
    monkeypatch.setenv("ENDPOINT", "http://127.0.0.1:1")
    assert listed(place) == []


def test_looking_makes_no_folder(tmp_path):
    """A path with a typing error is an error."""
    command = [str(BINARY), "checkpoint", "list", "--checkpoints", str(tmp_path / "typo")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and "there is no such folder" in done.stderr
    assert not (tmp_path / "typo").exists()
