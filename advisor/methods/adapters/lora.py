"""Train low-rank adapters for frozen weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.activations.module_kinds import LINEAR_LAYERS
from advisor.methods.adapters.low_rank import LowRank
from advisor.methods.base import Conflict, Saves
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Lora"]


class Lora(LowRank):
    """Low-rank adapters for linear layers and convolutions.

    Everything else is frozen too: embeddings, norms, biases; running statistics are still updated.
    """

    name = "lora"
    summary = "Freezes the weights and trains thin added matrices (peft): no gradients or moments of the weights."
    saves = frozenset({Saves.GRADIENTS, Saves.OPTIMIZER_STATE})
    time_ratio = 0.75
    costs = "less can be learned; two thin matrix products more per layer; saved states hold adapted weights twice"
    pays = "when a pretrained model is adapted, and gradients and optimizer state are most of the memory"
    does_not_pay = "when a model is trained from its beginning: its random weights would stay as they are"
    requires = ("peft",)
    extra = "adapters"
    conflicts = (
        Conflict(
            "fsdp", "it is sliced weights that adapters would have to be merged into for saving; use ddp or zero_1"
        ),
    )
    layers = "linear layers and convolutions"
    kinds = (*LINEAR_LAYERS, "torch.nn.Conv2d")
    citation = "Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models; https://huggingface.co/docs/peft"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add adapters to every layer that is larger than its adapters."""
        from advisor.training.structure import matrix_layers

        self.add(training, self.adapted(dict(matrix_layers(training.model)), parameters), parameters)
