"""Store saved activations in a float format of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.activations.activation_storage import ACTIVATION_FORMAT, LEFT_EXACT
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Fp8Activations"]

_TORCH_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


class Fp8Activations(Method):
    """Casts activations to float8 when they are saved, each group of 256 scaled to fill the format.

    The forward pass is unmodified, and so is what must be exact: weights, masks, normalization statistics, what
    logarithms, divisions (the divisor), roots, norms, binary cross entropies of probabilities, largest values and fused
    attention save, and what is saved by functions that nobody knows: those of other libraries, your own
    (``torch.autograd.Function``), scripted ones and regions that ``torch.compile`` made.
    """

    name = "fp8_activations"
    summary = "Stores activations as 8-bit floats between the forward and the backward pass."
    fidelity = Fidelity.LOSSY
    gradient_tolerance = 0.1
    update_tolerance = 0.5  # Its errors are those of precision, and with checkpointing the blocks are run on them.
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.05
    costs = "one cast of each activation in either direction; errors of some percent in the gradients of weights"
    pays = "when activations fill the memory; its casts are simpler than the kernels of compress_activations"
    does_not_pay = (
        "where 8 bits of compress_activations fit too, whose error is a third as large; where most is left exact: "
        f"{LEFT_EXACT}"
    )
    stage = Stage.STEP
    decides = ACTIVATION_FORMAT
    parameters = (
        Parameter("format", ("e4m3", "e5m2"), "e4m3: 3 bits of fraction; e5m2: 2 bits of fraction and more range"),
    )
    citation = "Micikevicius et al. 2022, FP8 Formats for Deep Learning; Xi et al. 2025, COAT (stored activations)"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Everywhere: a cast needs no hardware for the format."""
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage."""
        import torch

        from advisor.methods.activations._coded_activations import CodeActivations
        from advisor.methods.activations._float8_code import Float8Coder

        name = _TORCH_NAMES[str(parameters["format"])]
        float8 = getattr(torch, name, None)
        if float8 is None:
            raise MethodRefusedError(f"it needs torch.{name}, which torch {torch.__version__} lacks")
        training.works_in_chunks = True
        training.saved_tensor_pipeline().add(
            CodeActivations(Float8Coder(float8)),
            f"fp8_activations(format={parameters['format']}) changed nothing: no saved activation that may be "
            "approximate has 1024 values",
        )
