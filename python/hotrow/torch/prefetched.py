"""Pulls begun ahead of the forward that needs them."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import hotrow
import numpy as np

from .lookup import Lookup


class Prefetch(NamedTuple):
    """A pull under way."""

    lookup: Lookup
    #: None where there is nothing to ask for.
    future: hotrow.Future[dict[str, np.ndarray]] | None
    #: How many pushes had been begun when it was: it has seen those.
    pushes: int


class Prefetched:
    """The queue of one module. Forwards take from it in the order in which batches were given."""

    def __init__(self, lookahead: int) -> None:
        if lookahead < 0:
            raise ValueError(f"lookahead has to be 0 or more batches, but got {lookahead}")
        self.lookahead = lookahead
        self._queue: deque[Prefetch] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def check_room(self) -> None:
        """The next batch, and ``lookahead`` behind it: those behind miss no more pushes than promised."""
        if self.lookahead == 0:
            raise RuntimeError("prefetch needs a module with room for it: make it with lookahead=1 or more")
        if len(self._queue) > self.lookahead:
            raise RuntimeError(
                f"{len(self._queue)} batches are prefetched and wait for their forward, as many as "
                f"lookahead={self.lookahead} allows (the next one and {self.lookahead} behind it): "
                f"run forward first, or raise lookahead"
            )

    def add(self, prefetch: Prefetch) -> None:
        self._queue.append(prefetch)

    def take(self, keys: dict[str, np.ndarray], pushes: int) -> Prefetch | None:
        """What was prefetched for these keys; None if there is nothing, or if it is older than promised."""
        if not self._queue:
            return None
        if not self._queue[0].lookup.is_for(keys):
            # An order that is lost once is lost for all that follow.
            self.clear()
            raise RuntimeError(
                "forward got another batch than the one that was prefetched first. Every prefetched batch has to go "
                "through forward, with the same keys and in the same order; use eval mode for others in between. "
                "What was prefetched has been given up, so the next forward pulls afresh"
            )
        oldest = self._queue.popleft()
        # Prefetches after a forward and before its backward can fill the queue such that the last is one push too old.
        return oldest if pushes - oldest.pushes <= self.lookahead else None

    def clear(self) -> None:
        """Gives up what is queued."""
        self._queue.clear()

    def __deepcopy__(self, memo: dict[int, Any]) -> Prefetched:
        return Prefetched(self.lookahead)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetched, (self.lookahead,)
