"""What a torch user expects of a module: schedulers, state_dict, pickles, eval mode, and errors that help."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBag, EmbeddingBagCollection, Table
from torch.optim import lr_scheduler
from torch_batches import rows_of, twin

SPEC: dict[str, Any] = {"precision": "f32", "optimizer": "sgd", "learning_rate": 0.1, "initializer": "uniform:-0.5,0.5"}
KEYS = torch.tensor([[1, 2], [3, 3]])

SCHEDULES = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 3, gamma=0.5),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=10, cycle_momentum=False),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.filterwarnings("error")
def test_schedulers(client: hotrow.Client, name: str, schedule: str) -> None:
    """The rate of the moment rides on each push: the same rows as torch's optimizer with the same schedule."""
    ours, theirs = EmbeddingBag(client, name, 10, 4, **SPEC), twin(client, name, mode="sum")
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
    schedules = [SCHEDULES[schedule](optimizer) for optimizer in (ours.fused_optimizer, sgd)]
    rates = set()
    for _ in range(9):
        ours(KEYS).tanh().sum().backward()
        theirs(KEYS).tanh().sum().backward()
        for optimizer, own in zip((ours.fused_optimizer, sgd), schedules):
            optimizer.step()
            optimizer.zero_grad()
            own.step()
        rates.add(ours.fused_optimizer.param_groups[0]["lr"])
    torch.testing.assert_close(rows_of(client, name), theirs.weight.detach(), rtol=0, atol=1e-6)
    assert len(rates) > 2


def test_rates_by_table(client: hotrow.Client, name: str) -> None:
    """A rate of the table's own, one for all, and the one that the table has."""
    client.create_table(f"{name}c", 4, 10, optimizer="sgd", learning_rate=0.25)
    tables = [Table(f"{name}a", 4, 10, learning_rate=0.5), Table(f"{name}b", 4, 10)]
    module = EmbeddingBagCollection(client, tables, optimizer="sgd", learning_rate=0.125)
    assert module.fused_optimizer.learning_rates == {f"{name}a": 0.5, f"{name}b": 0.125}
    assert EmbeddingBag(client, f"{name}c", 10, 4).fused_optimizer.learning_rates == {f"{name}c": 0.25}
    module.fused_optimizer.param_groups[1]["lr"] = 0.0
    before = rows_of(client, f"{name}b")
    sum(out.sum() for out in module({f"{name}a": KEYS, f"{name}b": KEYS}).values()).backward()
    assert torch.equal(rows_of(client, f"{name}b"), before)
    saved = module.fused_optimizer.state_dict()
    other = EmbeddingBagCollection(client, tables, optimizer="sgd", learning_rate=0.125).fused_optimizer
    other.load_state_dict(saved)
    assert other.learning_rates == {f"{name}a": 0.5, f"{name}b": 0.0}


def test_the_closure_of_a_step_is_called(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, **SPEC)

    def closure() -> torch.Tensor:
        loss = module(KEYS).sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert module.fused_optimizer.step(closure).requires_grad
    assert module.step == 1


def test_adam_goes_on_where_it_was(client: hotrow.Client, name: str) -> None:
    """Saved after 10 steps and loaded by another module: as if nothing had been. Without the step number it is not."""

    def train(module: torch.nn.Module, stepper: Any, steps: int) -> None:
        for _ in range(steps):
            module(KEYS).tanh().sum().backward()
            stepper.step()
            stepper.zero_grad()

    spec = {**SPEC, "optimizer": "adam", "learning_rate": 0.01}
    module = EmbeddingBag(client, name, 10, 4, **spec)
    theirs = twin(client, name, mode="sum", sparse=True)
    adam = torch.optim.SparseAdam(theirs.parameters(), lr=0.01)
    train(theirs, adam, 20)
    train(module, module.fused_optimizer, 10)
    module.flush()
    file = io.BytesIO()
    torch.save(torch.nn.Sequential(module).state_dict(), file)
    assert len(file.getvalue()) < 10_000

    file.seek(0)
    other = EmbeddingBag(client, name, 10, 4, **spec)
    torch.nn.Sequential(other).load_state_dict(torch.load(file, weights_only=True))
    assert other.step == 10
    train(other, other.fused_optimizer, 10)
    torch.testing.assert_close(rows_of(client, name), theirs.weight.detach(), rtol=0, atol=1e-6)

    forgetful = EmbeddingBag(client, name, 10, 4, **spec)
    before = rows_of(client, name)
    train(forgetful, forgetful.fused_optimizer, 1)
    assert (rows_of(client, name) - before).abs().max() > 0.02, "the trap that the step number is there for"


def test_state_dict_has_no_weights(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, **SPEC)
    (state,) = module.state_dict().values()
    assert state["address"] == list(client.address)
    assert state["step"] == 0
    (table,) = state["tables"]
    assert (table["name"], table["dim"], table["rows"], table["precision"]) == (name, 4, 10, "f32")
    assert list(module.parameters()) == [] and list(module.buffers()) == []


def test_state_of_another_table_is_refused(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4)
    for other in (EmbeddingBag(client, f"{name}b", 10, 4), EmbeddingBag(client, f"{name}c", 10, 8)):
        says = f"is of table '{other.name}' with 10 rows.*has table '{name}' with 10 rows of dim 4"
        with pytest.raises(RuntimeError, match=says):
            module.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match="_extra_state"):
        module.load_state_dict({})


@pytest.mark.parametrize("way", ["pickle", "torch.save"])
def test_pickle(client: hotrow.Client, name: str, way: str) -> None:
    """The other module connects by itself, sees what was pushed before, and trains the same table."""
    module = EmbeddingBag(client, name, 10, 4, mode="mean", padding_idx=3, lookahead=1, in_flight=3, **SPEC)
    module(KEYS).sum().backward()
    module.fused_optimizer.param_groups[0]["lr"] = 0.5
    module.prefetch(KEYS)
    if way == "pickle":
        other = pickle.loads(pickle.dumps(module))
    else:
        file = io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert repr(other) == repr(module)
    assert (other.step, other.in_flight, other.lookahead) == (1, 3, 1)
    assert other.fused_optimizer.learning_rates == {name: 0.5}
    before = rows_of(client, name)
    out = other(KEYS)
    assert torch.equal(out.detach(), module.eval()(KEYS))
    out.sum().backward()
    other.flush()
    assert other.client is not client
    moved = (before - rows_of(client, name))[:, 0]
    torch.testing.assert_close(moved, torch.tensor([0, 0.25, 0.25, 0, 0, 0, 0, 0, 0, 0]), rtol=0, atol=1e-6)
    other.client.close()


def test_a_pickle_has_no_secrets(server: hotrow.Server, name: str) -> None:
    with hotrow.connect(server.address, token="hush-hush") as client:
        assert b"hush-hush" not in pickle.dumps(EmbeddingBag(client, name, 10, 4))


def test_deepcopy_shares_the_client(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, **SPEC)
    module(KEYS).sum().backward()
    module.prefetch(KEYS)
    other = copy.deepcopy(module)
    assert other.client is client
    other.fused_optimizer.param_groups[0]["lr"] = 0.0
    assert module.fused_optimizer.learning_rates == {name: 0.1}
    # What is under way stays with the one that began it.
    module(KEYS).sum().backward()
    assert len(module._pushes) > 0 and len(other._pushes) == 0
    other(KEYS + 1).sum().backward()
    assert (module.step, other.step) == (2, 2)


def test_repr(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, f"{name}a", 1000, 16, mode="mean", precision="int8", cache="5%")
    assert repr(module) == f"EmbeddingBag(1000, 16, mode='mean', table='{name}a', precision='int8', cache='5%')"
    module = EmbeddingBag(client, f"{name}b", None, 16, precision="f16", cache="100rows", padding_idx=-1, lookahead=2)
    assert repr(module).endswith("precision='f16', cache='100rows', padding_idx=-1, lookahead=2)")
    shared = Table(f"{name}c", 8, 30, feature_names=["f", "g"], precision="int4")
    tables = [shared, Table(f"{name}d", 4, cache="50rows")]
    assert repr(EmbeddingBagCollection(client, tables, cache="10%")).splitlines() == [
        "EmbeddingBagCollection(",
        f"  Table('{name}c', 8, 30, feature_names=['f', 'g'], pooling='sum', precision='int4', cache='10%')",
        f"  Table('{name}d', 4, None, feature_names=['{name}d'], pooling='sum', precision='int8', cache='50rows')",
        ")",
    ]
    assert repr(shared) == f"Table('{name}c', 8, 30, feature_names=['f', 'g'], pooling='sum', precision='int4')"


def test_reading_only_pushes_nothing(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, **SPEC)
    head = torch.nn.Linear(4, 1)

    def updated() -> int:
        return client.stats().tables[name].updated_rows

    module(KEYS).sum().backward()
    module.flush()
    assert updated() == 3
    with torch.no_grad():
        assert not module(KEYS).requires_grad
    with torch.inference_mode():
        assert not module(KEYS).requires_grad
    module.eval()
    assert not module(KEYS).requires_grad
    head(module(KEYS)).sum().backward()
    assert head.weight.grad is not None
    module.flush()
    assert updated() == 3 and module.step == 1
    module.train()
    head(module(KEYS)).sum().backward()
    module.flush()
    assert updated() == 6 and module.step == 2


def test_gradients_of_other_things_push_nothing(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, **SPEC)
    scale = torch.ones(4, requires_grad=True)
    torch.autograd.grad((module(KEYS) * scale).sum(), scale)
    assert module.step == 0


def test_half_precision_around_it(client: hotrow.Client, name: str) -> None:
    """Rows are f32 whatever the rest of the model is, and so are the gradients that travel."""
    module = EmbeddingBag(client, name, 10, 4, **SPEC)
    model = torch.nn.Sequential(module, torch.nn.Linear(4, 1)).to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module(KEYS).dtype == torch.float32
        loss = model(KEYS).float().sum()
    before = rows_of(client, name)
    loss.backward()
    module.flush()
    moved = before - rows_of(client, name)
    torch.testing.assert_close(moved[1], 0.1 * model[1].weight[0].detach().float(), rtol=0.02, atol=0)


def test_a_table_that_exists_is_taken(client: hotrow.Client, name: str) -> None:
    client.create_table(name, 4, 10, precision="f16", optimizer="adagrad", learning_rate=0.25)
    module = EmbeddingBag(client, name, 10, 4)
    assert (module.tables[name].precision, module.tables[name].optimizer) == ("f16", "adagrad:eps=1e-10")
    with pytest.raises(ValueError, match="has 10 rows of dim 4 on the servers, but 10 rows of dim 8"):
        EmbeddingBag(client, name, 10, 8)
    with pytest.raises(ValueError, match="hashed keys of dim 4"):
        EmbeddingBag(client, name, None, 4)
    with pytest.raises(hotrow.Refused):
        EmbeddingBag(client, name, 10, 4, precision="int8")


def test_weight_says_where_the_rows_are(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4)
    with pytest.raises(AttributeError, match="client.pull"):
        _ = module.weight
    with pytest.raises(AttributeError, match="no attribute 'wieght'"):
        _ = module.wieght


ONE, TWO = torch.tensor([1, 2]), torch.tensor([[1, 2]])
START = torch.tensor([0])


@pytest.mark.parametrize(
    "arguments, error, says",
    [
        ((torch.tensor([0.5]), START), TypeError, "Long, Int; but got torch.FloatTensor"),
        (([1, 2], START), TypeError, "torch.as_tensor"),
        ((TWO, START), ValueError, "if input is 2D, then offsets has to be None"),
        ((ONE,), ValueError, "1D Tensor for 1D input, but got None"),
        ((torch.zeros(1, 1, 1, dtype=torch.long),), ValueError, "1D or 2D Tensor"),
        ((ONE, torch.tensor([[0]])), ValueError, "1D Tensor for 1D input, but got a Tensor of dimension 2"),
        ((ONE, torch.tensor([0.0])), TypeError, "offsets to be Long or Int"),
        ((ONE, torch.tensor([1])), ValueError, r"offsets\[0\] has to be 0"),
        ((ONE, torch.tensor([0, 3])), ValueError, "not to be greater than the number of keys, 2"),
        ((ONE, torch.tensor([0, 2, 1])), ValueError, "have to ascend"),
        ((ONE, torch.zeros(0, dtype=torch.long)), ValueError, "no bag for them"),
        ((ONE, START, torch.ones(3)), ValueError, "same shape as the keys"),
        ((torch.tensor([1, 10]), START), IndexError, "index 10 is out of range for table '.*' with 10 rows"),
        ((torch.tensor([-1, 3]), START), IndexError, "index -1 is out of range"),
    ],
)
def test_inputs_that_do_not_fit(client: hotrow.Client, name: str, arguments: Any, error: type, says: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, lookahead=1)
    with pytest.raises(error, match=says):
        module(*arguments)
    with pytest.raises(error, match=says):
        module.prefetch(*arguments)


def test_weights_want_a_sum(client: hotrow.Client, name: str) -> None:
    with pytest.raises(NotImplementedError, match="mode='mean'"):
        EmbeddingBag(client, name, 10, 4, mode="mean")(ONE, START, torch.ones(2))


def test_the_last_offset_is_checked(client: hotrow.Client, name: str) -> None:
    with pytest.raises(ValueError, match="the last offset has to be the number of keys, 2"):
        EmbeddingBag(client, name, 10, 4, include_last_offset=True)(ONE, START)


@pytest.mark.parametrize(
    "options, error, says",
    [
        ({"mode": "median"}, ValueError, "mode has to be one of sum, mean, max"),
        ({"padding_idx": 10}, ValueError, "within num_embeddings=10"),
        ({"in_flight": 0}, ValueError, "between 1 and 32"),
        ({"in_flight": 33}, ValueError, "between 1 and 32"),
        ({"lookahead": -1}, ValueError, "0 or more"),
        ({"percision": "int8"}, TypeError, "unexpected keyword argument 'percision'.*precision"),
    ],
)
def test_options_that_do_not_fit(client: hotrow.Client, name: str, options: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        EmbeddingBag(client, name, 10, 4, **options)
    # It was found before anything was made.
    assert name not in [table.name for table in client.tables()]
