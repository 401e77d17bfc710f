"""Rows travel in every precision as NumPy rounds them."""

import numpy as np
import pytest
from hotrow.v1 import data_pb2 as pb

import packing

KEYS = np.array([3, 0, 2**64 - 1, 17, 3], "u8")


def rows_of(dim):
    random = np.random.default_rng(dim)
    rows = random.normal(0, 0.05, (len(KEYS), dim)).astype("f4")
    # Halves between two neighbours, of f16 and of bf16, to either side; numbers below f16's normal ones; both zeros.
    special = np.array([1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-8, 1 + 3 * 2**-8, 3e-7, 2**-25, 3 * 2**-25, -0.0, 0.0], "f4")
    rows[1] = np.resize(special, dim)
    rows[2] = 0
    rows[4] = rows[0]
    return rows


@pytest.fixture(params=[1, 7, 16, 33, 128])
def dim(request):
    return request.param


def pull(server, dim, form):
    server.create("t", dim)
    server.assign("t", KEYS, rows_of(dim))
    part = pb.TablePull(table="t", keys=packing.keys(KEYS))
    answer = server.data.Pull(pb.PullRequest(tables=[part], format=form))
    assert list(answer.dims) == [dim]
    return answer.rows


def test_f32_is_exact(server, dim):
    assert pull(server, dim, pb.WIRE_FORMAT_F32) == packing.f32(rows_of(dim))


def test_f32_is_the_default(server, dim):
    assert pull(server, dim, pb.WIRE_FORMAT_UNSPECIFIED) == packing.f32(rows_of(dim))


def test_f16_is_numpy_s(server, dim):
    assert pull(server, dim, pb.WIRE_FORMAT_F16) == packing.f16(rows_of(dim))


def test_bf16_is_the_upper_half_rounded_to_nearest(server, dim):
    assert pull(server, dim, pb.WIRE_FORMAT_BF16) == packing.bf16(rows_of(dim))


def test_int8_is_a_scale_and_signed_bytes(server, dim):
    data = pull(server, dim, pb.WIRE_FORMAT_INT8)
    assert len(data) == len(KEYS) * (2 + dim)
    rows = rows_of(dim)
    scale_bits, codes = packing.to_int8(rows)
    packed = np.frombuffer(data, np.dtype([("scale", "<u2"), ("codes", "i1", (dim,))]))
    np.testing.assert_array_equal(packed["scale"], scale_bits)
    np.testing.assert_array_equal(packed["codes"], codes)
    # Whatever the rule, no number is further off than half a step.
    steps = packing.from_bf16(scale_bits)[:, None]
    assert (np.abs(packing.rows_from("int8", data, dim) - rows) <= steps / 2).all()
    # The step is as small as it can be: the largest number has one of the largest codes.
    assert (np.abs(codes.astype(int)).max(axis=1)[rows.any(axis=1)] >= 126).all()
