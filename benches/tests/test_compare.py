"""The comparison: who does not do the work is found, and nobody is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from compare.rounds import SETTLING, TURN, Measured, check, measure
from compare.systems import GROUPS, PULL, Group, Ratio, System
from compare.worker import REPOSITORY, Failed, Worker
from compare.workload import Workload
from report.targets import LINES

# A system in process: NumPy on the table's numbers, and what may be wrong with it.
STAND_IN = """
import sys
import numpy as np
from peers import protocol

class StandIn:
    def __init__(self, task):
        self.table = protocol.table(task.rows, task.dim)
        self.batches, self.gradients = task.batches(), task.gradients()
    def pull(self, batch):
        if task.variant == "dies":
            raise SystemExit(3)
    def push(self, batch):
        if task.variant != "lazy":
            self.table[self.batches[batch % len(self.batches)]] -= np.float32(protocol.LEARNING_RATE) * self.gradients
    def sum(self, batch):
        count = len(self.batches[batch]) - (task.variant == "short")
        return self.table[self.batches[batch][:count]].sum(dtype=np.float64)

task = protocol.task(("right", "lazy", "short", "dies"))
protocol.serve(StandIn(task), protocol.ready_line(task.variant, {}, ""))
"""


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    made = Workload(2000, 8, 64, tmp_path)
    made.write()
    return made


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command of it, without its variant."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "benches"))
    return [sys.executable, str(tmp_path / "stand_in.py")]


def test_batches_are_unique_keys_of_a_skewed_draw(workload: Workload) -> None:
    assert workload.keys.shape[1] == 64
    for batch in workload.keys:
        assert len(set(batch.tolist())) == 64 and 0 <= batch.min() and batch.max() < 2000
    _, counts = np.unique(workload.keys, return_counts=True)
    assert counts.max() == len(workload.keys)  # the hottest key is in every one
    read = np.fromfile(workload.folder / "keys", dtype="<u8").reshape(workload.keys.shape)
    assert (read == workload.keys).all()


def test_a_ratio_is_the_median_of_pairs() -> None:
    measured = Measured(GROUPS["codec"], {PULL: {"ours": [1.0, 2.0, 4.0], "theirs": [3.0, 2.0, 8.0]}})
    assert measured.ratio(Ratio("r", PULL, "ours", "theirs")) == (2.0, 3)
    assert measured.ratio(Ratio("r", PULL, "ours", "nobody")) is None


def test_every_ratio_is_of_systems_that_do_it_and_has_its_line_in_the_report() -> None:
    for group in GROUPS.values():
        does = {system.name: system.does for system in group.systems}
        for ratio in group.ratios:
            assert ratio.what in does[ratio.ours] and ratio.what in does[ratio.theirs], ratio
            assert ratio.name in LINES


def test_who_does_not_do_the_work_is_found(workload: Workload, stand_in: list[str]) -> None:
    wrong = {"right": None, "lazy": "after a push", "short": "batch 0 adds up to", "dies": "ended with 3"}
    workers = {
        name: Worker(System(name, effect="sgd"), [*stand_in, *workload.words, "--variant", name]) for name in wrong
    }
    try:
        for name, worker in workers.items():
            worker.await_ready()
            if wrong[name] is None:
                check(worker, workload)
                group = Group("test", (worker.system,), (), {})
                assert len(measure(group, [worker], 2, lambda _: None).times[PULL][name]) == 2 * (TURN - SETTLING)
            else:
                with pytest.raises(Failed, match=wrong[name]):
                    check(worker, workload)
                    worker.ask("pull", 0)
    finally:
        for worker in workers.values():
            worker.end()
    assert [worker.process.poll() for worker in workers.values()] == [0, 0, 0, 3]
