"""Turns of all systems of a group, and what follows from the times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .systems import Group, Ratio, System
from .worker import Failed, Worker
from .workload import Workload

# Batches of a turn. The first of them are not counted: they find the caches full of another system's rows, and sockets
# asleep. A system in use has batch after batch; in turns of four, pulls of some looked slower.
TURN = 24
SETTLING = 8
# Rounds before the first that counts.
WARM_UP = 1
# What spins when its work is done (OpenMP's threads do) has stopped by then.
PAUSE = 0.005

Times = dict[str, dict[str, list[float]]]  # by what is done and by system, in the same order of batches


@dataclass
class Measured:
    """Of a group."""

    group: Group
    times: Times = field(default_factory=dict)

    def rate(self, what: str, system: str, batch: int) -> float:
        """Rows per second: the median over the batches."""
        return batch / statistics.median(self.times[what][system])

    def ratio(self, ratio: Ratio) -> tuple[float, int] | None:
        """The median over the batches of their seconds by ours, and of how many. None where one was not asked for."""
        times = self.times.get(ratio.what, {})
        ours, theirs = times.get(ratio.ours), times.get(ratio.theirs)
        if not ours or not theirs:
            return None
        return statistics.median(their / our for our, their in zip(ours, theirs)), len(ours)


def check(worker: Worker, workload: Workload) -> None:
    """That it has the rows and that its push does what it should. Whoever does not do the work is found here."""
    system = worker.system
    numbers = workload.numbers
    # Rounding of f32, where a system adds up in it.
    tolerance = system.tolerance * numbers + 1e-6 * workload.sum(0)
    if "pull" in system.does:
        for batch in (0, 1):
            compare(system, f"batch {batch}", worker.ask("sum", batch)[0], workload.sum(batch), tolerance)
    if "push" in system.does:
        worker.ask("push", 0)
        if system.effect:
            # Every number is rounded once more; f32 has 24 bits.
            rounding = max(numbers * 0.01 * 2**-24, 1e-6)
            [found], wanted = worker.ask("sum", 0), workload.sum_after_push(0, system.effect)
            compare(system, "batch 0 after a push", found, wanted, rounding)


def compare(system: System, what: str, found: float, wanted: float, tolerance: float) -> None:
    if not abs(found - wanted) <= tolerance:
        raise Failed(f"{system.name}: {what} adds up to {found}, it must be {wanted} ± {tolerance:.2g}")


def measure(group: Group, workers: list[Worker], rounds: int, say: Callable[[str], None]) -> Measured:
    """Every system works on the same batches. The first of a round is another in each."""
    measured = Measured(group)
    for what in ("pull", "push"):
        able = [worker for worker in workers if what in worker.system.does]
        times = measured.times[what] = {worker.system.name: [] for worker in able}
        for round in range(WARM_UP + rounds):
            say(f"{group.name}: {what}, round {round + 1} of {WARM_UP + rounds}")
            first = round % max(len(able), 1)
            for worker in able[first:] + able[:first]:
                time.sleep(PAUSE)
                seconds = worker.ask(what, round * TURN, TURN)
                if round >= WARM_UP:
                    times[worker.system.name] += seconds[SETTLING:]
    return measured
