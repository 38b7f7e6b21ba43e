"""What methods that recompute have in common: what they ask of the repeated blocks, and decide about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import require
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.setting import Parameters
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from torch import nn

    from advisor.training.training import Training

__all__ = ["WHAT_BLOCKS_KEEP", "ChainCheckpoint", "judge_blocks", "judge_chain", "require_blocks"]

WHAT_BLOCKS_KEEP = "what the blocks keep for the backward pass"
"""Decided by every method that recomputes blocks; for the same blocks only one can."""

_NOT_WITH_FSDP = Conflict(
    "fsdp", "fsdp gathers and drops the parameters of one block at a time, but here several blocks are run again as one"
)


def judge_blocks(count: int, least: int, model_class: str) -> Verdict:
    """Whether a model with ``count`` repeated blocks has at least so many."""
    if count == 0:
        return Verdict.no(
            f"no repeated blocks were found in {model_class}; name their class in the workload: BLOCKS = (BlockClass,)"
        )
    if count < least:
        return Verdict.no(f"it needs at least {least} blocks, but {model_class} has {count}")
    return Verdict.yes()


def judge_chain(facts: Facts, least: int) -> Verdict:
    """Whether at least so many blocks of a model run one after the other."""
    if facts.block_count > 0 and facts.chain_reason:
        return Verdict.no(f"its blocks cannot be run as one: {facts.chain_reason}")
    return judge_blocks(facts.block_count, least, facts.model_class)


def require_blocks(training: Training, least: int = 1) -> list[nn.Module]:
    """The repeated blocks of a training's model.

    Raises:
        MethodRefusedError: There are fewer than ``least``.
    """
    from advisor.training.structure import find_blocks

    blocks = find_blocks(training.model, training.blocks)
    require(judge_blocks(len(blocks), least, type(training.model).__name__))
    return blocks


class ChainCheckpoint(Method):
    """Keeps only the input of a run of blocks, and runs all of them again in the backward pass.

    ``fewest_blocks`` is the length of the shortest chain for which the method makes sense.
    """

    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    conflicts = (_NOT_WITH_FSDP,)
    fewest_blocks: ClassVar[int]

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of at least so many blocks."""
        return Verdict.yes() if facts is None else judge_chain(facts, self.fewest_blocks)
