"""The stock health client."""

import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthStub

from process import PATIENCE


@pytest.mark.parametrize("service", ["", "hotrow.v1.Data", "hotrow.v1.Tables", "hotrow.v1.Admin"])
def test_a_server_is_serving(server, service):
    answer = HealthStub(server.channel).Check(pb.HealthCheckRequest(service=service))
    assert answer.status == pb.HealthCheckResponse.SERVING


def test_an_unknown_service_is_not_found(server):
    with pytest.raises(grpc.RpcError) as error:
        HealthStub(server.channel).Check(pb.HealthCheckRequest(service="hotrow.v9.Data"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_watcher_sees_the_end_and_does_not_delay_it(start):
    server = start("--drain-seconds", "10")
    watch = HealthStub(server.channel).Watch(pb.HealthCheckRequest(service="hotrow.v1.Data"), timeout=PATIENCE)
    assert next(watch).status == pb.HealthCheckResponse.SERVING
    server.process.child.terminate()
    assert next(watch).status == pb.HealthCheckResponse.NOT_SERVING
    assert server.process.wait() == 0, server.process.text()


def test_probes_over_http(server):
    # Loopback is never behind a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for path in ["healthz", "readyz"]:
        with opener.open(f"http://{server.http}/{path}", timeout=PATIENCE) as answer:
            assert answer.status == 200
