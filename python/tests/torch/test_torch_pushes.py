"""Pushes go on behind backward: so many and no more, and none fails unnoticed."""

from __future__ import annotations

import pickle
import time
from typing import Any

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBag
from hotrow.torch.pushes import Pushes

KEYS = torch.tensor([[1, 2], [3, 3]])


class Waiting:
    """A push that is under way until somebody waits for it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.finished = False
        self.results = 0

    def begin(self) -> Waiting:
        return self

    def done(self) -> bool:
        return self.finished

    def result(self, timeout: float | None = None) -> None:
        self.finished = True
        self.results += 1
        if self.error is not None:
            raise self.error


def test_no_more_than_the_limit() -> None:
    pushes, futures = Pushes(3), [Waiting() for _ in range(10)]
    for number, future in enumerate(futures):
        pushes.add(future.begin)
        assert len(pushes) == min(number + 1, 3)
        # The oldest was waited for, before the new one was begun, and no other.
        assert [waited.finished for waited in futures] == [older <= number - 3 for older in range(10)]
    pushes.flush()
    assert [future.results for future in futures] == [1] * 10
    assert (len(pushes), pushes.begun) == (0, 10)


def test_a_failure_is_raised_once() -> None:
    for surface in ("check", "flush", "add"):
        pushes, failed, fine = Pushes(2), Waiting(ValueError("no")), Waiting()
        pushes.add(failed.begin)
        pushes.add(fine.begin)
        failed.finished = surface == "check"
        with pytest.raises(ValueError, match="no"):
            pushes.add(Waiting) if surface == "add" else getattr(pushes, surface)()
        pushes.flush()
        assert fine.finished


def test_all_are_waited_for_though_one_fails() -> None:
    pushes, futures = Pushes(4), [Waiting(), Waiting(ValueError("first")), Waiting(ValueError("second")), Waiting()]
    for future in futures:
        pushes.add(future.begin)
    with pytest.raises(ValueError, match="first"):
        pushes.flush()
    assert all(future.finished for future in futures)


def test_a_pickle_is_made_when_all_are_applied() -> None:
    pushes, fine, failed = Pushes(2), Waiting(), Waiting(ValueError("no"))
    pushes.add(fine.begin)
    assert pickle.loads(pickle.dumps(pushes)).limit == 2
    assert fine.finished
    pushes.add(failed.begin)
    with pytest.raises(ValueError, match="no"):
        pickle.dumps(pushes)


def test_a_failure_during_the_pull_is_raised_by_the_same_forward(client: hotrow.Client, name: str) -> None:
    """A pull waits for the pushes before it: what it brings is not to be used if one of them has failed by then."""
    module = EmbeddingBag(client, name, 10, 4)
    failed = Waiting(ValueError("no"))
    module._pushes.add(failed.begin)

    class Slow:
        address = client.address

        def pull_many(self, keys: Any) -> Any:
            failed.finished = True
            return client.pull_many(keys)

    module.client = Slow()
    with pytest.raises(ValueError, match="no"):
        module(KEYS)
    module(KEYS)


def test_backward_respects_in_flight(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, in_flight=2, optimizer="sgd", learning_rate=0.1)
    losses = [module(KEYS).sum() for _ in range(6)]
    for loss in losses:
        loss.backward()
        assert len(module._pushes) <= 2
    module.flush()
    assert len(module._pushes) == 0
    assert client.stats().tables[name].updated_rows == 6 * 3


@pytest.mark.parametrize("surface", ["forward", "backward", "flush", "prefetch"])
def test_a_push_that_is_refused_is_raised_once(
    server: hotrow.Server, client: hotrow.Client, name: str, surface: str
) -> None:
    """Somebody else drops the table, and makes it again after the push."""
    module = EmbeddingBag(client, name, 10, 4, lookahead=1, in_flight=1, optimizer="sgd", learning_rate=0.1)
    first, second = module(KEYS).sum(), module(KEYS).sum()
    with hotrow.connect(server.address) as other:
        other.drop_table(name)
    first.backward()
    while not module._pushes._under_way[0].done():
        time.sleep(0.001)
    client.create_table(name, 4, 10, optimizer="sgd", learning_rate=0.1)
    actions = {
        "forward": lambda: module(KEYS),
        "backward": second.backward,
        "flush": module.flush,
        "prefetch": lambda: module.prefetch(KEYS),
    }
    with pytest.raises(hotrow.PushFailed, match=name):
        actions[surface]()
    module.flush()
    module(KEYS).sum().backward()
    module.flush()
    assert client.stats().tables[name].updated_rows == 3


def test_a_nan_is_not_pushed(client: hotrow.Client, name: str) -> None:
    module = EmbeddingBag(client, name, 10, 4, optimizer="sgd", learning_rate=0.1)
    before = client.pull(name, range(10))
    with pytest.raises(hotrow.Error, match="(?i)nan|finite"):
        (module(KEYS) * float("nan")).sum().backward()
        module.flush()
    assert (client.pull(name, range(10)) == before).all()
