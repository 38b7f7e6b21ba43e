"""Which values of a block depend on which outputs of its linear layers.

A block runs once with the output of every linear layer cut out of the graph and made a leaf. What then has a gradient
with respect to a leaf depends on that layer directly, not by way of another linear layer. Leaves are random numbers:
real outputs may be zero behind a ReLU for all tokens of a batch, and would look as if nothing depended on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from advisor.methods.tensor_parallel._block_calls import Call, first_tensor
from advisor.methods.tensor_parallel._linear import is_linear
from advisor.methods.tensor_parallel._replica import replica

__all__ = ["Dependencies", "LinearCall"]


class LinearCall:
    """One linear layer in the trace.

    Args:
        name: Its name in the block.
        layer: The layer.
        inputs: What it read.
        leaf: What stands for its output.
    """

    def __init__(self, name: str, layer: nn.Module, inputs: torch.Tensor, leaf: torch.Tensor) -> None:
        self.name = name
        self.layer = layer
        self.inputs = inputs
        self.leaf = leaf


class Dependencies:
    """The trace of one call of a block.

    Args:
        block: The block; a replica of it runs.
        call: The call.

    Attributes:
        linears: Its linear layers in the order of their calls.
        twice: Names of those that are called more than once.
    """

    def __init__(self, block: nn.Module, call: Call) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self._hidden = call.hidden.clone().requires_grad_()
        self._modules: dict[str, tuple[tuple[Any, ...], dict[str, Any], torch.Tensor | None]] = {}
        self.linears: list[LinearCall] = []
        self.twice: set[str] = set()
        copied = replica(block)
        self._parameters = {name: one for name, one in copied.named_parameters() if one.requires_grad}
        for name, module in copied.named_modules():
            if is_linear(module):
                module.register_forward_hook(self._cut(name))
            elif name:
                module.register_forward_hook(self._seen(name), with_kwargs=True)
        with torch.enable_grad():
            call.run(copied, self._hidden)
        self.linears = [one for one in self.linears if one.name not in self.twice]

    def of(
        self, values: torch.Tensor, linears: Sequence[LinearCall], features: slice = slice(None)
    ) -> tuple[bool, list[torch.Tensor]]:
        """What some features of a tensor depend on.

        Returns:
            Whether they depend on the block's input, and the features of each layer's output that they depend on.
        """
        leaves = [self._hidden, *(one.leaf for one in linears)]
        weights = torch.zeros_like(values)
        part = weights[..., features]
        part.copy_(torch.randn(part.shape, generator=self._generator))  # A plain sum cancels in a softmax.
        on_input, *found = self._gradients(values, weights, leaves)
        return on_input is not None and bool(on_input.any()), [
            _features(gradient, one.leaf) for gradient, one in zip(found, linears, strict=True)
        ]

    def parameters_of(self, values: torch.Tensor) -> list[str]:
        """Names of the trained parameters on which a tensor depends directly."""
        weights = torch.randn(values.shape, generator=self._generator).to(values.dtype)
        gradients = self._gradients(values, weights, list(self._parameters.values()))
        return [
            name
            for name, gradient in zip(self._parameters, gradients, strict=True)
            if gradient is not None and bool(gradient.any())
        ]

    def only_for(self, module: str, entries: Sequence[LinearCall]) -> tuple[int | str, ...]:
        """Where a module around entries is given the hidden states, if these go to the entries alone; else nothing."""
        if module not in self._modules:
            return ()
        args, kwargs, output = self._modules[module]
        places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        given = [(place, each) for place, each in places if _has_gradient(each)]
        if not given or any(each is not given[0][1] for _, each in given):
            return ()
        if output is not None and output.requires_grad:
            weights = torch.randn(output.shape, generator=self._generator).to(output.dtype)
            (gradient,) = self._gradients(output, weights, [given[0][1]])
            if gradient is not None and bool(gradient.any()):
                return ()
        if any(one.inputs is not given[0][1] and one.inputs._base is not given[0][1] for one in entries):
            return ()
        return tuple(place for place, _ in given)

    def _gradients(
        self, values: torch.Tensor, weights: torch.Tensor, leaves: list[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        if not values.requires_grad or not leaves:
            return (None,) * len(leaves)
        return torch.autograd.grad(values, leaves, weights, retain_graph=True, allow_unused=True)

    def _cut(self, name: str) -> Any:
        def cut(layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            if any(one.name == name for one in self.linears):
                self.twice.add(name)
            leaf = torch.randn(output.shape, generator=self._generator).to(output.dtype).requires_grad_()
            self.linears.append(LinearCall(name, layer, args[0], leaf))
            return leaf.clone()

        return cut

    def _seen(self, name: str) -> Any:
        def seen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            self._modules[name] = (args, kwargs, first_tensor(output))

        return seen


def _features(gradient: torch.Tensor | None, leaf: torch.Tensor) -> torch.Tensor:
    if gradient is None:
        return torch.empty(0, dtype=torch.long)
    return gradient.reshape(-1, leaf.size(-1)).ne(0).any(0).nonzero().flatten()


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
