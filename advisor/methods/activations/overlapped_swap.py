"""Keep activations on the host between the forward and the backward pass, and overlap the copies with computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.activations.activation_storage import MIN_BYTES, HostActivations
from advisor.methods.base import Parameter
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["OverlappedSwap"]


class OverlappedSwap(HostActivations):
    """Copies large saved tensors to page-locked host memory on a stream of its own, and back before they are needed.

    The tensors saved last are needed first and stay on the device; the others come back in reverse order.
    """

    name = "overlapped_swap"
    summary = "Moves large activations to host memory and back while the device goes on computing."
    time_ratio = 1.15
    costs = (
        "device memory for what is on its way; the host link, where a step takes at least as long as its bytes take "
        "both ways; up to twice as much page-locked host memory, of which at most 60 % of what is free is used"
    )
    pays = "with a fast host link, when a layer computes for as long as its activations take to move"
    does_not_pay = "over a slow link, where the copies take longer than the step; compress first, or checkpoint"
    parameters = (
        MIN_BYTES,
        Parameter(
            "ahead",
            (0.1, 0.25),
            "share of the moved bytes that stays on the device at the end of the forward pass, and that may be on "
            "its way in either direction: more overlaps better and saves less",
        ),
    )
    citation = "Rhu et al. 2016, vDNN; Peng et al. 2020, Capuchin (prefetching in the order of use)"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage."""
        from advisor.methods.activations._overlapped_copies import OverlappedMove, copier_by_device

        min_bytes = int(parameters["min_bytes"])
        stage = OverlappedMove(min_bytes, self.bound(), ahead=float(parameters["ahead"]), copier=copier_by_device())
        training.saved_tensor_pipeline().add(stage, self.idle(min_bytes))
