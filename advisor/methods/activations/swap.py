"""Keep activations on the host between the forward and the backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.activations.activation_storage import MIN_BYTES, HostActivations
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Swap"]


class Swap(HostActivations):
    """Copies large saved tensors to page-locked host memory, and back when the backward pass asks for them."""

    name = "swap"
    summary = "Moves large activations to host memory in the forward pass and back in the backward pass."
    time_ratio = 2.0
    costs = (
        "every swapped byte crosses the host link twice per step, and takes up to twice as much page-locked host "
        "memory, of which at most 60 % of what is free is used"
    )
    pays = "with a fast host link, or with checkpointing, where only the blocks' inputs are left to move"
    does_not_pay = "over PCIe without checkpointing: recomputing is usually faster than moving"
    parameters = (MIN_BYTES,)
    citation = "Rhu et al. 2016, vDNN; Liu et al. 2023 (synchronous swapping)"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage."""
        from advisor.methods.activations._host_copies import MoveToHost

        min_bytes = int(parameters["min_bytes"])
        training.saved_tensor_pipeline().add(MoveToHost(min_bytes, self.bound()), self.idle(min_bytes))
