"""Train low-rank adapters for weights that are frozen in 4 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.adapters.low_rank import LINEAR_LAYERS, judge_shapes, pays
from advisor.methods.adapters.trained_weights import WHICH_WEIGHTS_TRAIN
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Qlora"]

_KINDS = "linear layers"


class Qlora(Method):
    """Low-rank adapters for linear layers whose own weights are rounded to 4 bits (NF4, double quantization).

    transformers' ``Conv1D``, of which GPT-2 is made, is a linear layer with its weight transposed, and is converted
    too. Convolutions, embeddings, tied weights and the output layer of a language model stay whole and frozen. The
    state of the model has the sums of rounded weights and adapters; the separate entry ``qlora`` has both apart.
    """

    name = "qlora"
    summary = "Holds frozen weights of linear layers in 4 bits (bitsandbytes) and trains thin added matrices (peft)."
    fidelity = Fidelity.MODEL
    learns_slower = True
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE})
    time_ratio = 0.9
    costs = "weights rounded to 4 bits for good; each is made whole again in every forward and backward pass"
    pays = "when a pretrained model is adapted whose weights alone fill most of the memory"
    does_not_pay = "when the weights fit: unrounded ones are faster and better; convolutions are not converted"
    stage = Stage.MODEL
    decides = WHICH_WEIGHTS_TRAIN
    parameters = (Parameter("rank", (8, 32), "thin side of the matrices: a higher one learns more and saves less"),)
    requires = ("bitsandbytes", "peft")
    extra = "quantized-adapters"
    conflicts = (
        Conflict("fsdp", "it slices parameters, and weights of 4 bits come with scales that would not be sliced along"),
    )
    citation = "Dettmers et al. 2023, QLoRA: Efficient Finetuning of Quantized LLMs"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a linear layer that is larger than its adapters."""
        if facts is None:
            return Verdict.yes()
        shapes = [shape for kind in LINEAR_LAYERS for shape in facts.matrices.get(kind, ())]
        return judge_shapes(shapes, int(parameters["rank"]), _KINDS)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Convert every linear layer that is larger than its adapters, and add these."""
        from torch import nn

        from advisor.training.structure import matrix_layers, matrix_shape

        rank = int(parameters["rank"])
        layers = {name: layer for name, layer in matrix_layers(training.model) if not isinstance(layer, nn.Conv2d)}
        if training.linear_head is not None and layers:
            layers.popitem()  # The loss takes the weight of the last one as it is.
        shapes = {name: matrix_shape(layer) for name, layer in layers.items()}
        verdict = judge_shapes(shapes.values(), rank, _KINDS)
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
        try:
            import bitsandbytes  # noqa: F401
            import peft  # noqa: F401
        except Exception as error:  # Whatever a native library raises while it loads is the user's answer.
            raise MethodRefusedError(f"bitsandbytes or peft cannot be imported: {error}") from error
        from advisor.methods.adapters._adapters import Adapters, add_adapters
        from advisor.methods.adapters._four_bit_linear import quantize_layers

        names = [name for name, shape in shapes.items() if pays(shape, rank)]
        quantize_layers(training.model, names)
        add_adapters(training.model, names, rank)
        training.state_parts[self.name] = Adapters(training.model, names)
