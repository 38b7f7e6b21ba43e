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

__all__ = ["OutputLayer", "TokenEmbedding", "slice_vocabulary", "vocabulary_weights", "why_not_sliced"]


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


def vocabulary_weights(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Weights with a row for each token: of the embedding with most rows, and of linear layers with as many outputs.

    Args:
        model: The whole model.
        blocks: Its blocks; what is in them does not count.

    Raises:
        MethodRefusedError: There is no embedding.
    """
    inside = {id(module) for block in blocks for module in block.modules()}
    outside = [module for module in model.modules() if id(module) not in inside]
    rows = max((module.num_embeddings for module in outside if isinstance(module, nn.Embedding)), default=0)
    if not rows:
        raise MethodRefusedError(f"vocabulary=True slices an embedding of tokens, but {type(model).__name__} has none")
    found = [
        module.weight
        for module in outside
        if (isinstance(module, nn.Embedding) and module.num_embeddings == rows)
        or (isinstance(module, nn.Linear) and module.out_features == rows)
    ]
    distinct = {id(weight): weight for weight in found if isinstance(weight, nn.Parameter)}
    return list(distinct.values())


def why_not_sliced(model: nn.Module, weights: Sequence[nn.Parameter], degree: int) -> str:
    """Why so many ranks cannot share the rows; empty if they can."""
    try:
        for name, module in _holders(model, weights):
            _require_sliceable(model, name, module, degree)
    except MethodRefusedError as error:
        return str(error)
    return ""


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
    holders = _holders(model, weights)
    for name, module in holders:
        _require_sliceable(model, name, module, ranks.size)
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


def _holders(model: nn.Module, weights: Sequence[nn.Parameter]) -> list[tuple[str, nn.Module]]:
    """Modules that hold one of the weights, under every name that they have."""
    wanted = {id(weight) for weight in weights}
    return [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if wanted & {id(one) for one in module._parameters.values()}
    ]


def _require_sliceable(model: nn.Module, name: str, module: nn.Module, degree: int) -> None:
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
    if weight.size(0) % degree:
        raise MethodRefusedError(
            f"the rows of {name} must be shared evenly, but there are {weight.size(0)} and {degree} ranks; pad "
            "the vocabulary"
        )
    if bias is not None and any(
        bias is one for other in model.modules() if other is not module for one in other._parameters.values()
    ):
        raise MethodRefusedError(f"the bias of {name} is held by another module too, which would get a slice")
