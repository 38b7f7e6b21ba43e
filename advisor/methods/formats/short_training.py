"""What methods that keep 16-bit weights have in common before a trial."""

from __future__ import annotations

from advisor.methods.base import Conflict, Verdict
from advisor.methods.optimizers.traits import OptimizerTraits, named, of_torch
from advisor.workload.facts import Facts

__all__ = ["SLICED", "judge_optimizer", "judge_short"]

SLICED = (
    Conflict("zero_1", "it builds the optimizer again over a part of the parameters, without the rounding of updates"),
    Conflict("fsdp", "updates are rounded for whole parameters, and it slices them; use its own mixed_precision"),
)
"""Methods that divide the parameters over devices."""


def judge_short(facts: Facts) -> Verdict:
    """Whether a workload can be trained with 16-bit weights."""
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
