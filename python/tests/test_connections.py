"""Connecting, waiting and giving up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hotrow


@pytest.fixture
def silent():
    """An address where somebody listens and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_there(silent):
    with pytest.raises(hotrow.TimedOut, match="did not answer") as timed_out:
        hotrow.connect(silent, timeout=0.3)
    assert isinstance(timed_out.value, TimeoutError) and timed_out.value.address == silent
    with pytest.raises(hotrow.Error, match="host:port"):
        hotrow.connect("not an address", timeout=0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "f8"}, "rows"),
        ({"gradients": "int8"}, "gradients"),
        ({"timeout": -1}, "timeout"),
        ({"cert": "c.pem"}, "cert and key"),
        ({"domain": "hotrow"}, "ca"),
    ],
)
def test_wrong_options_are_named(server, options, message):
    with pytest.raises(hotrow.Error, match=message):
        hotrow.connect(server.address, **options)


def test_ctrl_c_ends_a_call_that_waits(silent):
    program = f"""
import hotrow, signal, sys
# A shell that starts the tests in the background makes all its children deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("waiting", flush=True)
try:
    hotrow.connect({silent!r}, timeout=60)
except KeyboardInterrupt:
    sys.exit(42)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    assert child.wait(10) == 42


def test_other_threads_run_while_a_call_waits(silent):
    """The GIL is given back: this thread counts while the other one waits."""
    outcome = []

    def connect():
        try:
            hotrow.connect(silent, timeout=1.0)
        except hotrow.TimedOut as error:
            outcome.append(error)

    waiting = threading.Thread(target=connect)
    waiting.start()
    counted = 0
    while waiting.is_alive():
        counted += 1
        time.sleep(0.01)
    assert counted > 10 and len(outcome) == 1


def test_a_future_may_be_asked_with_a_timeout(plain):
    later = plain.prefetch("t", [1])
    assert later.result(timeout=10).shape == (1, 4)
    with pytest.raises(hotrow.Error, match="timeout"):
        plain.prefetch("t", [1]).result(timeout=-1)


def test_threads_share_a_client(plain):
    def work(key):
        for _ in range(50):
            plain.push("t", [key], np.ones((1, 4)))

    threads = [threading.Thread(target=work, args=(key % 5,)) for key in range(10)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert plain.pull("t", range(5))[:, 0].tolist() == [-100] * 5


def test_pushes_under_way_are_finished_when_a_process_ends(server):
    # Large enough for many to be under way at the end.
    program = f"""
import hotrow, numpy as np
client = hotrow.connect({server.address!r})
client.create_table("t", 64, 5000, precision="f32", optimizer="sgd", learning_rate=1.0, initializer="zeros")
keys, ones = np.arange(5000), np.ones((5000, 64), dtype=np.float32)
for _ in range(40):
    client.push_later("t", keys, ones)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with hotrow.connect(server.address) as client:
        assert (client.pull("t", range(5000)) == -40).all()
        assert client.stats().shards[0].open_clients == 0, "it said good-bye"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_told_what_to_do(plain):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            plain.pull("t", [1])
            message = "it worked"
        except BaseException as error:  # Whatever it is, the parent shall see it.
            message = str(error)
        os.write(writer, message.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert "spawn" in os.read(reader, 10_000).decode()
    assert plain.pull("t", [1]).shape == (1, 4), "the parent goes on"


def test_rows_may_travel_smaller(server, plain):
    values = np.linspace(-1, 1, 400, dtype=np.float32).reshape(100, 4)
    plain.assign("t", range(100), values)
    for rows, error in (("f16", 1e-3), ("bf16", 1e-2), ("int8", 1e-2)):
        with hotrow.connect(server.address, rows=rows, gradients="bf16") as client:
            pulled = client.pull("t", range(100))
            assert 0 < np.abs(pulled - values).max() < error
