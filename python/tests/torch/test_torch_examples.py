"""The examples in the documentation run, and answer what they say."""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import hotrow
import pytest
import torch
from hotrow.torch import EmbeddingBag, Table


@pytest.mark.parametrize("module", ["", ".bag", ".collection", ".config", ".lookahead", ".optimizer"])
def test_examples(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = hotrow.connect
    # A server for each, because examples are not careful with names.
    with hotrow.serve() as server, connect(server.address) as client:
        monkeypatch.setattr(hotrow, "connect", lambda _: connect(server.address))
        known: dict[str, Any] = {"hotrow": hotrow, "torch": torch, "client": client, "Table": Table}
        if module == ".optimizer":
            known["module"] = EmbeddingBag(client, "item", 10, 4)
            known["loss"] = known["module"](torch.tensor([[1]])).sum()
        if module == ".lookahead":
            known["tables"] = [Table("item", 4, 10)]
            known["loader"] = [({"item": torch.tensor([1, 2])}, torch.zeros(2, 4))] * 3
            known["model"] = lambda pooled: pooled["item"]
            known["criterion"] = torch.nn.functional.mse_loss
        # importlib, because hotrow.torch.lookahead is the function and not the file.
        result = doctest.testmod(importlib.import_module(f"hotrow.torch{module}"), extraglobs=known)
        assert result.attempted > 0
        assert result.failed == 0
