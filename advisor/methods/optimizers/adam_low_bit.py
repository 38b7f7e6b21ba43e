"""Adam with its two moments in 8 or 4 bits, by kernels that torch compiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import require
from advisor.methods.base import Conflict, Parameter, Verdict
from advisor.methods.optimizers.adam import AdamReplacement, decays_apart
from advisor.methods.optimizers.optimizer_class import class_name_of
from advisor.methods.optimizers.traits import TORCHAO
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["AdamLowBit"]


class AdamLowBit(AdamReplacement):
    """Replaces Adam or AdamW by torchao's version, which keeps its moments in blocks of small numbers with one scale.

    Parameters of fewer than 4096 elements, or of no whole number of blocks (256, or 128 with 4 bits), keep 32 bits.
    Learning rates become tensors in the parameter groups; schedulers and assignments to ``group["lr"]`` work as before.
    """

    name = "adam_low_bit"
    summary = "Keeps Adam's two moments in 8 or 4 bits instead of 32 (torchao)."
    fidelity = Fidelity.LOSSY
    time_ratio = 1.05
    costs = "quantization noise in the moments; a kernel is compiled for every shape of parameter, for seconds each"
    pays = "when optimizer state is a large part of the memory and bitsandbytes is missing, or 8 bits are too many"
    does_not_pay = "for short trainings, which are over before the kernels are compiled; 4bit where the loss matters"
    parameters = (
        Parameter(
            "state",
            ("8bit", "4bit", "fp8"),
            "format of the moments: 8 bits with tables of values, 4 bits (clearly worse loss), or 8-bit floats",
        ),
    )
    conflicts = (
        Conflict("zero_1", "it rebuilds optimizers of torch.optim only, and torchao's is not one of them"),
        Conflict(
            "fsdp",
            "the slices of a parameter need not be whole blocks, and a state quantized in blocks can then neither be "
            "joined nor sliced",
        ),
    )
    requires = ("torchao",)
    extra = "quant"
    replacement = "torchao's version"
    lacks = ("amsgrad", "maximize", "differentiable")  # Its step knows amsgrad, but not for a quantized state.
    couples_decay = True
    citation = "Dettmers et al. 2022, 8-bit Optimizers; Li et al. 2023, Memory Efficient Optimizers with 4-bit States"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs torch's Adam or AdamW with options that torchao has too, and a compiler."""
        verdict = _judge_capability(parameters["state"], hardware.compute_capability)
        if not verdict.applicable:
            return verdict
        if facts is not None and facts.compiler:
            return Verdict.no(facts.compiler)
        return super().applicable(parameters, facts, hardware)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Build torchao's optimizer over the same parameter groups and options."""
        from advisor.methods.optimizers._adam_low_bit import build, refuse_if_not_compiled

        self.require_adam(training)
        plain, state = training.optimizer, str(parameters["state"])
        refuse_if_not_compiled(training.device)
        if state == "fp8" and training.device.type == "cuda":
            import torch

            require(_judge_capability(state, torch.cuda.get_device_capability(training.device)))
        ways = {decays_apart(class_name_of(plain), group) for group in plain.param_groups if group["weight_decay"]}
        if len(ways) > 1:
            raise MethodRefusedError(
                "torchao's version decays all weights in one way, but the parameter groups differ in "
                "decoupled_weight_decay; give all of them the same"
            )
        training.optimizer = build(plain, state, decays_apart=ways.pop() if ways else True)
        if not any(TORCHAO[state].takes(p.numel()) for group in plain.param_groups for p in group["params"]):
            training.notes.append(
                f"adam_low_bit {state} changed nothing: every parameter is too small, or not made of whole "
                "blocks, and keeps 32 bits"
            )


def _judge_capability(state: ParameterValue, capability: tuple[int, int] | None) -> Verdict:
    if state != "fp8" or capability is None or capability >= (8, 9):
        return Verdict.yes()
    return Verdict.no(
        "8-bit floats need compute capability 8.9 (Ada), but the device has "
        f"{capability[0]}.{capability[1]}; use state=8bit"
    )
