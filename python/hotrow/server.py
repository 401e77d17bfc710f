"""A server in this process, for notebooks and tests."""

from __future__ import annotations

import atexit
from types import TracebackType
from typing import Any

from . import _native


class Server:
    """A server that runs in this process, until :meth:`stop` or the end of the process. :func:`serve` starts one."""

    def __init__(self, native: _native.Server) -> None:
        self._native = native

    @property
    def address(self) -> str:
        """Where gRPC is: what to give to :func:`hotrow.connect`."""
        return self._native.address

    @property
    def http(self) -> str | None:
        """Where HTTP is: metrics are on ``http://{server.http}/metrics``."""
        return self._native.http

    def stop(self) -> None:
        """Finishes what is under way, saves a checkpoint where there is a place for it, and ends."""
        atexit.unregister(self.stop)
        self._native.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"hotrow.Server({self.address!r})"


def serve(*, listen: str = "127.0.0.1:0", http: str = "127.0.0.1:0", log: str | None = None, **settings: Any) -> Server:
    """Starts a server in this process, on ports that the system chooses.

    ``settings`` are the flags of ``hotrow serve`` with underscores: ``seed=1``, ``memory="4GiB"``, ``data_dir="data"``,
    ``checkpoints="saved"``, ``shards=["127.0.0.1:7700", "127.0.0.1:7701"]``, ... ``log="info"`` logs to standard error.

    For more than trying out, run ``hotrow serve`` in a process of its own: it came with this package.
    """
    given: dict[str, Any] = {"listen": listen, "http": http, "log": log, **settings}
    flags = []
    for name, value in given.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = str(value).lower()
        elif isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        flags.append(f"--{name.replace('_', '-')}={value}")
    server = Server(_native.Server(flags, log is not None))
    # As SIGTERM does for a server of its own: what is to be saved at the end is saved.
    atexit.register(server.stop)
    return server
