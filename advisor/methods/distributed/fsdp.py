"""Spread parameters, gradients and optimizer state over the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import judge_blocks
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["Fsdp"]

_TWO_FORMATS = "both decide the format of the matrix products; choose one of them"
_BATCHNORM = (
    "mixed_precision=bf16 would hold BatchNorm's weights in bf16 and its statistics in float32; "
    "use precision(dtype=bf16)"
)


class Fsdp(Method):
    """Each process holds a slice of every parameter, and gathers one block at a time when it is needed.

    ``reshard=True`` is ZeRO-3, ``reshard=False`` ZeRO-2: blocks then stay gathered from their forward to their
    backward pass. BatchNorm's statistics and other buffers are each process's own; those of rank 0 are saved.
    Before torch 2.13, and outside of the blocks of a pipeline, a parameter must take part in a step on every process or
    on none.
    """

    name = "fsdp"
    summary = "Holds a slice of parameters, gradients and optimizer state on each device, and gathers block by block."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-5
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS})
    costs = "every parameter is gathered once per micro-batch, and once more in the backward pass with reshard"
    pays = "when parameters, gradients and optimizer state do not fit on one device, or leave no room for a batch"
    does_not_pay = "when ddp fits: it sends less; and the whole model must still fit once while it is built"
    stage = Stage.SHARD
    parameters = (
        Parameter("reshard", (True, False), "drop gathered blocks after their forward pass (ZeRO-3), or keep (ZeRO-2)"),
        Parameter(
            "mixed_precision",
            ("none", "bf16"),
            "format in which parameters are gathered and computed with; gradients are averaged in float32",
            worse={"bf16": Fidelity.PRECISION},
            computes_in={"bf16": "bf16"},
        ),
        Parameter("offload", (False, True), "keep slices and optimizer state in host memory, and update them there"),
    )
    conflicts = (
        Conflict("precision", _TWO_FORMATS, own={"mixed_precision": "bf16"}, where={"dtype": "bf16"}),
        Conflict("precision", _TWO_FORMATS, own={"mixed_precision": "bf16"}, where={"dtype": "fp16"}),
        Conflict(
            "precision",
            "float16's search for overflow would have to run on the device and on the host at once; use bf16",
            own={"offload": True},
            where={"dtype": "fp16"},
        ),
        Conflict("adam_8bit", "bitsandbytes' kernels do not support parameters that are sharded over devices"),
        Conflict("swap", "it cannot tell gathered parameters from activations and would move both"),
        Conflict("overlapped_swap", "it cannot tell gathered parameters from activations and would move both"),
        Conflict("compress_activations", "it cannot tell gathered parameters from activations and would code both"),
        Conflict("fp8_activations", "it cannot tell gathered parameters from activations and would code both"),
    )
    axis = MeshAxis.DATA
    citation = "Zhao et al. 2023, PyTorch FSDP; Rajbhandari et al. 2020, ZeRO; torch.distributed.fsdp.fully_shard"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Offloading needs a device with memory of its own, resharding needs blocks, bf16 no BatchNorm."""
        if parameters["offload"] and hardware.kind is DeviceKind.CPU:
            return Verdict.no("the device is a CPU, whose memory is the host's: there is nowhere to offload to")
        if facts is None:
            return Verdict.yes()
        if parameters["mixed_precision"] == "bf16" and facts.has_batchnorm:
            return Verdict.no(_BATCHNORM)
        return judge_blocks(facts.block_count, 1, facts.model_class) if parameters["reshard"] else Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Slice the blocks, and the rest of the model as one more."""
        from advisor.methods.distributed._fsdp import FullySharded
        from advisor.training.structure import find_blocks, has_batchnorm

        blocks = find_blocks(training.model, training.blocks)
        offload, bf16 = bool(parameters["offload"]), parameters["mixed_precision"] == "bf16"
        if offload and training.device.type == "cpu":
            raise MethodRefusedError("the device is a CPU, whose memory is the host's: there is nowhere to offload to")
        if bf16 and has_batchnorm(training.model):
            raise MethodRefusedError(_BATCHNORM)
        if parameters["reshard"]:
            verdict = judge_blocks(len(blocks), 1, type(training.model).__name__)
            if not verdict.applicable:
                raise MethodRefusedError(verdict.reason)
        if names := _in_several(blocks):
            raise MethodRefusedError(
                f"{type(training.model).__name__}'s blocks share parameters ({', '.join(names)}), and each block would "
                "slice and gather them as its own; ddp and zero_1 take them as they are"
            )
        training.distribution = FullySharded(
            training.model,
            training.compute_loss,
            training.world.data,
            training.device,
            blocks,
            reshard=bool(parameters["reshard"]),
            bf16=bf16,
            offload=offload,
            in_stages=training.run_passes is not None,
        )
        training.settling_steps = max(training.settling_steps, 1)  # It sets itself up in the first step.


def _in_several(blocks: Sequence[torch.nn.Module]) -> list[str]:
    """Names inside a block of the parameters that an earlier block has, too."""
    seen: set[int] = set()
    names = []
    for block in blocks:
        names += [name for name, parameter in block.named_parameters() if id(parameter) in seen]
        seen |= {id(parameter) for parameter in block.parameters()}
    return list(dict.fromkeys(names))
