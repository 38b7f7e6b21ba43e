"""What methods have in common that recompute runs of several blocks."""

from __future__ import annotations

from typing import ClassVar

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import NOT_WITH_FSDP, WHAT_BLOCKS_KEEP, judge_chain
from advisor.methods.use import Parameters
from advisor.workload.facts import Facts

__all__ = ["ChainCheckpoint"]


class ChainCheckpoint(Method):
    """Keeps only the input of a run of blocks, and runs all of them again in the backward pass.

    Class attributes:
        fewest_blocks: Length of the shortest chain for which the method makes sense.
    """

    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    conflicts = (NOT_WITH_FSDP,)
    fewest_blocks: ClassVar[int]

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of at least so many blocks."""
        return Verdict.yes() if facts is None else judge_chain(facts, self.fewest_blocks)
