"""Keep activations on the host between the forward and the backward pass."""

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

__all__ = ["Swap"]

_MIB = 2**20


class Swap(Method):
    """Copies large saved tensors to page-locked host memory, and back when the backward pass asks for them.

    Tensors that a custom autograd function keeps as attributes (``ctx.x = ...``) are not seen and stay.
    """

    name = "swap"
    summary = "Moves large activations to host memory in the forward pass and back in the backward pass."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 2.0
    costs = (
        "every swapped byte crosses the host link twice per step, and takes up to twice as much page-locked host "
        "memory, of which at most 60 % of what is free is used"
    )
    pays = "with a fast host link, or with checkpointing, where only the blocks' inputs are left to move"
    does_not_pay = "over PCIe without checkpointing: recomputing is usually faster than moving"
    stage = Stage.STEP
    decides = ACTIVATION_PLACE
    parameters = (Parameter("min_bytes", (1 * _MIB, 16 * _MIB), "leave tensors smaller than this on the device"),)
    citation = "Rhu et al. 2016, vDNN; Liu et al. 2023 (synchronous swapping)"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only where the host's memory is not the device's."""
        return judge_host(hardware)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Install the hooks around every forward pass. On a CPU they really copy, so that results can be compared.

        A forward pass raises :class:`MethodRefusedError` when its copies need more than 60 % of the host memory that
        is free now.
        """
        from advisor.methods.activations._host_copies import HostBound, MoveToHost

        min_bytes = int(parameters["min_bytes"])
        bound = HostBound(self.name, int(HOST_SHARE * host_memory().free_bytes))
        training.saved_tensor_pipeline().add(
            MoveToHost(min_bytes=min_bytes, bound=bound),
            f"swap(min_bytes={min_bytes}) moved nothing: no saved activation is as large as that",
        )
