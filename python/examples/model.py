"""The dense half of DLRM, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

import criteo


class DLRM(nn.Module):
    """The dense half of the model, around modules that look embeddings up.

    `trained` and `frozen` have the columns of `names` between them; either may be missing.
    """

    def __init__(self, trained: nn.Module | None, frozen: nn.Module | None, names: list[str], dim: int) -> None:
        super().__init__()
        self.trained, self.frozen, self.names = trained, frozen, names
        vectors = len(names) + 1  # the bottom MLP's output is one more
        self.bottom = mlp([criteo.INTEGERS, 512, 256, 64, dim])
        self.top = mlp([dim + vectors * (vectors - 1) // 2, 512, 256, 1])[
            :-1
        ]  # the loss takes logits: no activation at the end
        rows, columns = torch.tril_indices(vectors, vectors, offset=-1)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)

    def forward(self, integers: torch.Tensor, features: dict[str, torch.Tensor]) -> torch.Tensor:
        """Logits, one per sample."""
        bottom = self.bottom(integers)
        vectors = {}
        if self.trained is not None:
            vectors |= self.trained({name: features[name] for name in self.trained.feature_names})
        if self.frozen is not None:
            with torch.no_grad():  # nothing is pushed without a gradient
                vectors |= self.frozen({name: features[name] for name in self.frozen.feature_names})
        stacked = torch.stack([bottom, *(vectors[name] for name in self.names)], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([bottom, products[:, self.pairs]], dim=1)).squeeze(1)


def mlp(sizes: list[int]) -> nn.Sequential:
    """Linear layers with ReLU after each, initialised as DLRM does."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, 0.0, (2.0 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(linear.bias, 0.0, (1.0 / outputs) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)
