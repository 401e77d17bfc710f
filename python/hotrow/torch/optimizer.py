"""The learning rates of a module's tables, where torch's schedulers can reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


class FusedOptimizer(torch.optim.Optimizer):
    """An optimizer whose step has been taken already: the servers step rows when backward pushes their gradients.

    It has one parameter group for each table, with the table's name. The group's ``lr`` rides on every push. So
    schedulers, ``param_groups`` and ``state_dict()`` work as usual; ``step()`` and ``zero_grad()`` do nothing to the
    tables.

    Example:
        >>> schedule = torch.optim.lr_scheduler.StepLR(module.fused_optimizer, step_size=1000, gamma=0.5)
        >>> loss.backward()                    # the push, with the learning rate of now
        >>> module.fused_optimizer.step()      # nothing, but torch's schedulers want to see it
        >>> schedule.step()
    """

    def __init__(self, learning_rates: Mapping[str, float]) -> None:
        # torch wants a tensor in every group. Nobody computes with these.
        groups = [{"params": [torch.zeros(0)], "lr": rate, "table": name} for name, rate in learning_rates.items()]
        super().__init__(groups, {"lr": 0.0})

    @property
    def learning_rates(self) -> dict[str, float]:
        """The learning rate of each table."""
        return {group["table"]: float(group["lr"]) for group in self.param_groups}

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Does nothing, or calls the closure, whose backward pushes."""
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()
