"""What all modules have in common: pulling, pushing, looking ahead, and what is saved of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import hotrow
import numpy as np
import torch
import torch.distributed
from torch import Tensor

from .config import SPEC, Table, check_spec, shape
from .function import Rows
from .link import Link
from .lookup import Lookup, gather
from .optimizer import FusedOptimizer
from .prefetched import Prefetch, Prefetched
from .pushes import Pushes


class TableModule(torch.nn.Module):
    """A module whose tables are on hotrow servers. It has no parameters: the rows it has pulled are its weights.

    Attributes:
        client: the client it pulls and pushes with. Copies share it; a module that was unpickled connects again.
        tables: the tables as the servers have them, by name.
        fused_optimizer: the learning rates of the tables, for torch's schedulers.
        step: the number of pushes so far, of all processes together. Adam wants it; ``state_dict()`` has it.
    """

    tables: dict[str, hotrow.Table]
    fused_optimizer: FusedOptimizer
    step: int

    def __init__(
        self,
        client: hotrow.Client,
        tables: Sequence[Table],
        *,
        lookahead: int,
        in_flight: int,
        average: float | None,
        spec: dict[str, Any],
    ) -> None:
        super().__init__()
        check_spec(spec)
        self._pushes = Pushes(in_flight)
        self._prefetched = Prefetched(lookahead)
        self.average = average
        self._link = Link(client)
        self.tables = {table.name: table.open(client, spec) for table in tables}
        rates = {}
        for table in tables:
            # The caller's own number, where there is one: the servers' is the same, rounded to f32.
            rate = {**spec, **table.spec}.get("learning_rate")
            rates[table.name] = self.tables[table.name].learning_rate if rate is None else rate
        self.fused_optimizer = FusedOptimizer(rates)
        self.step = 0
        self._anchor = torch.zeros(0, requires_grad=True)

    @property
    def client(self) -> hotrow.Client:
        return self._link.client

    @client.setter
    def client(self, client: hotrow.Client) -> None:
        self._link = Link(client)

    @property
    def lookahead(self) -> int:
        """How many batches may be fetched ahead, and so how many pushes their rows may miss."""
        return self._prefetched.lookahead

    @property
    def in_flight(self) -> int:
        """How many pushes may be under way. Backward waits for the oldest when there are more."""
        return self._pushes.limit

    def flush(self) -> None:
        """Waits until everything pushed so far is applied. Raises what went wrong, if something did."""
        self._pushes.flush()

    def _prefetch(self, features: Mapping[str, Sequence[Tensor]]) -> None:
        """Begins the pull of a later forward."""
        self._prefetched.check_room()
        self._pushes.check()
        lookup = Lookup.of(gather(features), self.tables)
        wanted = lookup.wanted()
        future = self.client.prefetch_many(wanted) if wanted else None
        self._prefetched.add(Prefetch(lookup, future, self._pushes.begun))

    def _look_up(self, features: Mapping[str, Sequence[Tensor]], device: torch.device) -> dict[str, _Found]:
        """The rows that the features of each table need, in one request, and where among them each key's row is."""
        keys = gather(features)
        # Only a forward that will be trained takes what was prefetched: evaluation in between does not disturb it,
        # and the first of two forwards of an activation checkpoint neither.
        trains = self.training and torch.is_grad_enabled()
        self._pushes.check()
        prefetch = self._prefetched.take(keys, self._pushes.begun) if trains else None
        if prefetch is not None:
            lookup = prefetch.lookup
            pulled = prefetch.future.result() if prefetch.future is not None else {}
        else:
            lookup = Lookup.of(keys, self.tables)
            wanted = lookup.wanted()
            pulled = self.client.pull_many(wanted) if wanted else {}
        # The pull has waited for the pushes before it. If one of them has failed, these rows lack it.
        self._pushes.check()

        names = list(features)
        arrays = [pulled[name] if name in pulled else self._no_rows(name) for name in names]
        anchor = self._anchor if trains else self._anchor.detach()
        rows = Rows.apply(anchor, partial(self._push, names, lookup), device, *arrays)
        found = {}
        for name, own in zip(names, rows):
            inverse = torch.from_numpy(lookup.inverse[name]).to(device)
            found[name] = _Found(own, inverse.split([len(values) for values in features[name]]))
        return found

    def _push(self, names: Sequence[str], lookup: Lookup, gradients: Sequence[Tensor | None]) -> None:
        """Pushes the gradients of all tables at once. Called by backward."""
        rank, world = _world()
        # Each process's push is a step of its own; ranks count in turn, so that all of them agree on the sum.
        step = self.step + rank + 1
        self.step += world
        factor = 1.0 / world if self.average is None else self.average
        pushes = {}
        for name, gradient in zip(names, gradients):
            if gradient is not None and len(gradient):
                pushes[name] = (lookup.unique[name], _to_host(gradient, factor))
        if pushes:
            rates = self.fused_optimizer.learning_rates
            rates = {name: rates[name] for name in pushes}
            self._pushes.add(lambda: self.client.push_many_later(pushes, learning_rate=rates, step=step))

    def _no_rows(self, name: str) -> np.ndarray:
        return np.zeros((0, self.tables[name].dim), dtype=np.float32)

    def get_extra_state(self) -> dict[str, Any]:
        """What state_dict() has of this module: where the tables are, and which step is next. No weights."""
        # Plain values only: torch.load(weights_only=True) takes nothing else.
        return {
            "tables": [_reference(table) for table in self.tables.values()],
            "address": list(self._link.address),
            "step": self.step,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes up the step number, if the state is of the same tables."""
        saved = {table["name"]: (table["rows"], table["dim"]) for table in state["tables"]}
        own = {table.name: (table.rows, table.dim) for table in self.tables.values()}
        if saved != own:
            raise RuntimeError(
                f"Error(s) in loading state_dict for {type(self).__name__}: it is of {_list(saved)}, "
                f"but this module has {_list(own)}: make the module with the tables that were saved"
            )
        # Without it Adam would correct the bias of moments that have none, and take steps many times too large.
        self.step = state["step"]

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                f"{type(self).__name__} has no weight here: its rows are on the servers. Read some with "
                f"module.client.pull(table, keys), or all of them with `hotrow table export`"
            )
        return super().__getattr__(name)


class _Found(NamedTuple):
    """A table's rows, and the places in them of each feature's keys."""

    rows: Tensor
    places: Sequence[Tensor]


def _world() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _to_host(gradient: Tensor, factor: float) -> np.ndarray:
    if factor != 1.0:
        gradient = gradient * factor
    return gradient.to("cpu", torch.float32).contiguous().numpy()


def _reference(table: hotrow.Table) -> dict[str, Any]:
    return {name: getattr(table, name) for name in ("name", "dim", "rows", *SPEC)}


def _list(tables: Mapping[str, tuple[int | None, int]]) -> str:
    return ", ".join(f"table {name!r} with {shape(rows, dim)}" for name, (rows, dim) in tables.items())
