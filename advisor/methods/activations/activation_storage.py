"""What methods have in common that store saved activations in another format, or on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.host import host_memory
from advisor.methods.applying import judged
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import Parameters
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.methods.activations._coded_activations import Code
    from advisor.methods.activations._host_copies import HostBound
    from advisor.training.training import Training

__all__ = ["LEFT_EXACT", "MIN_BYTES", "CodedActivations", "HostActivations"]

LEFT_EXACT = (
    "masks, statistics, divisors, and what logarithms, roots, norms, fused attention, compiled regions and functions "
    "of other libraries save"
)
"""What no such method stores in another format."""

MIN_BYTES = Parameter("min_bytes", (2**20, 2**24), "leave tensors smaller than this on the device")

_HOST_SHARE = 0.6
"""Share of the free host memory that copies may take; the rest is for data loading and everything else."""


class CodedActivations(Method):
    """Codes activations when they are saved; the forward pass is unmodified.

    Weights, masks and normalization statistics stay exact, and so does all in which a small error would change
    gradients without bound: what logarithms, divisions (the divisor), roots, norms, binary cross entropies of
    probabilities, largest values and fused attention save, and torch functions that call one of these. What others do
    with saved tensors is unknown, so they stay exact too: functions of other libraries, your own
    (``torch.autograd.Function``), scripted ones, and regions that ``torch.compile`` made. The input of a checkpointed
    region is coded.
    """

    fidelity = Fidelity.LOSSY
    saves = frozenset({Saves.ACTIVATIONS})
    stage = Stage.STEP
    decides = "the format in which saved activations are stored"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Everywhere: codes need no hardware of their own."""
        return Verdict.yes()

    def store(self, training: Training, code: Code, label: str) -> None:
        """Add the stage with a code; ``label`` names the method and its parameters in notes."""
        from advisor.methods.activations._coded_activations import CodeActivations

        training.works_in_chunks = True
        training.saved_tensor_pipeline().add(
            CodeActivations(code),
            f"{label} changed nothing: no saved activation that may be approximate has 1024 values",
        )


class HostActivations(Method):
    """Moves large saved tensors to page-locked host memory.

    Tensors that a custom autograd function keeps as attributes (``ctx.x = ...``) are not seen and stay. On a CPU the
    tensors are copied all the same, so that results can be compared. A forward pass raises
    :class:`~advisor.errors.MethodRefusedError` when its copies need more than 60 % of the host memory that was free.
    """

    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    stage = Stage.STEP
    decides = "which saved activations move to the host, and when"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only where the host's memory is not the device's."""
        reason = "the device is a CPU, whose memory is the host's: swapping would only copy"
        return judged(hardware.kind is not DeviceKind.CPU, reason)

    def bound(self) -> HostBound:
        """The host memory that copies may take."""
        from advisor.methods.activations._host_copies import HostBound

        return HostBound(self.name, int(_HOST_SHARE * host_memory().free_bytes))

    def idle(self, min_bytes: int) -> str:
        """The note for a forward pass in which nothing was moved."""
        return f"{self.name} min_bytes={min_bytes} moved nothing: no saved activation is as large as that"
