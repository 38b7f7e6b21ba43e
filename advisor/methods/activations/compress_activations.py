"""Store saved activations in 8, 4 or 2 bits per value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.activations.activation_storage import LEFT_EXACT, CodedActivations
from advisor.methods.base import Parameter
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["CompressActivations"]


class CompressActivations(CodedActivations):
    """Codes activations in groups of 256 when they are saved, rounded at random so that the mean is right.

    On a GPU the code is a Triton kernel where Triton works, and plain PyTorch where it does not.
    """

    name = "compress_activations"
    summary = "Stores activations in 8, 4 or 2 bits per value between the forward and the backward pass."
    random_gradients = True
    time_ratio = 1.3
    costs = "one pass over each activation to code it and one to decode it; noise in the gradients of weights"
    pays = "when activations fill the memory and recomputing or moving them costs more time"
    does_not_pay = f"where most is left exact: {LEFT_EXACT}"
    parameters = (
        Parameter(
            "bits",
            (8, 4, 2),
            "bits per value: 8 hardly shows in the gradients, 4 is about a seventh of the memory, 2 is noisy",
        ),
    )
    citation = "Chen et al. 2021, ActNN; Liu et al. 2022, GACT"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage; the number of draws becomes part of the training's state."""
        from advisor.methods.activations._group_coder import GroupCoder
        from advisor.methods.activations._private_random import Draws

        bits = int(parameters["bits"])
        draws = Draws(stream=training.world.data.rank)
        training.state_parts[self.name] = draws
        coder = GroupCoder(bits, draws, training.device)
        label = f"compress_activations bits={bits}"
        if coder.why_plain:
            training.notes.append(f"{label} runs without Triton: {coder.why_plain}")
        self.store(training, coder, label)
