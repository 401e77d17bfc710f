"""What callers pass to forward, brought into one form and checked before anything is sent.

All of it becomes :class:`Bags`: the keys in a row, and where each bag begins. Padding is taken out here, so that
padding keys are neither pulled nor pushed, and no later step has to know of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Bags(NamedTuple):
    """Bags of keys: bag i is ``values[offsets[i]:offsets[i + 1]]``, the last one goes to the end.

    Without offsets there is nothing to pool: every bag is one key.
    """

    values: Tensor
    offsets: Tensor | None
    weights: Tensor | None

    @classmethod
    def of(
        cls,
        values: Tensor,
        offsets: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> Bags:
        """From what :class:`torch.nn.EmbeddingBag` takes."""
        check_keys(values)
        if weights is not None and weights.shape != values.shape:
            raise ValueError(
                f"expected per_sample_weights to have the same shape as the keys {tuple(values.shape)}, "
                f"but got {tuple(weights.shape)}"
            )
        if values.dim() == 2:
            if offsets is not None:
                raise ValueError(
                    "if input is 2D, then offsets has to be None, as input is treated as a mini-batch of bags of "
                    "equal length: leave offsets out, or flatten the input"
                )
            bags, length = values.shape
            offsets = torch.arange(bags, device=values.device) * length
            values = values.reshape(-1)
            weights = None if weights is None else weights.reshape(-1)
        elif values.dim() == 1:
            offsets = check_offsets(offsets, len(values), include_last_offset)
        else:
            raise ValueError(f"input has to be a 1D or 2D Tensor, but got a Tensor of dimension {values.dim()}")
        values = values.long()
        if padding_idx is None:
            return cls(values, offsets, weights)
        # Torch skips these keys when it pools: the numbers are the same without them.
        kept = values != padding_idx
        # How many keys before a place are kept is where that place is now.
        places = torch.nn.functional.pad(kept.long().cumsum(0), (1, 0))
        return cls(values[kept], places[offsets], None if weights is None else weights[kept])


def check_keys(values: Any) -> None:
    """Keys are integers in a tensor."""
    if not isinstance(values, Tensor):
        raise TypeError(f"keys have to be a Tensor, but got {type(values).__name__}: use torch.as_tensor")
    if values.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"expected keys to have one of the following scalar types: Long, Int; but got {values.type()} instead: "
            f"convert them with .long()"
        )


def check_offsets(offsets: Tensor | None, keys: int, include_last_offset: bool) -> Tensor:
    """Offsets as the bags have them: int64, and without the last one."""
    if offsets is None or offsets.dim() != 1:
        found = "None" if offsets is None else f"a Tensor of dimension {offsets.dim()}"
        raise ValueError(f"offsets has to be a 1D Tensor for 1D input, but got {found}")
    if offsets.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"expected offsets to be Long or Int; but got {offsets.type()} instead")
    if include_last_offset:
        if len(offsets) == 0 or int(offsets[-1]) != keys:
            raise ValueError(
                f"with include_last_offset=True the last offset has to be the number of keys, {keys}; "
                f"got {offsets[-1:].tolist()}"
            )
        offsets = offsets[:-1]
    if len(offsets) == 0:
        if keys != 0:
            raise ValueError(f"there are {keys} keys and no bag for them: offsets is empty")
        return offsets.long()
    if int(offsets[0]) != 0:
        raise ValueError(
            f"offsets[0] has to be 0, i.e., the first bag has to start from position 0. However, got {int(offsets[0])}"
        )
    if int(offsets[-1]) > keys or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError(f"offsets have to ascend and not to be greater than the number of keys, {keys}")
    return offsets.long()


def check_weighted(weights: Tensor | None, mode: str) -> None:
    """As torch: only a sum can be weighted."""
    if weights is not None and mode != "sum":
        raise NotImplementedError(
            f"per_sample_weights is only supported for mode='sum' (got mode='{mode}'): "
            f"leave the weights out, or pool by sum"
        )


def is_keyed_jagged(features: Any) -> bool:
    """Whether these are TorchRec's features. Who has not imported TorchRec has none."""
    torchrec = sys.modules.get("torchrec")
    return torchrec is not None and isinstance(features, torchrec.KeyedJaggedTensor)


def bags_by_feature(features: Any, wanted: set[str]) -> dict[str, Bags]:
    """A collection's features, by name."""
    if is_keyed_jagged(features):
        # As TorchRec: what no table wants is passed over.
        jagged = features.to_dict()
        check_missing(wanted, jagged)
        return {name: _from_jagged(jagged[name]) for name in wanted}
    if not isinstance(features, Mapping):
        raise TypeError(
            f"features have to be a dict by feature name, or a torchrec.KeyedJaggedTensor, "
            f"but got {type(features).__name__}"
        )
    for name in features:
        if name not in wanted:
            raise ValueError(
                f"no table has feature {name!r}: leave it out, or name it in a table's feature_names. "
                f"Known are {', '.join(sorted(wanted))}"
            )
    check_missing(wanted, features)
    return {name: _from_dict(name, value) for name, value in features.items()}


def check_missing(wanted: set[str], given: Mapping[str, Any]) -> None:
    """Every feature has to be there: without its bags there is no batch."""
    missing = sorted(wanted.difference(given))
    if missing:
        raise ValueError(f"features are missing: {', '.join(missing)}. For a batch without keys give empty bags")


def _from_dict(name: str, value: Any) -> Bags:
    values, offsets, weights = value, None, None
    if isinstance(value, (tuple, list)):
        if not 1 <= len(value) <= 3:
            raise ValueError(f"feature {name!r} has to be values, (values, offsets) or (values, offsets, weights)")
        values, offsets, weights = (*value, None, None)[:3]
    check_keys(values)
    if offsets is None and values.dim() == 1:
        if weights is None:
            return Bags(values.long(), None, None)
        offsets = torch.arange(len(values), device=values.device)
    try:
        return Bags.of(values, offsets, weights)
    except ValueError as error:
        raise ValueError(f"feature {name!r}: {error}") from None


def _from_jagged(jagged: Any) -> Bags:
    lengths = jagged.lengths().long()
    return Bags.of(jagged.values(), lengths.cumsum(0) - lengths, jagged.weights_or_none())
