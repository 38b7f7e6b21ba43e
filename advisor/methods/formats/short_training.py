"""Keep weights, gradients and optimizer state in 16 bits: what pure_bf16 and half_weights have in common."""

from __future__ import annotations

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.number_formats import FLOAT_FORMAT, judge_format
from advisor.methods.optimizers.traits import OptimizerTraits, named, of_torch
from advisor.methods.use import Parameters
from advisor.workload.facts import Facts

__all__ = ["SLICED", "ShortTraining", "judge_optimizer"]

SLICED = (
    Conflict("zero_1", "it builds the optimizer again over a part of the parameters, without the rounding of updates"),
    Conflict("fsdp", "updates are rounded for whole parameters, and it slices them; use its own mixed_precision"),
)
"""Methods that divide the parameters over devices."""


class ShortTraining(Method):
    """Trains in one 16-bit format, that of :attr:`computes_in`, without float32 copies of the weights."""

    fidelity = Fidelity.PRECISION
    gradient_tolerance = 0.05
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS, Saves.LOGITS})
    time_ratio = 0.55
    stage = Stage.PARALLELIZE  # Before anything measures, wraps or divides the parameters.
    decides = FLOAT_FORMAT

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs arithmetic in the format, and an optimizer that takes its parameters in parts."""
        verdict = judge_format(self.computes_in, facts, hardware)
        if facts is None or not verdict.applicable:
            return verdict
        reason = judge_optimizer(facts.optimizer_class, named(facts.optimizer_class))
        return Verdict.no(reason) if reason else Verdict.yes()


def judge_optimizer(optimizer: str, traits: OptimizerTraits) -> str:
    """Why an optimizer cannot be given some of its parameters at a time; empty if it can.

    Args:
        optimizer: Its qualified class name.
        traits: What is known of it.
    """
    if _in_parts(traits):
        return ""
    return (
        "it needs an optimizer that treats parameters one by one (of torch.optim, all but "
        f"{' and '.join(of_torch(lambda other: not _in_parts(other)))}), but the optimizer is {optimizer}"
    )


def _in_parts(traits: OptimizerTraits) -> bool:
    return traits.per_parameter and traits.dense
