"""Store saved activations in 8, 4 or 2 bits per value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.activations.activation_storage import ACTIVATION_FORMAT, LEFT_EXACT
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["CompressActivations"]


class CompressActivations(Method):
    """Codes activations in groups of 256 when they are saved, with random rounding that is right on the average.

    The forward pass is unmodified. Weights, masks and normalization statistics stay exact, because errors in those
    would not average out, and so does what a small error in would change the gradients without bound: what logarithms,
    divisions (the divisor), roots, norms, binary cross entropies of probabilities, largest values and fused attention
    save, and what a function of torch saves that calls one of these. Nobody knows what other functions do with what
    they save: those of other libraries, your own (``torch.autograd.Function``), scripted ones and regions that
    ``torch.compile`` made keep all of it exact. What a checkpointed region is recomputed from is coded. On a GPU the
    code is a Triton kernel where Triton works, and plain PyTorch where it does not.
    """

    name = "compress_activations"
    summary = "Stores activations in 8, 4 or 2 bits per value between the forward and the backward pass."
    fidelity = Fidelity.LOSSY
    random_gradients = True
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.3
    costs = "one pass over each activation to code it and one to decode it; noise in the gradients of weights"
    pays = "when activations fill the memory and recomputing or moving them costs more time"
    does_not_pay = f"where most is left exact: {LEFT_EXACT}"
    stage = Stage.STEP
    decides = ACTIVATION_FORMAT
    parameters = (
        Parameter(
            "bits",
            (8, 4, 2),
            "bits per value: 8 hardly shows in the gradients, 4 is about a seventh of the memory, 2 is noisy",
        ),
    )
    citation = "Chen et al. 2021, ActNN; Liu et al. 2022, GACT"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Everywhere."""
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage; how many draws were made becomes part of the training's state."""
        from advisor.methods.activations._coded_activations import CodeActivations
        from advisor.methods.activations._group_coder import GroupCoder
        from advisor.methods.activations._private_random import Draws

        bits = int(parameters["bits"])
        draws = Draws(stream=training.world.data.rank)
        training.state_parts[self.name] = draws
        coder = GroupCoder(bits, draws, training.device)
        if coder.why_plain:
            training.notes.append(f"compress_activations(bits={bits}) runs without Triton: {coder.why_plain}")
        training.works_in_chunks = True
        training.saved_tensor_pipeline().add(
            CodeActivations(coder),
            f"compress_activations(bits={bits}) changed nothing: no saved activation that may be approximate has 1024 "
            "values",
        )
