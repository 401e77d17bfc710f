"""What a client does, against a real server."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import hotrow


def test_a_table_is_described_with_what_it_costs(client):
    spec = {"precision": "int4", "cache": "1%", "policy": "lfu", "optimizer": "adam:eps=1e-6"}
    made = client.create_table("item", 64, 1_000_000, **spec)
    assert (made.name, made.dim, made.rows, made.precision, made.policy) == ("item", 64, 1_000_000, "int4", "lfu")
    assert made.optimizer == "adam:beta1=0.9,beta2=0.999,eps=1e-6" and made.quantizer == "affine"
    assert made.total_bytes == pytest.approx(made.bytes_per_row * 1_000_000)
    assert client.table("item") == made and client.tables() == [made]
    assert client.create_table("item", 64, 1_000_000, **spec) == made
    stats = client.stats().tables["item"]
    assert stats.memory == pytest.approx(made.total_bytes, rel=0.01) and 9_900 < stats.cache_slots <= 10_000

    altered = client.alter_table("item", learning_rate=0.5, clip_norm=2.0)
    assert (altered.learning_rate, altered.clip_norm) == (0.5, 2.0)
    assert client.alter_table("item", clip_norm=0).clip_norm is None
    assert client.create_table("hashed", 8).rows is None
    client.drop_table("item")
    assert [table.name for table in client.tables()] == ["hashed"]


@pytest.mark.parametrize(
    ("precision", "defaults"),
    [(None, ("symmetric", "lru")), ("int4", ("affine", "lfu")), ("int2", ("affine", "lfu"))],
)
def test_defaults_depend_on_the_precision(client, precision, defaults):
    made = client.create_table("t", 16, 100_000, precision=precision)
    assert (made.quantizer, made.policy) == defaults
    own = client.create_table("own", 16, 100_000, precision=precision, policy="lru")
    assert (own.quantizer, own.policy) == (defaults[0], "lru")


def test_numbers_of_numpy_describe_a_table(client):
    made = client.create_table("t", np.int64(8), np.uint32(500_000), learning_rate=np.float32(0.25))
    assert (made.dim, made.rows, made.learning_rate) == (8, 500_000, 0.25)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "int3"}, "int3"),
        ({"optimizer": "adan"}, "rowwise_adagrad"),
        ({"cache": "5"}, "5%"),
        ({"dim": 0}, "dim is 0"),
        ({"dim": "x"}, "invalid type"),
        ({"quantizer": "symmetric", "precision": "int2"}, "affine"),
        ({"name": "a b"}, "letters"),
    ],
)
def test_a_wrong_table_is_refused_with_what_is_right(client, wrong, message):
    with pytest.raises(hotrow.InvalidRequest, match=message):
        client.create_table(**{"name": "t", "dim": 4, "rows": 10, **wrong})
    assert client.tables() == []


def test_another_table_of_the_same_name_is_refused(plain):
    with pytest.raises(hotrow.Refused, match="'t'") as refused:
        plain.create_table("t", 8, 100)
    assert (refused.value.code, refused.value.shard) == ("ALREADY_EXISTS", 0)
    assert refused.value.address == plain.address[0]


def test_several_tables_in_one_request(client):
    for name, dim in (("a", 2), ("b", 3), ("c", 1)):
        client.create_table(name, dim, 10, precision="f32", optimizer="sgd", learning_rate=1.0, initializer="zeros")
    ones = {"a": ([1, 1], np.ones((2, 2))), "b": ([2], np.ones((1, 3))), "c": ([], np.zeros((0, 1)))}
    client.push_many(ones)
    client.push_many(ones, learning_rate={"a": 10.0})
    client.push_many_later(ones, learning_rate=0.5).result()
    rows = client.pull_many({"b": [[2], [0]], "a": [1], "c": []})
    assert list(rows) == ["b", "a", "c"]
    assert rows["b"].tolist() == [[[-2.5] * 3], [[0] * 3]] and rows["a"].tolist() == [[-23] * 2]
    assert rows["c"].shape == (0, 1)
    later = client.prefetch_many({"a": [1], "b": [[2], [0]]})
    assert later.result()["b"].tolist() == rows["b"].tolist() and later.done()
    assert later.result()["a"].tolist() == [[-23] * 2], "again"


def test_bags_are_pooled_by_the_server(plain):
    plain.assign("t", [0, 1, 2], [[1] * 4, [2] * 4, [4] * 4])
    pooled = plain.pull_pooled("t", [0, 1, 2, 2], [0, 2, 2])
    assert pooled.tolist() == [[3] * 4, [0] * 4, [8] * 4]
    assert plain.pull_pooled("t", [0, 1, 2], [0, 2], mode="mean").tolist() == [[1.5] * 4, [4] * 4]
    assert plain.pull_pooled("t", [0, 1], [0], weights=[2, 0.5]).tolist() == [[3] * 4]
    with pytest.raises(hotrow.InvalidRequest, match="max"):
        plain.pull_pooled("t", [0], [0], mode="max")
    with pytest.raises(hotrow.InvalidRequest, match="offsets"):
        plain.pull_pooled("t", [0], [1])


def test_pushes_of_later_are_in_order_and_seen_by_the_next_pull(plain):
    gradients = np.ones((1, 4), dtype=np.float32)
    for round_ in range(100):
        pushed = plain.push_later("t", [1], gradients)
        gradients[:] = 1.0, 2.0, 3.0, 4.0
        assert plain.pull("t", 1).tolist() == [-(1 + k * round_) for k in (1, 2, 3, 4)]
        gradients[:] = 1.0, 2.0, 3.0, 4.0
    pushed.result()
    assert pushed.done() and pushed.result() is None


def test_adam_needs_its_step(client):
    client.create_table("t", 2, 10, precision="f32", optimizer="adam", learning_rate=0.1, initializer="zeros")
    with pytest.raises(hotrow.PushFailed, match="step") as failed:
        client.push("t", [1], [[1, 1]])
    assert failed.value.cause.code == "INVALID_ARGUMENT" and failed.value.sequence == 1
    client.push("t", [1], [[1, 1]], step=1)
    assert client.pull("t", 1) == pytest.approx([-0.1, -0.1])


def test_a_failure_of_a_push_of_later_is_told(client):
    client.create_table("t", 2, 10, precision="f32", optimizer="adam")
    later = client.push_later("t", [1], [[1, 1]])
    for _ in range(2):
        with pytest.raises(hotrow.PushFailed, match="step"):
            later.result()


def test_rows_one_by_one(client):
    client.create_table("t", 4, 100_000, precision="int8", cache="1%", optimizer="rowwise_adagrad")
    client.assign("t", [5], [[1, 2, 3, 4]], state=[[0.5]])
    row = client.inspect("t", 5)
    assert (row.cached, row.dirty, row.stored, row.state.tolist()) == (False, False, True, [0.5])
    client.touch("t", [5])
    assert client.inspect("t", 5).cached
    client.push("t", [5], [[1, 1, 1, 1]])
    assert client.inspect("t", 5).dirty and client.keys("t").tolist() == [5]


def test_stats_add_up(client):
    client.create_table("t", 16, 50_000, precision="int8", cache="1%")
    keys = np.arange(2000)
    client.push("t", keys, np.ones((2000, 16)))
    client.pull("t", keys)
    stats = client.stats()
    table = stats.tables["t"]
    assert (table.updated_rows, table.pull_hits + table.pull_misses) == (2000, 2000)
    assert 0 < table.pull_hit_rate < 1 and table.push_hit_rate == 0 and table.write_backs_per_update > 0.5
    curve = table.curve
    assert (curve.references, curve.sampled_keys, curve.sampling_rate, table.policy) == (2000, 2000, 1, "lru")
    assert curve.points[-1].hit_rate == 0, "every key came for the first time"
    client.push("t", keys, np.ones((2000, 16)))
    last = client.stats().tables["t"].curve.points[-1]
    assert (last.size, last.rows) == (16, 8000) and 0.49 < last.hit_rate <= 0.5
    assert table.rounding_rms > 0 and stats.memory_used == stats.shards[0].memory_used >= table.memory


def test_an_unknown_table_is_refused_with_its_name(client):
    for call in (
        lambda: client.pull("nope", [1]),
        lambda: client.push("nope", [1], [[1.0]]),
        lambda: client.prefetch("nope", [1]).result(),
        lambda: client.table("nope"),
    ):
        with pytest.raises(hotrow.Refused, match="nope") as refused:
            call()
        assert refused.value.code == "NOT_FOUND" and isinstance(refused.value, hotrow.Error)


def test_a_closed_client_says_so(server):
    client = hotrow.connect(server.address)
    assert repr(client) == f"hotrow.Client('{server.address}')"
    client.close()
    client.close()
    assert repr(client) == f"hotrow.Client('{server.address}', closed)"
    with pytest.raises(hotrow.Error, match="closed"):
        client.stats()


def test_a_client_is_not_pickled(client):
    with pytest.raises(TypeError, match="connect again"):
        pickle.dumps(client)
