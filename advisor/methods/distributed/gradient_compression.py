"""Send fewer bytes when gradients are averaged."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from advisor.methods.distributed._data_parallel import CommunicationHook
    from advisor.training.training import Training

__all__ = ["GradientCompression"]

_POWERSGD_FROM = 2
"""Steps of DistributedDataParallel before PowerSGD begins: torch's least, because buffers are rearranged after one."""

_OVERFLOW = "float16 lets gradients overflow now and then, and PowerSGD would carry the overflow on in what it keeps"
_POWERSGD = ("powersgd_rank_1", "powersgd_rank_4")


class GradientCompression(Method):
    """Averages gradients in a shorter form: as 16-bit numbers, or as products of two thin matrices (PowerSGD).

    PowerSGD adds what it lost to the next step's gradients. That remainder is not part of a saved state, so that a
    training that is continued from one loses it once.
    """

    name = "gradient_compression"
    summary = "Sends gradients between devices in a shorter form: 16-bit floats, or low-rank matrices (PowerSGD)."
    fidelity = Fidelity.PRECISION
    gradient_tolerance = 0.05
    saves = frozenset({Saves.WORKSPACE})
    time_ratio = 0.95
    costs = "arithmetic to compress; PowerSGD also a copy of all gradients for what it lost, and accuracy"
    pays = "when devices wait for the link: several machines, or GPUs without NVLink"
    does_not_pay = "on fast links, where the averaging hides behind the backward pass anyway"
    stage = Stage.STEP
    parameters = (
        Parameter(
            "hook",
            ("fp16", "bf16", *_POWERSGD),
            "form: 16-bit floats (bf16 on NCCL only), or matrices of that rank",
            worse=dict.fromkeys(_POWERSGD, Fidelity.LOSSY),
        ),
    )
    conflicts = tuple(
        Conflict("precision", _OVERFLOW, own={"hook": hook}, where={"dtype": "fp16"}) for hook in _POWERSGD
    )
    builds_on = ("ddp", "zero_1")
    citation = "Vogels et al. 2019, PowerSGD; torch.distributed.algorithms.ddp_comm_hooks"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """bf16 can be summed by NCCL only, which is for CUDA devices."""
        if parameters["hook"] == "bf16" and hardware.kind is not DeviceKind.CUDA:
            return Verdict.no("only NCCL sums bf16, but the device is a CPU; use hook=fp16")
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Hand the hook to the distribution, which uses it from its second step on."""
        from advisor.methods.distributed._data_parallel import DataParallel

        hook = str(parameters["hook"])
        if hook == "bf16" and training.device.type != "cuda":
            raise MethodRefusedError(f"only NCCL sums bf16, but the device is {training.device}; use hook=fp16")
        if hook in _POWERSGD and training.gradient_scaler is not None:
            raise MethodRefusedError(_OVERFLOW)
        assert isinstance(training.distribution, DataParallel), "builds_on names methods that average gradients"
        training.distribution.communication_hook = _hook(hook, training.world.data.device_group)
        if hook in _POWERSGD:
            # One step without DistributedDataParallel, those before PowerSGD, and the one in which it allocates.
            training.settling_steps = max(training.settling_steps, 1 + _POWERSGD_FROM + 1)


def _hook(name: str, group: ProcessGroup | None) -> tuple[Any, CommunicationHook]:
    """State and function of a communication hook."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if name == "fp16":
        return group, default_hooks.fp16_compress_hook
    if name == "bf16":
        return group, default_hooks.bf16_compress_hook
    rank = int(name.rpartition("_")[2])
    state = powerSGD_hook.PowerSGDState(
        process_group=group, matrix_approximation_rank=rank, start_powerSGD_iter=_POWERSGD_FROM
    )
    hook = powerSGD_hook.powerSGD_hook
    return state, hook if dist.get_backend(group) == dist.Backend.NCCL else _in_turn(hook)


def _in_turn(hook: CommunicationHook) -> CommunicationHook:
    """The hook, which is done with a bucket before it begins with the next.

    PowerSGD's callbacks send too. NCCL's run at once, in the order of the buckets; gloo runs them in threads of its own
    when data has arrived, so that ranks would send those of several buckets in different orders. gloo then receives
    another size than it expects, and ends the process.
    """

    @functools.wraps(hook)  # DistributedDataParallel checks its annotations.
    def done(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return done
