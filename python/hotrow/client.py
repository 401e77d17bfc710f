"""The client: tables of a cluster as NumPy arrays."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar, Union

import numpy as np
import numpy.typing as npt

from . import _native
from .errors import Error, InvalidRequest
from .results import Checkpoint, Row, Stats, Table

#: Any array, list or tensor of integers. int64 is taken bit for bit: -1 is the key 2**64 - 1.
Keys = npt.ArrayLike
#: One value for all tables, or one for each.
PerTable = Union[float, Mapping[str, float], None]
_Path = Union[str, "os.PathLike[str]"]
_T = TypeVar("_T")


def connect(
    address: str | Sequence[str] = "127.0.0.1:7700",
    *,
    token: str | None = None,
    ca: _Path | None = None,
    cert: _Path | None = None,
    key: _Path | None = None,
    domain: str | None = None,
    timeout: float = 30.0,
    connections: int = 4,
    rows: str = "f32",
    gradients: str = "f32",
    lookahead: int = 0,
) -> Client:
    """Connects to a cluster through any of its shards: ``host:port`` or ``unix:path``, or a list of them.

    :param token: what to show where servers ask for one.
    :param ca: a PEM file with the authority that signed the servers' certificates; with it TLS is spoken.
    :param cert: a PEM file with the client's own certificate, and ``key`` its key, where servers ask for one.
    :param domain: the name in the servers' certificates, where it is not the host's.
    :param timeout: seconds that a call may take, with all its attempts.
    :param connections: connections to each shard for pulls.
    :param rows: how rows travel: f32, f16, bf16 or int8.
    :param gradients: how gradients travel: f32, f16 or bf16.
    :param lookahead: how many of the last pushes a pull may miss. 0: a pull waits until every push begun before it is
        applied.
    """
    if (cert is None) != (key is None):
        raise InvalidRequest("cert and key belong together: give both")
    if ca is None and (cert is not None or domain is not None):
        raise InvalidRequest("cert, key and domain are for TLS: give ca too, the authority of the servers' certificates")
    addresses = [address] if isinstance(address, str) else list(address)
    native = _native.Client(
        addresses,
        token=token,
        ca=_contents(ca),
        cert=_contents(cert),
        key=_contents(key),
        domain=domain,
        timeout=timeout,
        connections=connections,
        rows=rows,
        gradients=gradients,
        lookahead=lookahead,
    )
    return Client(native, addresses)


class Client:
    """A connection to a cluster. Threads may share it. :func:`connect` makes one.

    Pushes are applied exactly once and in the order of the calls. A pull sees every push of this client begun before it.
    """

    def __init__(self, native: _native.Client, addresses: list[str]) -> None:
        self._native = native
        self._addresses = addresses
        # At the end of the process too: pushes that are under way are finished.
        self._finalizer = weakref.finalize(self, native.close)

    @property
    def address(self) -> list[str]:
        """Where it was told to connect."""
        return list(self._addresses)

    # Tables.

    def create_table(
        self,
        name: str,
        dim: int,
        rows: int | None = None,
        *,
        precision: str | None = None,
        quantizer: str | None = None,
        rounding: str | None = None,
        optimizer: str | None = None,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        clip_norm: float | None = None,
        state_precision: str | None = None,
        initializer: str | None = None,
        cache: str | None = None,
        policy: str | None = None,
    ) -> Table:
        """Makes a table on all shards. Making the same one again is fine.

        :param rows: keys 0 to ``rows - 1``. None: any 64-bit key, rows appear on first use.
        :param precision: how rows are stored: f32, f16, bf16, int8 (default), int4 or int2. A table of keys 0 to ``rows - 1`` that
            takes under 1 MiB at f32 stays f32.
        :param quantizer: symmetric or affine; the default depends on the precision.
        :param rounding: stochastic (default) or nearest.
        :param optimizer: sgd, adagrad, rowwise_adagrad (default), adam or adamw; ``"adam:beta1=0.9,eps=1e-8"``.
        :param learning_rate: where a push does not bring its own. Default 0.01.
        :param weight_decay: L2 on the rows of a push; decoupled for adamw.
        :param clip_norm: the largest norm of a row's gradient.
        :param state_precision: f32 (default) or bf16.
        :param initializer: zeros, ``"constant:0.1"``, ``"uniform:-0.1,0.1"``, ``"normal:0,0.01"`` or dlrm.
        :param cache: what the full-precision cache holds: ``"5%"``, ``"100000rows"`` or ``"2GiB"``.
        :param policy: lru or lfu: which rows stay in the cache; lfu is the default of int4 and int2.
        """
        words = {
            "name": name,
            "dim": dim,
            "rows": rows,
            "precision": precision,
            "quantizer": quantizer,
            "rounding": rounding,
            "optimizer": optimizer,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "clip_norm": clip_norm,
            "state_precision": state_precision,
            "initializer": initializer,
            "cache": cache,
            "policy": policy,
        }
        given = {word: value for word, value in words.items() if value is not None}
        return Table._from_json(self._native.create_table(json.dumps(given, default=_plain_number)))

    def table(self, name: str) -> Table:
        """A table's description and what it costs."""
        return Table._from_json(self._native.table(name))

    def tables(self) -> list[Table]:
        """All tables."""
        return [Table._from_json(table) for table in self._native.tables()]

    def alter_table(
        self,
        name: str,
        *,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        clip_norm: float | None = None,
    ) -> Table:
        """Changes hyper-parameters of a table on all shards. A ``clip_norm`` of 0 ends clipping."""
        self._native.alter_table(name, learning_rate, weight_decay, clip_norm)
        return self.table(name)

    def drop_table(self, name: str) -> None:
        """Forgets a table on all shards."""
        self._native.drop_table(name)

    # Rows.

    def pull(
        self, table: str, keys: Keys, *, out: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        """Reads rows: float32, of the shape of ``keys`` with the table's dim at the end.

        ``out`` is a contiguous float32 array of that shape to read into, instead of a new one.
        """
        packed, shape = _keys(keys)
        if out is None:
            rows, dims = self._native.pull([(table, packed)], None)
            assert rows is not None
            return rows.reshape(*shape, dims[0])
        if out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
            raise InvalidRequest("out must be a contiguous, writable float32 array")
        if out.shape[:-1] != shape:
            raise InvalidRequest(f"out has shape {out.shape}, it must be {shape} and the table's dim")
        self._native.pull([(table, packed)], out.reshape(-1))
        return out

    def pull_many(self, keys: Mapping[str, Keys]) -> dict[str, npt.NDArray[np.float32]]:
        """Reads rows of several tables, ``{table: keys}``, with one request per shard."""
        packed = {table: _keys(of_table) for table, of_table in keys.items()}
        rows, dims = self._native.pull([(table, one[0]) for table, one in packed.items()], None)
        assert rows is not None
        return _split(rows, dims, {table: shape for table, (_, shape) in packed.items()})

    def pull_pooled(
        self,
        table: str,
        keys: Keys,
        offsets: Keys,
        *,
        weights: npt.ArrayLike | None = None,
        mode: str = "sum",
    ) -> npt.NDArray[np.float32]:
        """Reads bags of rows as one row each, pooled by the servers: ``(bags, dim)``.

        ``offsets`` says where each bag starts in ``keys``; ``mode`` is sum, which may have a weight for each key, or mean.
        """
        if mode not in ("sum", "mean"):
            raise InvalidRequest(f"mode is {mode!r}, it must be 'sum' or 'mean'")
        of_keys = None if weights is None else _numbers(weights)
        bags, shape = _keys(offsets)
        rows, dims = self._native.pull_pooled([(table, _keys(keys)[0], bags, of_keys)], mode == "mean")
        return rows.reshape(*shape, dims[0])

    def prefetch(self, table: str, keys: Keys) -> Future[npt.NDArray[np.float32]]:
        """Begins to read rows: ``prefetch(...).result()`` is what :meth:`pull` gives.

        It sees every push that was begun before, and may or may not see those begun while it is under way.
        """
        packed, shape = _keys(keys)
        pending = self._native.pull_later([(table, packed)])
        return Future(pending, lambda rows: rows[0].reshape(*shape, rows[1][0]))

    def prefetch_many(self, keys: Mapping[str, Keys]) -> Future[dict[str, npt.NDArray[np.float32]]]:
        """Begins to read rows of several tables: ``.result()`` is what :meth:`pull_many` gives."""
        packed = {table: _keys(of_table) for table, of_table in keys.items()}
        shapes = {table: shape for table, (_, shape) in packed.items()}
        pending = self._native.pull_later([(table, one[0]) for table, one in packed.items()])
        return Future(pending, lambda rows: _split(rows[0], rows[1], shapes))

    def push(
        self,
        table: str,
        keys: Keys,
        gradients: npt.ArrayLike,
        *,
        learning_rate: float | None = None,
        step: int | None = None,
    ) -> None:
        """Applies gradients, of the shape of ``keys`` with the table's dim at the end, and returns when they are applied.

        Gradients of the same key are added up, and the optimizer steps once. Adam and AdamW need ``step``, from 1.
        """
        self._native.push([_push(table, keys, gradients, learning_rate, step)])

    def push_many(
        self,
        gradients: Mapping[str, tuple[Keys, npt.ArrayLike]],
        *,
        learning_rate: PerTable = None,
        step: int | Mapping[str, int] | None = None,
    ) -> None:
        """Applies gradients to several tables, ``{table: (keys, gradients)}``, with one request per shard."""
        self._native.push(_pushes(gradients, learning_rate, step))

    def push_later(
        self,
        table: str,
        keys: Keys,
        gradients: npt.ArrayLike,
        *,
        learning_rate: float | None = None,
        step: int | None = None,
    ) -> Future[None]:
        """Begins a push, in the order of the calls. The arrays may be changed when this returns.

        At most 32 are under way; the next waits. ``.result()`` waits until it is applied, and raises what went wrong.
        """
        pending = self._native.push_later([_push(table, keys, gradients, learning_rate, step)])
        return Future(pending, lambda done: done)

    def push_many_later(
        self,
        gradients: Mapping[str, tuple[Keys, npt.ArrayLike]],
        *,
        learning_rate: PerTable = None,
        step: int | Mapping[str, int] | None = None,
    ) -> Future[None]:
        """Begins a push to several tables: :meth:`push_many` as :meth:`push_later` does it."""
        return Future(self._native.push_later(_pushes(gradients, learning_rate, step)), lambda done: done)

    def touch(self, table: str, keys: Keys) -> None:
        """Brings rows into the cache, ahead of a push."""
        self._native.touch([(table, _keys(keys)[0])])

    def assign(
        self, table: str, keys: Keys, weights: npt.ArrayLike, *, state: npt.ArrayLike | None = None
    ) -> None:
        """Sets rows, and their optimizer state (zeros where none is given)."""
        of_rows = None if state is None else _numbers(state)
        self._native.assign(table, _keys(keys)[0], _numbers(weights), of_rows)

    def inspect(self, table: str, key: int) -> Row:
        """Everything about one row."""
        return Row(*self._native.inspect(table, int(key) % 2**64))

    def keys(self, table: str) -> npt.NDArray[np.uint64]:
        """The keys of all rows that were ever trained or set, in no particular order."""
        return self._native.keys(table)

    # The cluster.

    def flush(self) -> None:
        """Waits until every change that any shard has accepted is applied."""
        self._native.flush()

    def save_checkpoint(self, label: str = "", *, incremental: bool = False) -> Checkpoint:
        """Saves the cluster to where its servers were told to (``hotrow serve --checkpoints``), while training goes on.

        It is an exact cut if no push is under way: after every trainer's :meth:`flush`.
        """
        sequence, written = self._native.save_checkpoint(label, incremental)
        return Checkpoint(sequence, written, label)

    def stats(self) -> Stats:
        """Hit rates, sizes and counts, table by table and shard by shard."""
        return Stats._from_json(self._native.stats())

    def close(self) -> None:
        """Finishes what is under way and tells the servers that this client is gone. Closing again is fine."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self._finalizer.alive else ", closed"
        return f"hotrow.Client({', '.join(map(repr, self._addresses))}{closed})"

    def __reduce__(self) -> Any:
        raise TypeError("a hotrow.Client cannot be pickled: pickle its address and connect again")


class Future(Generic[_T]):
    """Something that is under way."""

    def __init__(self, pending: _native.PendingPull | _native.PendingPush, shape: Callable[[Any], _T]) -> None:
        self._pending: Any = pending
        self._shape = shape
        self._outcome: Callable[[], _T] | None = None

    def done(self) -> bool:
        """Whether :meth:`result` would return or raise at once."""
        return self._outcome is not None or self._pending.done()

    def result(self, timeout: float | None = None) -> _T:
        """Waits for it, at most ``timeout`` seconds (TimeoutError), and raises what went wrong."""
        if self._outcome is None:
            try:
                value = self._shape(self._pending.result(timeout))
            except Error as error:
                # What failed stays failed; a timeout of this call says nothing about it.
                failure = error
                self._outcome = lambda: _raise(failure)
            else:
                self._outcome = lambda: value
        return self._outcome()


def distinct(keys: Keys) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The distinct keys in order of first appearance, and for each key which of them it is.

    Much faster than ``numpy.unique(keys, return_inverse=True)``, because nothing is sorted. int64 and uint64 keep their dtype.
    """
    array = np.asarray(keys)
    packed, shape = _keys(array)
    found, which = _native.distinct(packed)
    return (found.view(np.int64) if array.dtype == np.int64 else found), which.reshape(shape)


def _raise(error: BaseException) -> Any:
    raise error


def _contents(path: _Path | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def _plain_number(value: Any) -> Any:
    """NumPy's numbers, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is not a number or a word")


def _keys(keys: Keys) -> tuple[npt.NDArray[np.uint64], tuple[int, ...]]:
    """Keys in the native form, flat, and the shape they had. Contiguous 64-bit integers are not copied."""
    array = np.asarray(keys)
    if array.dtype.kind not in "iu":
        # An empty list is an array of floats.
        if array.size:
            raise InvalidRequest(f"keys must be integers, these are {array.dtype}")
        array = array.astype(np.uint64)
    if array.dtype.itemsize != 8 or not array.dtype.isnative:
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.uint64)
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint64), array.shape


def _numbers(numbers: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Numbers in the native form, flat. Contiguous float32 is not copied."""
    array = np.asarray(numbers)
    if array.dtype.kind not in "fiu":
        raise InvalidRequest(f"numbers must be floats, these are {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)


def _push(
    table: str, keys: Keys, gradients: npt.ArrayLike, learning_rate: float | None, step: int | None
) -> tuple[str, npt.NDArray[np.uint64], npt.NDArray[np.float32], float | None, int | None]:
    packed, shape = _keys(keys)
    array = np.asarray(gradients)
    # Not only the number of numbers: a transposed array would train the wrong rows.
    if array.shape[:-1] != shape:
        raise InvalidRequest(
            f"table {table!r}: gradients have shape {array.shape}, they must have that of the keys, {shape}, and the dim"
        )
    return table, packed, _numbers(array), learning_rate, step


def _pushes(
    gradients: Mapping[str, tuple[Keys, npt.ArrayLike]],
    learning_rate: PerTable,
    step: int | Mapping[str, int] | None,
) -> list[tuple[str, npt.NDArray[np.uint64], npt.NDArray[np.float32], float | None, int | None]]:
    def of(table: str, value: Any) -> Any:
        return value.get(table) if isinstance(value, Mapping) else value

    return [
        _push(table, keys, of_table, of(table, learning_rate), of(table, step))
        for table, (keys, of_table) in gradients.items()
    ]


def _split(
    rows: npt.NDArray[np.float32], dims: list[int], shapes: dict[str, tuple[int, ...]]
) -> dict[str, npt.NDArray[np.float32]]:
    """Rows of several tables, each in its shape. Views, not copies."""
    tables: dict[str, npt.NDArray[np.float32]] = {}
    start = 0
    for (table, shape), dim in zip(shapes.items(), dims):
        end = start + int(np.prod(shape, dtype=np.int64)) * dim
        tables[table] = rows[start:end].reshape(*shape, dim)
        start = end
    return tables
