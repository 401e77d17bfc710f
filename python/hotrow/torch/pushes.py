"""Pushes under way: so many and no more, and none fails unnoticed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import hotrow

#: What one client may have under way. More would not be faster: it would wait inside the client.
MOST = 32


class Pushes:
    """The pushes of one module that are begun and not yet known to be applied."""

    def __init__(self, limit: int) -> None:
        if not 1 <= limit <= MOST:
            raise ValueError(f"in_flight has to be between 1 and {MOST}, but got {limit}")
        self.limit = limit
        #: How many were ever begun.
        self.begun = 0
        self._under_way: deque[hotrow.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def add(self, begin: Callable[[], hotrow.Future[None]]) -> None:
        """Begins a push when there is room for it."""
        self.check()
        while len(self._under_way) >= self.limit:
            self._under_way.popleft().result()
        self._under_way.append(begin())
        self.begun += 1

    def check(self) -> None:
        """Raises what a finished push has failed with, once. Waits for nothing."""
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft().result()

    def flush(self) -> None:
        """Waits for all, and then raises what the first one has failed with."""
        failure: Exception | None = None
        while self._under_way:
            try:
                self._under_way.popleft().result()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def __deepcopy__(self, memo: dict[int, Any]) -> Pushes:
        return Pushes(self.limit)

    def __reduce__(self) -> tuple[Any, ...]:
        # Whoever loads the pickle expects the table to have what was pushed before it was made.
        self.flush()
        return Pushes, (self.limit,)
