"""hotrow: embedding tables that do not fit on a GPU, trained over the network at low precision.

>>> import hotrow
>>> server = hotrow.serve()                       # or connect to one that runs
>>> client = hotrow.connect(server.address)
>>> table = client.create_table("item", dim=4, rows=1_000_000)
>>> rows = client.pull("item", [3, 1415])
>>> rows.shape
(2, 4)
>>> client.push("item", [3, 1415], rows)
>>> client.close(); server.stop()

``hotrow.torch`` has modules for PyTorch.
"""

from __future__ import annotations

from ._native import VERSION as __version__
from .client import Client, Future, connect, distinct
from .errors import Error, InvalidRequest, PushFailed, Refused, TimedOut
from .results import Checkpoint, HitCurve, HitPoint, Row, ShardStats, Stats, Table, TableStats
from .server import Server, serve

__all__ = [
    "Checkpoint",
    "Client",
    "Error",
    "Future",
    "HitCurve",
    "HitPoint",
    "InvalidRequest",
    "PushFailed",
    "Refused",
    "Row",
    "Server",
    "ShardStats",
    "Stats",
    "Table",
    "TableStats",
    "TimedOut",
    "__version__",
    "connect",
    "distinct",
    "serve",
]
