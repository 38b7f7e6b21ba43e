"""Low-rank adapters for the frozen weights of a model (peft), and the state of a model that has them."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from advisor.errors import MethodRefusedError
from advisor.training.state_part import StatePart
from advisor.training.structure import all_places, is_transposed, put_in_places

__all__ = ["Adapters", "add_adapters"]

_ADAPTER = "default"
_BASE = "base_layer."
_ALPHA_PER_RANK = 2
"""The product of the adapters is scaled by this, as is usual (``lora_alpha = 2 * rank``)."""


def add_adapters(model: nn.Module, names: Sequence[str], rank: int) -> None:
    """Add adapters to linear layers and convolutions of a model, given by name, and freeze everything else.

    Their product is zero at first: the model computes the same as before. The global random state stays.
    """
    import peft
    from peft.tuners.tuners_utils import BaseTunerLayer

    if own := next((name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)), ""):
        # Whoever saves them would save them alone, without those that are added here.
        raise MethodRefusedError(
            f"adapters are added to a plain model, but {own} of this one has adapters already; leave the method out, "
            "or merge yours before (merge_and_unload)"
        )
    config = peft.LoraConfig(r=rank, lora_alpha=_ALPHA_PER_RANK * rank, target_modules=_pattern(names), bias="none")
    places = all_places(model, names)
    noted = getattr(model, "peft_config", None)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to")  # It then sets it as it must be.
        # Without memory, and outside fake tensors, which cannot be moved as peft moves what it builds.
        with _disable_current_modes():
            peft.inject_adapter_in_model(config, model, adapter_name=_ADAPTER, low_cpu_mem_usage=True)
        for name in names:
            _fill(model.get_submodule(name))
    # peft replaces a layer under the first of its names only.
    put_in_places(model, {name: model.get_submodule(name) for name in names}, places)
    # What peft notes on the model makes transformers save adapters only; the state here is that of a plain model.
    if noted is None:
        del model.peft_config
    else:
        model.peft_config = noted
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            # Its fast path for evaluation computes with the frozen weights themselves; any hook keeps torch from it.
            module.register_forward_pre_hook(_do_nothing)


class Adapters(StatePart):
    """The adapters of a model's layers, and the frozen weights of these.

    The model's state has the sum of both, for a plain model. The sum is rounded, so its parts are kept too: training
    goes on from exact values.

    Attributes:
        in_two_places: Name of a layer that two modules hold; empty if there is none.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._layers: dict[str, Any] = {name: model.get_submodule(name) for name in names}
        self._places = all_places(model, names)
        self.in_two_places = next((name for place, name in self._places.items() if not _same(model, place, name)), "")

    def to_plain(self, state: dict[str, Any]) -> dict[str, Any]:
        """Merge each layer's adapters into its weight."""
        plain: dict[str, Any] = type(state)()
        for name, value in state.items():
            layer, _, last = name.partition(f".{_BASE}")
            if layer in self._places:
                plain[f"{layer}.{last}"] = self._merged(self._places[layer]) if last == "weight" else value
            elif name.partition(".lora_")[0] not in self._places:
                plain[name] = value
        return plain

    def require_fitting(self, kept: Mapping[str, Any] | None) -> None:
        """Refuse adapters of other layers, or of another rank."""
        if kept is not None and not self._fits(kept):
            raise MethodRefusedError(
                "the adapters of a state must be of the same layers and rank as those of the training that it is "
                "loaded into; apply the same policy, or take the entry of the adapters out of the state: they are "
                "merged in its weights, and new ones begin"
            )

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The weights and adapters that were kept, or plain weights with adapters whose product is zero."""
        own: dict[str, Any] = {}
        for name, value in state.items():
            place, _, last = name.rpartition(".")
            layer = self._places.get(place)
            if layer is None:
                own[name] = value
            elif last == "weight":
                first, second = self._pair(layer)
                restored = kept[layer] if kept is not None else {"first": first, "second": torch.zeros_like(second)}
                own[f"{place}.{_BASE}weight"] = self._frozen(layer, value, kept)
                own[f"{place}.lora_A.{_ADAPTER}.weight"] = restored["first"]
                own[f"{place}.lora_B.{_ADAPTER}.weight"] = restored["second"]
            else:
                own[f"{place}.{_BASE}{last}"] = value
        return own

    def state_dict(self) -> dict[str, Any]:
        """Layer -> its adapters and its frozen weight; the tensors are the model's own."""
        return {
            name: {"first": first.detach(), "second": second.detach(), **_frozen_tensors(layer.base_layer)}
            for name, layer in self._layers.items()
            for first, second in [self._pair(name)]
        }

    def for_peft(self) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Options of a ``peft.LoraConfig``, and the tensors under the names that peft saves them with."""
        layer = next(iter(self._layers.values()))
        options = {
            "r": layer.r[_ADAPTER],
            "lora_alpha": layer.lora_alpha[_ADAPTER],
            "target_modules": _pattern(self._layers),
            "fan_in_fan_out": any(_had_inputs_first(one.base_layer) for one in self._layers.values()),
            "bias": "none",
            "inference_mode": True,
        }
        tensors = {
            f"base_model.model.{name}.lora_{place}.weight": tensor.detach()
            for name in self._layers
            for place, tensor in zip("AB", self._pair(name), strict=True)
        }
        return options, tensors

    def _fits(self, kept: Mapping[str, Any]) -> bool:
        return kept.keys() == self._layers.keys() and all(
            kept[name]["first"].shape == self._pair(name)[0].shape
            and kept[name].keys() == {"first", "second", *_frozen_tensors(layer.base_layer)}
            for name, layer in self._layers.items()
        )

    def _pair(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self._layers[name]
        return layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight

    def _merged(self, name: str) -> torch.Tensor:
        layer = self._layers[name]
        base = layer.base_layer
        with torch.no_grad():
            frozen = base.whole() if _holds(base) else base.weight
            merged: torch.Tensor = frozen + layer.get_delta_weight(_ADAPTER).to(frozen.dtype)
        return merged.t().contiguous() if getattr(base, "transposed", False) else merged

    def _frozen(self, name: str, weight: torch.Tensor, kept: Mapping[str, Any] | None) -> torch.Tensor:
        base = self._layers[name].base_layer
        held = weight
        if kept is not None:
            for part, tensor in _frozen_tensors(base).items():
                tensor.copy_(kept[name][part])
            held = kept[name]["weight"]
        elif _holds(base):
            weight = weight.to(base.weight.device)
            held = base.hold(weight.t() if base.transposed else weight)
        return held


def _same(model: nn.Module, place: str, name: str) -> bool:
    """Whether one module, which may have several names itself, holds what has these two names."""
    return model.get_submodule(place.rpartition(".")[0]) is model.get_submodule(name.rpartition(".")[0])


def _pattern(names: Iterable[str]) -> str:
    """Whole names: in a list peft takes them as endings, which other layers may share."""
    return "|".join(map(re.escape, names))


def _had_inputs_first(base: Any) -> bool:
    """Whether the layer that a user has holds its weight as (inputs, outputs)."""
    return bool(base.transposed) if _holds(base) else is_transposed(base)


def _fill(layer: Any) -> None:
    """Make the adapters of a layer, which have no memory yet: the first random as in peft, the second zero.

    In float32 whatever the layer's format, in a lower one of which updates would be lost.
    """
    device = layer.base_layer.weight.device
    first, second = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]
    drawn = nn.init.kaiming_uniform_(torch.zeros(first.weight.shape), a=math.sqrt(5))
    first.weight = nn.Parameter(drawn.to(device))
    second.weight = nn.Parameter(torch.zeros(second.weight.shape, device=device))


def _do_nothing(module: nn.Module, args: Any) -> None: ...


def _frozen_tensors(base: Any) -> dict[str, torch.Tensor]:
    """What makes up a frozen layer's weight: itself, or its 4-bit numbers with their scales."""
    return base.tensors() if _holds(base) else {"weight": base.weight.detach()}


def _holds(base: Any) -> bool:
    """Whether a layer holds its weight in a form of its own, as ``FourBitLinear`` does; it needs no import of that."""
    return hasattr(base, "hold")
