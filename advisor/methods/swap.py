"""Keep activations on the host between the forward and the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import ParameterValue
from advisor.problem.facts import Facts
from advisor.problem.goal import Fidelity
from advisor.problem.hardware import DeviceKind, Hardware
from advisor.problem.host import host_memory

if TYPE_CHECKING:
    from advisor.methods.training import Training

__all__ = ["Swap"]

_MIB = 2**20
_HOST_SHARE = 0.6
"""Share of the free host memory that copies may take; the rest is for data loading and everything else."""


class Swap(Method):
    """Copies large saved tensors to page-locked host memory, and back when the backward pass asks for them.

    Tensors that a custom autograd function keeps as attributes (``ctx.x = ...``) are not seen and stay.
    """

    name = "swap"
    summary = "Moves large activations to host memory in the forward pass and back in the backward pass."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    costs = (
        "every swapped byte crosses the host link twice per step, and takes up to twice as much page-locked host "
        "memory, of which at most 60 % of what is free is used"
    )
    pays = "with a fast host link, or with checkpointing, where only the blocks' inputs are left to move"
    does_not_pay = "over PCIe without checkpointing: recomputing is usually faster than moving"
    stage = Stage.STEP
    parameters = (Parameter("min_bytes", (1 * _MIB, 16 * _MIB), "leave tensors smaller than this on the device"),)
    citation = "Rhu et al. 2016, vDNN; Liu et al. 2023 (synchronous swapping)"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only where the host's memory is not the device's."""
        if hardware.kind is DeviceKind.CPU:
            return Verdict.no("the device is a CPU, whose memory is the host's: swapping would only copy")
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Install the hooks around every forward pass. On a CPU they really copy, so that results can be compared.

        A forward pass raises :class:`MethodRefusedError` when its copies need more than 60 % of the host memory that
        is free now.
        """
        from advisor.methods.saved_tensors import SavedTensorSwap

        min_bytes = int(parameters["min_bytes"])
        swap = SavedTensorSwap(
            training.model, min_bytes=min_bytes, max_host_bytes=int(_HOST_SHARE * host_memory().free_bytes)
        )
        said = False

        @contextlib.contextmanager
        def context() -> Generator[None, None, None]:
            nonlocal said
            with swap.context():
                yield
            if swap.swapped_bytes == 0 and not said:
                said = True
                training.notes.append(
                    f"swap(min_bytes={min_bytes}) moved nothing: no saved activation is as large as that"
                )

        training.forward_contexts.append(context)
