"""Store saved activations in a float format of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.methods.activations.activation_storage import LEFT_EXACT, CodedActivations
from advisor.methods.base import Parameter
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Fp8Activations"]

_TORCH_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


class Fp8Activations(CodedActivations):
    """Casts activations to float8 when they are saved, each group of 256 scaled to fill the format."""

    name = "fp8_activations"
    summary = "Stores activations as 8-bit floats between the forward and the backward pass."
    gradient_tolerance = 0.1
    update_tolerance = 0.5  # Its errors are those of precision, and with checkpointing the blocks are run on them.
    time_ratio = 1.05
    costs = "one cast of each activation in either direction; errors of some percent in the gradients of weights"
    pays = "when activations fill the memory; its casts are simpler than the kernels of compress_activations"
    does_not_pay = (
        "where 8 bits of compress_activations fit too, whose error is a third as large; where most is left exact: "
        f"{LEFT_EXACT}"
    )
    parameters = (
        Parameter("format", ("e4m3", "e5m2"), "e4m3: 3 bits of fraction; e5m2: 2 bits of fraction and more range"),
    )
    citation = "Micikevicius et al. 2022, FP8 Formats for Deep Learning; Xi et al. 2025, COAT (stored activations)"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage."""
        import torch

        from advisor.methods.activations._float8_code import Float8Coder

        name = _TORCH_NAMES[str(parameters["format"])]
        float8 = getattr(torch, name, None)
        if float8 is None:
            raise MethodRefusedError(f"it needs torch.{name}, which torch {torch.__version__} lacks")
        self.store(training, Float8Coder(float8), f"fp8_activations {parameters['format']}")
