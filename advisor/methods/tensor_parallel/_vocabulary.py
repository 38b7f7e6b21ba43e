"""Embeddings and output layers whose rows, one for each class, are shared by the ranks; what is tied stays tied."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.methods.tensor_parallel._collectives import Ranks
from advisor.methods.tensor_parallel._linear import is_linear, product
from advisor.methods.tensor_parallel._region_functions import Collect, Enter, Leave

__all__ = ["OutputLayer", "TokenEmbedding", "slice_vocabulary"]


class TokenEmbedding(nn.Module):
    """The rows of an embedding that are this rank's; those of other ranks come with the sum.

    Args:
        layer: The whole embedding.
        weight: This rank's rows.
        ranks: Among whom the rows are shared.
    """

    def __init__(self, layer: nn.Embedding, weight: nn.Parameter, ranks: Ranks) -> None:
        super().__init__()
        self.weight = weight
        self.training = layer.training
        self.num_embeddings, self.embedding_dim, self.padding_idx = (
            layer.num_embeddings,
            layer.embedding_dim,
            layer.padding_idx,
        )
        self._ranks = ranks

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embeddings, on every rank."""
        rows = self.weight.size(0)
        first = self._ranks.rank * rows
        own = (tokens >= first) & (tokens < first + rows)
        if self.padding_idx is None or not first <= self.padding_idx < first + rows:
            padding = None
        else:
            padding = self.padding_idx - first
        found = nn.functional.embedding((tokens - first).where(own, 0), self.weight, padding)
        whole: torch.Tensor = Leave.apply(found.where(own[..., None], 0.0), self._ranks)  # type: ignore[no-untyped-call]
        return whole


class OutputLayer(nn.Module):
    """A linear layer whose outputs are shared by the ranks; called, it returns all of them on every rank.

    Args:
        layer: The whole layer.
        weight: This rank's rows.
        bias: This rank's part, or ``None``.
        ranks: Among whom the rows are shared.
    """

    def __init__(self, layer: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None, ranks: Ranks) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.training = layer.training
        self.in_features, self.out_features = weight.size(1), weight.size(0) * ranks.size
        self._ranks = ranks

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """All logits."""
        entered = Enter.apply(hidden, self._ranks)  # type: ignore[no-untyped-call]
        own = product(entered, self.weight, self.bias, transposed=False)
        whole: torch.Tensor = Collect.apply(own, own.dim() - 1, self._ranks)  # type: ignore[no-untyped-call]
        return whole


def slice_vocabulary(model: nn.Module, weights: Sequence[nn.Parameter], ranks: Ranks) -> dict[str, Slice]:
    """Put a rank's rows in the place of whole weights, wherever the model holds them.

    Args:
        model: The model, changed in place.
        weights: Weights with a row for each class, of embeddings, output layers, or both.
        ranks: Among whom the rows are shared.

    Returns:
        Name of each parameter that was sliced -> its slice.

    Raises:
        MethodRefusedError: The ranks cannot share the rows, or something else holds the weight.
    """
    found: dict[str, Slice] = {}
    own: dict[int, nn.Parameter] = {}
    wanted = {id(weight) for weight in weights}
    holders = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if wanted & {id(one) for one in module._parameters.values()}
    ]
    for name, module in holders:
        _require_sliceable(model, name, module, ranks)
    replaced: dict[int, nn.Module] = {}
    for name, module in holders:
        for key, parameter in module._parameters.items():
            if parameter is not None:
                indices = torch.arange(parameter.size(0)).chunk(ranks.size)
                found[f"{name}.{key}"] = part = Slice(0, indices)
                if id(parameter) not in own:
                    values = part.of(parameter.detach(), ranks.rank)
                    own[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
        if id(module) not in replaced:
            weight, bias = module._parameters["weight"], module._parameters.get("bias")
            if isinstance(module, nn.Embedding):
                replaced[id(module)] = TokenEmbedding(module, own[id(weight)], ranks)
            else:
                own_bias = None if bias is None else own[id(bias)]
                replaced[id(module)] = OutputLayer(module, own[id(weight)], own_bias, ranks)
        model.set_submodule(name, replaced[id(module)])
    return found


def _require_sliceable(model: nn.Module, name: str, module: nn.Module, ranks: Ranks) -> None:
    embedding = type(module) is nn.Embedding and module.max_norm is None and not module.scale_grad_by_freq
    if not (embedding and not module.sparse) and type(module) is not nn.Linear:
        raise MethodRefusedError(
            f"rows of a vocabulary are sliced in plain nn.Embedding and nn.Linear layers, but {name} is a "
            f"{type(module).__name__} or has options that need all rows"
        )
    if not embedding and not is_linear(module):
        raise MethodRefusedError(f"rows of a vocabulary cannot be sliced in {name}: hooks on it would see slices")
    weight, bias = module.weight, module._parameters.get("bias")
    assert isinstance(weight, torch.Tensor)
    if weight.size(0) % ranks.size:
        raise MethodRefusedError(
            f"the rows of {name} must be shared evenly, but there are {weight.size(0)} and {ranks.size} ranks; pad "
            "the vocabulary"
        )
    if bias is not None and any(
        bias is one for other in model.modules() if other is not module for one in other._parameters.values()
    ):
        raise MethodRefusedError(f"the bias of {name} is held by another module too, which would get a slice")
