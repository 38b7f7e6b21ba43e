"""Keep the inputs of about as many segments of blocks as a segment has blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import NOT_WITH_FSDP, WHAT_BLOCKS_KEEP, judge_chain
from advisor.methods.recompute.plan import root_segments
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["SqrtCheckpoint"]


class SqrtCheckpoint(Method):
    """Of n blocks about the root of n inputs are kept, and what the root of n blocks keep while they run again."""

    name = "sqrt_checkpoint"
    summary = "Cuts n blocks into about sqrt(n) segments, keeps their inputs, and runs each again in the backward pass."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.33
    costs = "the forward pass of all blocks once more"
    pays = "in deep chains of blocks that keep little more than their input: memory grows with the root of their number"
    does_not_pay = "when a block keeps many times its input: checkpoint(every=1) then needs less, for the same time"
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    conflicts = (NOT_WITH_FSDP,)
    citation = "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of at least three blocks: of two, each would be its own segment."""
        return Verdict.yes() if facts is None else judge_chain(facts, 3)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Make one region of every segment."""
        from advisor.methods.recompute._plan import run_by_plan

        run_by_plan(training, root_segments, least=3)
