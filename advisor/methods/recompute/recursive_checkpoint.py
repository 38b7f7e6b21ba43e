"""Run halves of the chain again, and halves of these: memory grows with the logarithm of its length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.methods.recompute.block_rules import ChainCheckpoint
from advisor.methods.recompute.plan import halves
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["RecursiveCheckpoint"]


class RecursiveCheckpoint(ChainCheckpoint):
    """Of n blocks, about log2(n) inputs are kept at any time, and what one block keeps while it runs again."""

    name = "recursive_checkpoint"
    summary = "Keeps the inputs of two halves of the chain, and runs each again in the same way, down to one block."
    time_ratio = 2.0
    costs = "about half of log2(n) + 1 more forward passes of n blocks: 4 of 128, 5.5 of 1024"
    pays = "as the last resort for a very deep chain: the least memory that recomputation can reach"
    does_not_pay = "whenever another way of recomputing fits: it costs far less time"
    fewest_blocks = 3  # Of two, each would be its own region.
    citation = (
        "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (section 4.4); Griewank and Walther 2000"
    )

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Make nested regions."""
        from advisor.methods.recompute._plan import run_by_plan

        run_by_plan(training, halves, self.fewest_blocks)
