"""The stock reflection client finds the services, and calls one without generated stubs."""

import grpc
import numpy as np
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from hotrow.v1 import admin_pb2, data_pb2, tables_pb2

import packing


def test_all_services_are_listed(server):
    services = set(ProtoReflectionDescriptorDatabase(server.channel).get_services())
    assert {"hotrow.v1.Data", "hotrow.v1.Tables", "hotrow.v1.Admin", "grpc.health.v1.Health"} <= services


def test_what_is_described_is_what_is_in_proto(server):
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(server.channel))
    for file in [data_pb2.DESCRIPTOR, tables_pb2.DESCRIPTOR, admin_pb2.DESCRIPTOR]:
        for name, service in file.services_by_name.items():
            found = pool.FindServiceByName(f"hotrow.v1.{name}")
            methods = [(m.name, m.input_type.full_name, m.output_type.full_name) for m in found.methods]
            assert methods == [(m.name, m.input_type.full_name, m.output_type.full_name) for m in service.methods]
        for name, message in file.message_types_by_name.items():
            found = pool.FindMessageTypeByName(f"hotrow.v1.{name}")
            fields = [(f.name, f.number, f.type) for f in found.fields]
            assert fields == [(f.name, f.number, f.type) for f in message.fields]


def test_a_pull_without_generated_stubs(server):
    server.create("t", 3)
    server.push("t", [8], [[1, 2, 3]])
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(server.channel))
    method = pool.FindServiceByName("hotrow.v1.Data").methods_by_name["Pull"]
    request = message_factory.GetMessageClass(method.input_type)()
    request.tables.add(table="t", keys=packing.keys([8]))
    answer_class = message_factory.GetMessageClass(method.output_type)
    call = server.channel.unary_unary(
        "/hotrow.v1.Data/Pull", type(request).SerializeToString, answer_class.FromString, _registered_method=False
    )
    np.testing.assert_array_equal(np.frombuffer(call(request).rows, "<f4"), [-1, -2, -3])
