"""Look-ahead hides the network: at least 70 % of the time that it costs comes back."""

from __future__ import annotations

import pytest
from lookahead_gain import measure


@pytest.mark.parametrize(
    "delay, depth",
    [
        pytest.param(0.005, 1, id="10 ms per round trip, one batch ahead"),
        pytest.param(0.010, 2, id="10 ms each way, two batches ahead"),
    ],
)
def test_most_of_the_lost_time_comes_back(delay: float, depth: int) -> None:
    # The best of three: what else the machine does can only take from it.
    for _ in range(3):
        gain = measure(delay, depth, compute=0.028, steps=30)
        print(gain)
        # Two round trips are lost, or else the proxy does not delay and the ratio means nothing.
        if gain.waiting - gain.local > 2 * 2 * delay * 0.8 and gain.recovered >= 0.7:
            return
    pytest.fail(f"in three attempts less than 70 % of two round trips came back, at last: {gain}")
