"""Weights of which only a share is not zero; which ones changes during training.

Dynamic sparse reparameterization (Mostafa and Wang 2019), with the momentum of exchanged weights reset (Sohoni et al.
2019): every so many steps the weights nearest to zero are pruned, by one threshold for all layers, and as many zeros
are released at random places, more of them in layers that kept more. No kernel trains such weights in less memory, so
they are dense tensors with masks here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.training.optimizer.device_parameter import device_parameter
from advisor.training.state_part import StatePart
from advisor.training.structure import matrix_layers, matrix_shape, output_layer

__all__ = ["SparseWeights", "shares", "sparse_layers"]

_EXCHANGED = 0.01377866
"""Share of all elements to prune in an exchange: 20,000 of the paper's network."""
_FIRST_THRESHOLD = 0.001
_TOO_FEW, _TOO_MANY = 0.9, 1.1
"""Multiples of the elements to prune where the threshold is doubled and where it is halved."""
_FAR_TOO_MANY = 2.0
"""Where the threshold is halved before anything is pruned: all weights may be below the first one."""


def sparse_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers to make sparse: all trained matrix layers but the first convolution and the classifier."""
    layers = matrix_layers(model)
    if output_layer(model) is None:
        layers = layers[:-1]
    first = next((name for name, layer in layers if isinstance(layer, nn.Conv2d)), None)
    return [(name, layer) for name, layer in layers if name != first and cast(nn.Parameter, layer.weight).requires_grad]


class SparseWeights(StatePart):
    """The masks of some layers' weights, and their exchanges.

    Args:
        layers: Names and modules of the layers.
        nonzero: Share of each weight that may be nonzero at first; later, of all together.
        every: Optimizer steps between two exchanges.
        optimizer: Returns the current optimizer.

    Attributes:
        masks: Layer -> where its weight may be nonzero.
        threshold: Magnitude below which the next exchange prunes.
    """

    def __init__(
        self,
        layers: Sequence[tuple[str, nn.Module]],
        nonzero: float,
        every: int,
        optimizer: Callable[[], torch.optim.Optimizer],
    ) -> None:
        self.masks: dict[str, torch.Tensor] = {}
        self.threshold = _FIRST_THRESHOLD
        self._weights: dict[str, nn.Parameter] = {}
        self._counts: dict[str, int] = {}
        self._shapes = {name: matrix_shape(layer) for name, layer in layers}
        self._every = every
        self._optimizer = optimizer
        self._steps = 0
        # What dropout draws must not depend on the masks.
        self._generator = torch.Generator().manual_seed(0)
        for name, layer in layers:
            weight = layer.weight
            assert isinstance(weight, nn.Parameter)
            self._weights[name] = weight
            self._counts[name] = round(nonzero * weight.numel())
            mask = torch.zeros(weight.numel(), dtype=torch.bool)
            mask[self._drawn(weight.numel(), self._counts[name])] = True
            self.masks[name] = mask.view(weight.shape).to(weight.device)
            weight.register_hook(lambda gradient, name=name: gradient * self.masks[name])  # type: ignore[no-untyped-call]
        self._mask_weights()

    @property
    def total(self) -> int:
        """Elements of all weights, zero or not."""
        return sum(weight.numel() for weight in self._weights.values())

    def after_step(self) -> None:
        """Mask the weights; exchange some when it is time."""
        self._steps += 1
        if self._steps % self._every == 0:
            self.exchange()
        self._mask_weights()

    @torch.no_grad()
    def exchange(self) -> None:
        """Prune the weights nearest to zero, and release as many others."""
        wanted = _EXCHANGED * self.total
        small = self._small()
        while small > _FAR_TOO_MANY * wanted:
            self.threshold /= 2
            small = self._small()
        for name, weight in self._weights.items():
            self.masks[name] &= weight.abs() >= self.threshold
        self._mask_weights()
        if small < _TOO_FEW * wanted:
            self.threshold *= 2
        elif small > _TOO_MANY * wanted:
            self.threshold /= 2
        survivors = {name: int(mask.sum()) for name, mask in self.masks.items()}
        room = {name: mask.numel() - survivors[name] for name, mask in self.masks.items()}
        for name, count in shares(small, survivors, room).items():
            mask = self.masks[name].view(-1)
            zeros = (~mask).nonzero().flatten()
            mask[zeros[self._drawn(len(zeros), count).to(zeros.device)]] = True
            self._counts[name] = survivors[name] + count
            # No momentum may bring back what was pruned, and what is new has not been stepped.
            self._optimizer().state.pop(self._stepped(self._weights[name]), None)

    def stored_bytes(self) -> dict[str, int]:
        """Bytes of weights, gradients and optimizer state: dense, and as values and indices of a sparse format.

        All three share the indices: compressed sparse rows, with as many bits per column as needed.
        """
        values = indices = dense = 0
        for name, weight in self._weights.items():
            state = self._optimizer().state.get(self._stepped(weight), {}).values()
            moments = [part for part in state if isinstance(part, torch.Tensor) and part.numel() == weight.numel()]
            per_element = 2 * weight.element_size() + sum(part.element_size() for part in moments)
            rows, columns = self._shapes[name]
            count = self._counts[name]
            values += count * per_element
            indices += math.ceil(count * max(1, math.ceil(math.log2(columns))) / 8) + 4 * (rows + 1)
            dense += weight.numel() * per_element
        return {"dense": dense, "values": values, "indices": indices}

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Restore the masks, or mask the weights of a plain model."""
        if kept is not None:
            if kept["masks"].keys() != self.masks.keys():
                raise MethodRefusedError(
                    "the masks of a state must be of the layers of the model that it is loaded into"
                )
            for name, mask in self.masks.items():
                mask.copy_(kept["masks"][name])
                self._counts[name] = int(mask.sum())
            self.threshold, self._steps = kept["threshold"], kept["steps"]
            self._generator.set_state(kept["generator"].cpu())
        masks = {f"{name}.weight": mask for name, mask in self.masks.items()}
        return {name: value * masks[name].to(value.device) if name in masks else value for name, value in state.items()}

    def state_dict(self) -> dict[str, Any]:
        """The masks, and what decides the next ones."""
        return {
            "masks": dict(self.masks),
            "threshold": self.threshold,
            "steps": self._steps,
            "generator": self._generator.get_state(),
        }

    def _small(self) -> int:
        pairs = [(self.masks[name], weight.detach()) for name, weight in self._weights.items()]
        return sum(int((mask & (weight.abs() < self.threshold)).sum()) for mask, weight in pairs)

    def _stepped(self, weight: nn.Parameter) -> torch.Tensor:
        """The optimizer's parameter for a weight: itself, or its copy on the host."""
        members = (member for group in self._optimizer().param_groups for member in group["params"])
        return next((member for member in members if device_parameter(member) is weight), weight)

    @torch.no_grad()
    def _mask_weights(self) -> None:
        for name, weight in self._weights.items():
            weight.mul_(self.masks[name])

    def _drawn(self, size: int, count: int) -> torch.Tensor:
        return torch.randperm(size, generator=self._generator)[:count]


def shares(total: int, weights: Mapping[str, int], room: Mapping[str, int]) -> dict[str, int]:
    """Divide a whole number in proportion to weights; what one has no room for goes to the others."""
    assert total <= sum(room.values()), "there is room for all"
    given = dict.fromkeys(weights, 0)
    while (left := total - sum(given.values())) > 0:
        able = {name: weight for name, weight in weights.items() if given[name] < room[name]}
        if not any(able.values()):
            able = dict.fromkeys(able, 1)
        exact = {name: left * weight / sum(able.values()) for name, weight in able.items()}
        portions = {name: math.floor(share) for name, share in exact.items()}
        nearest = sorted(exact, key=lambda name: portions[name] - exact[name])
        for name in nearest[: left - sum(portions.values())]:
            portions[name] += 1
        for name, portion in portions.items():
            given[name] += min(portion, room[name] - given[name])
    return given
