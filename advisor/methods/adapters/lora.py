"""Train low-rank adapters for frozen weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.adapters.low_rank import CONVOLUTIONS, LINEAR_LAYERS, judge_shapes, pays
from advisor.methods.adapters.trained_weights import WHICH_WEIGHTS_TRAIN
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Lora"]

_KINDS = "linear layers and convolutions"


class Lora(Method):
    """Freezes the model and trains the product of two thin matrices for each linear layer and convolution.

    Layers that would be smaller than their adapters stay without, and so do tied weights and the output layer of a
    language model. Everything else is frozen too: embeddings, norms, biases; running statistics are still updated.
    A layer that the loss takes the weight of, instead of calling it, is not adapted either. The state of the model
    has the sums of weights and adapters; the separate entry ``lora`` has both apart.
    """

    name = "lora"
    summary = "Freezes the weights and trains thin added matrices (peft): no gradients or moments of the weights."
    fidelity = Fidelity.MODEL
    learns_slower = True
    saves = frozenset({Saves.GRADIENTS, Saves.OPTIMIZER_STATE})
    time_ratio = 0.75
    costs = "less can be learned; two thin matrix products more per layer; saved states hold adapted weights twice"
    pays = "when a pretrained model is adapted, and gradients and optimizer state are most of the memory"
    does_not_pay = "when a model is trained from its beginning: its random weights would stay as they are"
    stage = Stage.MODEL
    decides = WHICH_WEIGHTS_TRAIN
    parameters = (Parameter("rank", (8, 32), "thin side of the matrices: a higher one learns more and saves less"),)
    requires = ("peft",)
    extra = "adapters"
    conflicts = (
        Conflict(
            "fsdp", "it is sliced weights that adapters would have to be merged into for saving; use ddp or zero_1"
        ),
    )
    citation = "Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models; https://huggingface.co/docs/peft"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a layer that is larger than its adapters."""
        if facts is None:
            return Verdict.yes()
        shapes = [shape for kind in (*LINEAR_LAYERS, *CONVOLUTIONS) for shape in facts.matrices.get(kind, ())]
        return judge_shapes(shapes, int(parameters["rank"]), _KINDS)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add adapters to every layer that is larger than its adapters."""
        from advisor.training.structure import matrix_layers, matrix_shape

        rank = int(parameters["rank"])
        shapes = {name: matrix_shape(layer) for name, layer in matrix_layers(training.model)}
        verdict = judge_shapes(shapes.values(), rank, _KINDS)
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
        try:
            import peft  # noqa: F401
        except Exception as error:  # Whatever a library raises while it loads is the user's answer.
            raise MethodRefusedError(f"peft cannot be imported: {error}") from error
        from advisor.methods.adapters._adapters import Adapters, add_adapters

        names = [name for name, shape in shapes.items() if pays(shape, rank)]
        add_adapters(training.model, names, rank)
        training.state_parts[self.name] = Adapters(training.model, names)
