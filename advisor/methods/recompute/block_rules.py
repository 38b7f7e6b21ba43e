"""What methods ask of the repeated blocks, and what they decide about them."""

from __future__ import annotations

from advisor.methods.base import Conflict, Verdict
from advisor.workload.facts import Facts

__all__ = ["NOT_WITH_FSDP", "WHAT_BLOCKS_KEEP", "judge_blocks", "judge_chain", "judge_chain_length"]

WHAT_BLOCKS_KEEP = "what the blocks keep for the backward pass"
"""What such a method decides: no two of them can decide it for the same blocks."""

NOT_WITH_FSDP = Conflict(
    "fsdp", "fsdp gathers and drops the parameters of one block at a time, but here several blocks are run again as one"
)


def judge_blocks(count: int, every: int, model_class: str) -> Verdict:
    """Whether a model with ``count`` blocks has one to wrap in every ``every``."""
    if count == 0:
        return Verdict.no(
            f"no repeated blocks were found in {model_class}; name their class in the workload: BLOCKS = (BlockClass,)"
        )
    if count < every:
        return Verdict.no(f"one block in {every} needs at least {every} blocks, but {model_class} has {count}")
    return Verdict.yes()


def judge_chain(facts: Facts, least: int) -> Verdict:
    """Whether the blocks of a model run one after the other, at least so many."""
    if facts.block_count > 0 and facts.chain_reason:
        return Verdict.no(f"its blocks cannot be run as one: {facts.chain_reason}")
    return judge_chain_length(facts.block_count, least, facts.model_class)


def judge_chain_length(count: int, least: int, model_class: str) -> Verdict:
    """Whether there are enough blocks; whether they are a chain is only known once they run."""
    if count == 0:
        return Verdict.no(
            f"no repeated blocks were found in {model_class}; name their class in the workload: BLOCKS = (BlockClass,)"
        )
    if count < least:
        return Verdict.no(f"it needs at least {least} blocks, but {model_class} has {count}")
    return Verdict.yes()
