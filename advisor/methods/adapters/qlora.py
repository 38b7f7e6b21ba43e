"""Train low-rank adapters for weights that are frozen in 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.activations.module_kinds import LINEAR_LAYERS
from advisor.methods.adapters.low_rank import LowRank
from advisor.methods.base import Conflict, Saves
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Qlora"]


class Qlora(LowRank):
    """Low-rank adapters for linear layers whose own weights are rounded to 4 bits (NF4, double quantization).

    transformers' ``Conv1D``, of which GPT-2 is made, counts as a linear layer. Convolutions, embeddings, tied weights
    and the output layer of a language model stay whole and frozen.
    """

    name = "qlora"
    summary = "Holds frozen weights of linear layers in 4 bits (bitsandbytes) and trains thin added matrices (peft)."
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE})
    time_ratio = 0.9
    costs = "weights rounded to 4 bits for good; each is made whole again in every forward and backward pass"
    pays = "when a pretrained model is adapted whose weights alone fill most of the memory"
    does_not_pay = "when the weights fit: unrounded ones are faster and better; convolutions are not converted"
    requires = ("bitsandbytes", "peft")
    extra = "quantized-adapters"
    conflicts = (
        Conflict("fsdp", "it slices parameters, and weights of 4 bits come with scales that would not be sliced along"),
    )
    layers = "linear layers"
    kinds = LINEAR_LAYERS
    citation = "Dettmers et al. 2023, QLoRA: Efficient Finetuning of Quantized LLMs"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Convert every linear layer that is larger than its adapters, and add these."""
        from torch import nn

        from advisor.training.structure import matrix_layers

        layers = {name: layer for name, layer in matrix_layers(training.model) if not isinstance(layer, nn.Conv2d)}
        if training.linear_head is not None and layers:
            layers.popitem()  # The loss takes the weight of the last one as it is.
        names = self.adapted(layers, parameters)
        from advisor.methods.adapters._four_bit_linear import quantize_layers  # It imports bitsandbytes.

        quantize_layers(training.model, names)
        self.add(training, names, parameters)
