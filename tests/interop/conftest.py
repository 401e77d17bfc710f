"""A real server for every test, and stubs generated from proto/ as any user would."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import grpc
import grpc_tools
import numpy as np
import pytest
from grpc_tools import protoc

import packing
from process import PATIENCE, Process, run

ROOT = Path(__file__).resolve().parents[2]
STUBS = pytest.StashKey()


def pytest_configure(config):
    stubs = config.stash[STUBS] = tempfile.mkdtemp(prefix="hotrow-stubs-")
    files = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    include = [f"-I{ROOT / 'proto'}", f"-I{well_known}"]
    if protoc.main(["protoc", *include, f"--python_out={stubs}", f"--grpc_python_out={stubs}", *files]) != 0:
        raise pytest.UsageError("protoc refuses the files under proto/")
    sys.path.insert(0, stubs)


def pytest_unconfigure(config):
    shutil.rmtree(config.stash[STUBS], ignore_errors=True)


class Server:
    """`hotrow serve` on loopback ports that the system chooses, and stubs that talk to it."""

    def __init__(self, *flags, listen="127.0.0.1:0"):
        from hotrow.v1 import admin_pb2_grpc, data_pb2_grpc, tables_pb2_grpc

        self.binary = os.environ.get("HOTROW_BIN", ROOT / "target" / "debug" / "hotrow")
        self.process = Process(self.binary, "serve", "--listen", listen, "--http", "127.0.0.1:0", *flags)
        self.address = self.process.wait_for_line(r"hotrow serves shard \d of \d on (127\.0\.0\.1:\d+)")
        self.http = self.process.wait_for_line(r"metrics on http://(127\.0\.0\.1:\d+)/metrics")
        self.channel = self.connect()
        self.data = data_pb2_grpc.DataStub(self.channel)
        self.tables = tables_pb2_grpc.TablesStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)

    def connect(self, **settings):
        # Loopback is never behind a proxy.
        return grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)], **settings)

    def create(self, name, dim, rows=0, **spec):
        """Makes a table. Where a test does not say otherwise: f32, plain SGD, all zeros, so that results are exact."""
        from hotrow.v1 import tables_pb2 as pb

        plain = {
            "precision": "f32",
            "optimizer": pb.Optimizer(name="sgd"),
            "learning_rate": 1.0,
            "initializer": pb.Initializer(zeros=pb.Initializer.Zeros()),
        }
        spec = pb.TableSpec(name=name, dim=dim, rows=rows, **{**plain, **spec})
        return self.tables.Create(pb.CreateTableRequest(spec=spec), timeout=PATIENCE)

    def assign(self, table, keys, rows):
        from hotrow.v1 import admin_pb2 as pb

        request = pb.AssignRowsRequest(table=table, keys=packing.keys(keys), weights=packing.f32(rows))
        return self.admin.AssignRows(request, timeout=PATIENCE)

    def push(self, table, keys, gradients, **more):
        """Pushes f32 gradients to one table. `more` is for the request, such as `client_id`."""
        from hotrow.v1 import data_pb2 as pb

        part = pb.TablePush(table=table, keys=packing.keys(keys), gradients=packing.f32(gradients))
        return self.data.Push(pb.PushRequest(tables=[part], **more), timeout=PATIENCE)

    def pull(self, table, keys, **more):
        """Pulls f32 rows of one table. `more` is for the table's part, such as `pooling`."""
        from hotrow.v1 import data_pb2 as pb

        part = pb.TablePull(table=table, keys=packing.keys(keys), **more)
        answer = self.data.Pull(pb.PullRequest(tables=[part]), timeout=PATIENCE)
        return np.frombuffer(answer.rows, "<f4").reshape(-1, answer.dims[0])

    def counts(self):
        """What the shard counts and holds. How it is doing, `status`, changes with every call, this one included."""
        from hotrow.v1 import admin_pb2 as pb

        stats = self.admin.Stats(pb.StatsRequest(), timeout=PATIENCE)
        assert stats.HasField("status")
        stats.ClearField("status")
        return stats

    def run(self, *arguments, expect=0):
        """Runs a command of `hotrow` against this server. Its result, or what it complained about."""
        done = run(self.binary, *arguments, "--endpoint", self.address)
        assert done.returncode == expect, done
        return done.stdout if expect == 0 else done.stderr

    def end(self):
        self.channel.close()
        return self.process.terminate()


@pytest.fixture
def start():
    """Starts servers with flags of one's own."""
    servers = []

    def start(*flags, **settings):
        servers.append(Server(*flags, **settings))
        return servers[-1]

    yield start
    codes = [server.end() for server in servers]
    assert codes == [0] * len(codes), "a server did not end well:\n" + "\n".join(s.process.text() for s in servers)


@pytest.fixture
def server(start):
    """A server of this test's own."""
    return start()


@pytest.fixture
def refused():
    """Checks that a call is refused with a code, and hands over the error."""

    def refused(code, call, *args, **more):
        with pytest.raises(grpc.RpcError) as error:
            call(*args, **more)
        assert error.value.code() == code, error.value
        assert error.value.details(), "a refusal says why"
        return error.value

    return refused
