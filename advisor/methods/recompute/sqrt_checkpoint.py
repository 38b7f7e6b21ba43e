"""Keep the inputs of about as many segments of blocks as a segment has blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.recompute.block_rules import ChainCheckpoint
from advisor.methods.recompute.plan import root_segments
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["SqrtCheckpoint"]


class SqrtCheckpoint(ChainCheckpoint):
    """Of n blocks, about sqrt(n) inputs are kept, and what sqrt(n) blocks keep while they run again."""

    name = "sqrt_checkpoint"
    summary = "Cuts n blocks into about sqrt(n) segments, keeps their inputs, and runs each again in the backward pass."
    time_ratio = 1.33
    costs = "the forward pass of all blocks once more"
    pays = "in deep chains of blocks that keep little more than their input: memory grows with the root of their number"
    does_not_pay = "when a block keeps many times its input: checkpoint(every=1) then needs less, for the same time"
    fewest_blocks = 3  # Of two, each would be its own segment.
    citation = "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Make one region of every segment."""
        from advisor.methods.recompute._plan import run_by_plan

        run_by_plan(training, root_segments, self.fewest_blocks)
