"""Train a share of the weights, and exchange which ones they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.adapters.low_rank import WHICH_WEIGHTS_TRAIN
from advisor.methods.applying import judged, require
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.text.units import format_bytes
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.methods.adapters._sparse_weights import SparseWeights
    from advisor.training.training import Training

__all__ = ["SparseReparameterization"]

_STEPS_BETWEEN = 100
"""Optimizer steps between two exchanges: the papers' schedule for the first epochs."""


class SparseReparameterization(Method):
    """Keeps a fixed number of weights that are not zero, and exchanges the smallest for others as training goes on.

    Biases, norms, embeddings, the first convolution and the output layer stay dense. Every 100 steps weights below a
    threshold, which adapts itself and is one for all layers, are pruned; as many zeros are released at random places,
    and the optimizer state of these weights is reset.

    Weights, gradients and optimizer state stay dense tensors with masks, so none takes less memory here, and the
    measured peak is that of dense tensors; a note says what a sparse format would take.
    """

    name = "sparse_reparameterization"
    summary = "Trains a fixed share of the weights and exchanges them; tells what a sparse format would take."
    fidelity = Fidelity.MODEL
    learns_slower = True
    saves: ClassVar[frozenset[Saves]] = frozenset()
    time_ratio = 1.1
    costs = "a mask of one byte per weight and its product with every gradient and weight; less can be learned"
    pays = "to learn whether a model can be trained sparsely, for hardware or kernels that gain from it"
    does_not_pay = "for memory on this device: dense tensors with masks are larger than dense ones without"
    stage = Stage.MODEL
    decides = WHICH_WEIGHTS_TRAIN
    parameters = (Parameter("nonzero", (0.3, 0.5), "share of the weights of the sparse layers that are not zero"),)
    conflicts = (Conflict("fsdp", "masks are as large as the whole weights, and it slices these; use ddp or zero_1"),)
    citation = (
        "Mostafa and Wang 2019, Parameter Efficient Training of Deep Convolutional Neural Networks by Dynamic Sparse "
        "Reparameterization; Sohoni et al. 2019, Low-Memory Neural Network Training"
    )

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs linear layers or convolutions."""
        return _judge(facts is None or any(facts.matrices.values()))

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Set weights to zero, mask gradients, and exchange weights every so many steps."""
        from advisor.methods.adapters._sparse_weights import SparseWeights, sparse_layers

        layers = sparse_layers(training.model)
        require(_judge(bool(layers)))
        weights = SparseWeights(layers, float(parameters["nonzero"]), _STEPS_BETWEEN, lambda: training.optimizer)
        training.state_parts[self.name] = weights
        training.after_step.append(weights.after_step)

        def tell() -> None:
            training.after_step.remove(tell)
            training.notes.append(_note(weights))

        training.after_step.append(tell)  # The optimizer has its state after the first step.


def _judge(found: bool) -> Verdict:
    return judged(
        found,
        "it needs linear layers or convolutions with trained weights of their own besides the first convolution and "
        "the last layer, but the model has none",
    )


def _note(weights: SparseWeights) -> str:
    found = weights.stored_bytes()
    stored = found["values"] + found["indices"]
    return (
        f"sparse_reparameterization: weights, gradients and optimizer state of {len(weights.masks)} layers would take "
        f"{format_bytes(stored)} in a sparse format ({format_bytes(found['values'])} of values and "
        f"{format_bytes(found['indices'])} of indices); here they are dense and take {format_bytes(found['dense'])}, "
        f"with masks of {format_bytes(weights.total)}, and the measured peak is that of the dense ones"
    )
