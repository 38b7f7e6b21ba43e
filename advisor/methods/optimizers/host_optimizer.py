"""Optimizer state and step on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.host import host_memory
from advisor.methods.applying import require
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.optimizers.traits import UNKNOWN, OptimizerTraits, named
from advisor.methods.setting import Parameters, ParameterValue
from advisor.text.units import format_bytes
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["HostOptimizer"]

_HOST_SHARE = 0.8
"""Share of the free host memory that may be taken; the rest is for data loading and everything else."""


class HostOptimizer(Method):
    """Moves each gradient to the host during the backward pass, steps there, and brings the parameters back.

    The optimizer is the user's own object, working on copies of the parameters, so schedulers, parameter groups and
    saved states work as before. In a custom loop, clip with ``training.clip_grad_norm``: the model's parameters have no
    gradients left. Where the device is a CPU too, parameters are bit-equal.
    """

    name = "host_optimizer"
    summary = "Keeps gradients and optimizer state in host memory and updates the parameters there (ZeRO-Offload)."
    fidelity = Fidelity.ROUNDING  # The kernels of a CPU round otherwise than those of a GPU.
    gradient_tolerance = 1e-6
    saves = frozenset({Saves.OPTIMIZER_STATE, Saves.GRADIENTS})
    time_ratio = 1.5
    costs = (
        "gradients and parameters cross the host link once per step, the step runs at the speed of the CPU, and the "
        "host holds parameters, gradients and state, in at most 80 % of what is free"
    )
    pays = "when parameters, gradients and optimizer state are most of the memory, and a step has much to compute"
    does_not_pay = "with a slow CPU or host link, or small batches: the device then waits for the step"
    stage = Stage.OPTIMIZER  # After those that replace the optimizer, in the order of names.
    conflicts = (
        Conflict(
            "optimizer_in_backward",
            "gradients leave for the host in the backward pass, and the optimizer runs there once all have come",
        ),
        Conflict(
            "precision",
            "float16's search for overflow would have to run on the device and on the host at once; use bf16",
            where={"dtype": "fp16"},
        ),
        Conflict("adam_low_bit", "its kernels are compiled for the device, and the step would run on the host"),
    )
    one_device_only = "gradients would leave for the host before they are averaged over the devices"
    citation = "Ren et al. 2021, ZeRO-Offload: Democratizing Billion-Scale Model Training"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only where the host's memory is not the device's, and large enough."""
        if hardware.kind is DeviceKind.CPU:
            return Verdict.no("the device is a CPU, whose memory is the host's: the optimizer is there already")
        if facts is None:
            return Verdict.yes()
        trained = round(facts.parameter_bytes * facts.trainable_parameter_count / max(1, facts.parameter_count))
        traits = named(facts.optimizer_class)
        needed = (2 + traits.state_tensors(facts.optimizer_options)) * trained
        return _judge_memory(facts.optimizer_class, traits, needed, hardware.host_free_bytes)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Copy the optimizer's parameters, and let it work on the copies."""
        from advisor.methods.optimizers._host_optimizer import HostStep, host_bytes
        from advisor.methods.optimizers.optimizer_class import class_name_of, has_own_step, traits_of

        optimizer = training.optimizer
        if has_own_step(optimizer):
            raise MethodRefusedError(
                "it steps on copies of the parameters, which a step that was given to this optimizer object knows "
                "nothing of; make it a hook (optimizer.register_step_pre_hook), or clip with max_grad_norm"
            )
        # There are two of each gradient while that of a micro-batch is added to those before it.
        needed = host_bytes(optimizer, gradients=1 if training.micro_batch is None else 2)
        require(_judge_memory(class_name_of(optimizer), traits_of(optimizer), needed, host_memory().free_bytes))
        step = HostStep(optimizer, training.device)
        training.before_gradients_are_used.append(step.complete_gradients)


def _judge_memory(optimizer: str, traits: OptimizerTraits, needed: int, free: int) -> Verdict:
    if needed <= _HOST_SHARE * free:
        return Verdict.yes()
    unknown = f" (up to {traits.state} numbers per parameter, as {optimizer} is not a known class)"
    guess = unknown if traits is UNKNOWN else ""
    return Verdict.no(
        f"the host must hold parameters, gradients and optimizer state{guess} of {format_bytes(needed)} in at most "
        f"{_HOST_SHARE:.0%} of its free memory, but {format_bytes(free)} are free; free host memory, or use a method "
        "that makes the state smaller"
    )
