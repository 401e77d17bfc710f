"""A server in the process, and the command line."""

from __future__ import annotations

import subprocess
import sys
import urllib.request

import numpy as np
import pytest

import hotrow


def test_metrics_are_on_http(server, plain):
    plain.pull("t", [1, 2, 3])
    text = urllib.request.urlopen(f"http://{server.http}/metrics", timeout=10).read().decode()
    assert 'method="Data/Pull"' in text
    assert repr(server) == f"hotrow.Server('{server.address}')"


def test_settings_are_flags(tmp_path):
    with hotrow.serve(seed=7, partitions=4, memory="1MiB") as server, hotrow.connect(server.address) as client:
        with pytest.raises(hotrow.Refused, match="memory") as refused:
            client.create_table("t", 64, 1_000_000)
        assert refused.value.code == "RESOURCE_EXHAUSTED"
    with pytest.raises(hotrow.Error, match="--sed"):
        hotrow.serve(sed=7)
    with pytest.raises(hotrow.Error, match="power of two"):
        hotrow.serve(partitions=5)


def test_the_seed_decides_initial_values():
    def first_row(**settings):
        with hotrow.serve(**settings) as server, hotrow.connect(server.address) as client:
            client.create_table("t", 8, 10)
            return client.pull("t", 3).tolist()

    assert first_row(seed=1) == first_row(seed=1) != first_row(seed=2)


def test_what_was_pushed_and_saved_is_there_again(tmp_path):
    settings = {"data_dir": tmp_path / "data", "checkpoints": tmp_path / "saved"}
    with hotrow.serve(**settings) as server, hotrow.connect(server.address) as client:
        client.create_table("t", 4, 100_000)
        client.push("t", [1, 2], np.ones((2, 4)))
        before = client.pull("t", [1, 2, 3])
        saved = client.save_checkpoint("step=1")
        assert saved.sequence >= 1 and saved.bytes > 0 and saved.label == "step=1"
        client.push("t", [3], np.ones((1, 4)))
        assert client.save_checkpoint("step=2", incremental=True).sequence > saved.sequence
    with hotrow.serve(**settings) as server, hotrow.connect(server.address) as client:
        after = client.pull("t", [1, 2, 3])
        assert after[:2].tolist() == before[:2].tolist() and after[2].tolist() != before[2].tolist()


def test_saving_without_a_place_says_what_to_set(client):
    with pytest.raises(hotrow.Refused, match="--checkpoints"):
        client.save_checkpoint()


def test_two_shards_hold_the_same_bits_as_one():
    def train(addresses):
        servers = [
            hotrow.serve(listen=address, shards=addresses, shard=number, seed=3)
            for number, address in enumerate(addresses)
        ]
        with hotrow.connect(addresses) as client:
            client.create_table("t", 8, 70_000, precision="int8", cache="1%")
            random = np.random.default_rng(5)
            for _ in range(20):
                keys = random.integers(0, 70_000, 500)
                client.push_later("t", keys, random.normal(size=(500, 8)))
            rows = client.pull("t", range(70_000))
            assert len(client.stats().shards) == len(addresses)
        [server.stop() for server in servers]
        return rows

    one = train([f"127.0.0.1:{free_port()}"])
    two = train([f"127.0.0.1:{free_port()}" for _ in range(2)])
    assert (one == two).all()


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_the_command_line_comes_with_the_package(server, plain):
    def run(*args):
        return subprocess.run([sys.executable, "-m", "hotrow", *args], capture_output=True, text=True, timeout=60)

    assert run("--version").stdout == f"hotrow {hotrow.__version__}\n"
    shown = run("stats", "--endpoint", server.address)
    assert shown.returncode == 0 and "t  " in shown.stdout
    failed = run("pull", "nope", "1", "--endpoint", server.address)
    assert failed.returncode == 1 and "nope" in failed.stderr
    assert run("nonsense").returncode == 2


def test_import_needs_numpy_alone():
    heavy = "{'torch', 'grpc', 'google.protobuf', 'torchrec'}"
    subprocess.run([sys.executable, "-c", f"import hotrow, sys; assert not {heavy} & set(sys.modules)"], check=True)
