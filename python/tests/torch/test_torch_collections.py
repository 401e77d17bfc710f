"""Collections: features that share tables, dicts and KeyedJaggedTensors, with TorchRec's own modules beside them."""

from __future__ import annotations

from typing import Any

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBagCollection, EmbeddingCollection, Table
from torch_batches import bags, rows_of, twin

SPEC: dict[str, Any] = {
    "precision": "f32", "optimizer": "sgd", "learning_rate": 0.1, "initializer": "uniform:-0.5,0.5"
}  # fmt: skip
ONE = torch.tensor([1])


def test_features_share_a_table(client: hotrow.Client, name: str) -> None:
    """Two features of one table, and one of another: as torch's modules, of which one is used twice."""
    tables = [Table(f"{name}a", 8, 30, feature_names=["bought", "viewed"], pooling="mean"), Table(f"{name}b", 4, 20)]
    ours = EmbeddingBagCollection(client, tables, **SPEC)
    first, second = twin(client, f"{name}a", mode="mean"), twin(client, f"{name}b", mode="sum")
    stepper = torch.optim.SGD([first.weight, second.weight], lr=0.1)
    for _ in range(20):
        bought, viewed, single = bags(30, 6, 4), bags(30, 6, 4), torch.randint(0, 20, (6,))
        got = ours({"viewed": viewed, f"{name}b": single, "bought": bought})
        assert list(got) == ["bought", "viewed", f"{name}b"]
        wanted = [first(*bought), first(*viewed), second(single[:, None])]
        scales = [1.0, -2.0, 3.0]
        for out, want in zip(got.values(), wanted):
            torch.testing.assert_close(out, want, rtol=0, atol=1e-6)
        sum((out.tanh() * scale).sum() for out, scale in zip(got.values(), scales)).backward()
        sum((out.tanh() * scale).sum() for out, scale in zip(wanted, scales)).backward()
        stepper.step()
        stepper.zero_grad()
    torch.testing.assert_close(rows_of(client, f"{name}a"), first.weight.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(rows_of(client, f"{name}b"), second.weight.detach(), rtol=0, atol=1e-6)


def test_a_feature_of_two_tables(client: hotrow.Client, name: str) -> None:
    tables = [Table(f"{name}a", 4, 10, feature_names=["f"]), Table(f"{name}b", 8, 10, feature_names=["f", "g"])]
    out = EmbeddingBagCollection(client, tables)({"f": torch.tensor([1]), "g": torch.tensor([2])})
    assert {key: tuple(value.shape) for key, value in out.items()} == {
        f"f@{name}a": (1, 4), f"f@{name}b": (1, 8), "g": (1, 8)
    }  # fmt: skip


def test_weights_of_a_dict(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBagCollection(client, [Table(name, 4, 10)], **SPEC)
    weights = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    out = module({name: (torch.tensor([1, 2, 3]), torch.tensor([0, 2]), weights)})[name]
    rows = rows_of(client, name)
    torch.testing.assert_close(out.detach(), torch.stack([2 * rows[1] - rows[2], 0.5 * rows[3]]))
    out.sum().backward()
    torch.testing.assert_close(weights.grad, rows[1:4].sum(1))


def test_rows_without_pooling(client: hotrow.Client, name: str) -> None:
    module = EmbeddingCollection(client, [Table(name, 4, 10, feature_names=["a", "b"])], **SPEC)
    before = rows_of(client, name)
    out = module({"a": torch.tensor([4, 4, 2]), "b": torch.tensor([[1, 2], [3, 4]])})
    assert torch.equal(out["a"].detach(), before[[4, 4, 2]])
    assert torch.equal(out["b"].detach(), before[torch.tensor([[1, 2], [3, 4]])])
    (out["a"].sum() + out["b"].sum()).backward()
    module.flush()
    moved = ((before - rows_of(client, name)) / 0.1)[:, 0]
    torch.testing.assert_close(moved, torch.tensor([0.0, 1, 2, 1, 3, 0, 0, 0, 0, 0]), rtol=0, atol=1e-5)


def test_a_table_without_keys(client: hotrow.Client, name: str) -> None:
    """In a batch where nobody has a key of one table, or of any."""
    tables = [Table(f"{name}a", 4, 10), Table(f"{name}b", 8, 10)]
    module = EmbeddingBagCollection(client, tables, lookahead=1, **SPEC)
    none = (torch.zeros(0, dtype=torch.long), torch.zeros(3, dtype=torch.long))
    some = {f"{name}a": none, f"{name}b": torch.tensor([1, 2, 3])}
    for batch in (some, {f"{name}a": none, f"{name}b": none}):
        for ahead in (False, True):
            if ahead:
                module.prefetch(batch)
            out = module(batch)
            assert torch.equal(out[f"{name}a"].detach(), torch.zeros(3, 4))
            assert out[f"{name}b"].shape == (3, 8)
            (out[f"{name}a"].sum() + out[f"{name}b"].sum()).backward()
    module.flush()
    stats = client.stats().tables
    assert (stats[f"{name}a"].updated_rows, stats[f"{name}b"].updated_rows) == (0, 6)


@pytest.mark.parametrize(
    "features, error, says",
    [
        ({"a": ONE}, ValueError, "missing: b"),
        ({"a": ONE, "b": ONE, "c": ONE}, ValueError, "no table has feature 'c'"),
        ({"a": ONE, "b": torch.tensor([0.5])}, TypeError, "Long, Int"),
        ({"a": ONE, "b": [1]}, TypeError, "torch.as_tensor"),
        ({"a": ONE, "b": (ONE, ONE)}, ValueError, "feature 'b'.*has to be 0"),
        ({"a": (ONE, ONE - 1, torch.ones(1)), "b": ONE}, NotImplementedError, "mode='mean'"),
        ([ONE], TypeError, "dict by feature name"),
    ],
)
def test_features_that_do_not_fit(client: hotrow.Client, name: str, features: Any, error: type, says: str) -> None:
    module = EmbeddingBagCollection(client, [Table(name, 4, 10, feature_names=["a", "b"], pooling="mean")])
    with pytest.raises(error, match=says):
        module(features)


@pytest.mark.parametrize(
    "tables, error, says",
    [
        ([], ValueError, "at least one"),
        ([Table("x", 4, 10), Table("x", 4, 10)], ValueError, "duplicate table name 'x'"),
        ([Table("x", 4, 10, feature_names=["f", "f"])], ValueError, "twice"),
        (["x"], TypeError, "hotrow.torch.Table"),
    ],
)
def test_tables_that_do_not_fit(client: hotrow.Client, tables: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        EmbeddingBagCollection(client, tables)


@pytest.mark.parametrize("weighted", [False, True])
def test_equals_torchrec_pooled(client: hotrow.Client, name: str, weighted: bool) -> None:
    torchrec = pytest.importorskip("torchrec")
    pooling = torchrec.PoolingType.SUM if weighted else torchrec.PoolingType.MEAN
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"{name}a", embedding_dim=8, num_embeddings=30, feature_names=["f", "g"], pooling=pooling
        ),
        torchrec.EmbeddingBagConfig(name=f"{name}b", embedding_dim=4, num_embeddings=20, feature_names=["f", "h"]),
    ]
    theirs = torchrec.EmbeddingBagCollection(tables=configs, is_weighted=weighted)
    ours = EmbeddingBagCollection(client, configs, **SPEC)
    with torch.no_grad():
        for config in configs:
            theirs.embedding_bags[config.name].weight.copy_(rows_of(client, config.name))
    stepper = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(10):
        features = _jagged(torchrec, weighted)
        got, wanted = ours(features), theirs(features)
        assert isinstance(got, torchrec.KeyedTensor)
        assert got.keys() == wanted.keys()
        assert got.length_per_key() == wanted.length_per_key()
        torch.testing.assert_close(got.values(), wanted.values(), rtol=0, atol=1e-6)
        for out in (got, wanted):
            out.values().tanh().sum().backward()
        stepper.step()
        stepper.zero_grad()
    for config in configs:
        weight = theirs.embedding_bags[config.name].weight.detach()
        torch.testing.assert_close(rows_of(client, config.name), weight, rtol=0, atol=1e-6)


def test_equals_torchrec_rows(client: hotrow.Client, name: str) -> None:
    torchrec = pytest.importorskip("torchrec")
    configs = [
        torchrec.EmbeddingConfig(name=f"{name}a", embedding_dim=8, num_embeddings=20, feature_names=["f", "g"]),
        torchrec.EmbeddingConfig(name=f"{name}b", embedding_dim=8, num_embeddings=20, feature_names=["h"]),
    ]
    theirs = torchrec.EmbeddingCollection(tables=configs)
    ours = EmbeddingCollection(client, configs, **SPEC)
    with torch.no_grad():
        for config in configs:
            theirs.embeddings[config.name].weight.copy_(rows_of(client, config.name))
    features = _jagged(torchrec, False)
    got, wanted = ours(features), theirs(features)
    assert list(got) == list(wanted)
    for feature, jagged in wanted.items():
        assert isinstance(got[feature], torchrec.JaggedTensor)
        assert torch.equal(got[feature].values(), jagged.values())
        assert torch.equal(got[feature].lengths(), jagged.lengths())


def _jagged(torchrec: Any, weighted: bool) -> Any:
    """Features f, g, h with keys below 20, and one more that no table has."""
    lengths = torch.randint(0, 4, (4 * 5,))
    values = torch.randint(0, 20, (int(lengths.sum()),))
    weights = torch.rand(len(values)) if weighted else None
    return torchrec.KeyedJaggedTensor(keys=["h", "other", "f", "g"], values=values, lengths=lengths, weights=weights)
