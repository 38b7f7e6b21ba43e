"""Keep activations on the host between the forward and the backward pass, and overlap the copies with computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.host import host_memory
from advisor.methods.activations.activation_storage import ACTIVATION_PLACE, HOST_SHARE, judge_host
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["OverlappedSwap"]

_MIB = 2**20


class OverlappedSwap(Method):
    """Copies large saved tensors to page-locked host memory on a stream of its own, and back before they are needed.

    The tensors that are saved last are needed first and stay on the device; the others come back in the reverse of
    the order in which they were saved. Tensors that a custom autograd function keeps as attributes (``ctx.x = ...``)
    are not seen and stay.
    """

    name = "overlapped_swap"
    summary = "Moves large activations to host memory and back while the device goes on computing."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.15
    costs = (
        "device memory for what is on its way; the host link, where a step takes at least as long as its bytes take "
        "both ways; up to twice as much page-locked host memory, of which at most 60 % of what is free is used"
    )
    pays = "with a fast host link, when a layer computes for as long as its activations take to move"
    does_not_pay = "over a slow link, where the copies take longer than the step; compress first, or checkpoint"
    stage = Stage.STEP
    decides = ACTIVATION_PLACE
    parameters = (
        Parameter("min_bytes", (1 * _MIB, 16 * _MIB), "leave tensors smaller than this on the device"),
        Parameter(
            "ahead",
            (0.1, 0.25),
            "share of the moved bytes that stays on the device at the end of the forward pass, and that may be on "
            "its way in either direction: more overlaps better and saves less",
        ),
    )
    citation = "Rhu et al. 2016, vDNN; Peng et al. 2020, Capuchin (prefetching in the order of use)"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only where the host's memory is not the device's."""
        return judge_host(hardware)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Add the stage to what becomes of saved tensors. On a CPU it really copies, so that results can be compared.

        A forward pass raises :class:`MethodRefusedError` when its copies need more than 60 % of the host memory that
        is free now.
        """
        from advisor.methods.activations._host_copies import HostBound
        from advisor.methods.activations._host_streams import copier_by_device
        from advisor.methods.activations._overlapped_copies import OverlappedMove

        min_bytes = int(parameters["min_bytes"])
        stage = OverlappedMove(
            min_bytes=min_bytes,
            ahead=float(parameters["ahead"]),
            bound=HostBound(self.name, int(HOST_SHARE * host_memory().free_bytes)),
            copier=copier_by_device(),
        )
        training.saved_tensor_pipeline().add(
            stage,
            f"overlapped_swap(min_bytes={min_bytes}) moved nothing: no saved activation is as large as that",
        )
