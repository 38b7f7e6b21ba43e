"""Run halves of the chain again, and halves of these: memory grows with the logarithm of its length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import NOT_WITH_FSDP, WHAT_BLOCKS_KEEP, judge_chain
from advisor.methods.recompute.plan import halves
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["RecursiveCheckpoint"]


class RecursiveCheckpoint(Method):
    """Of n blocks about log2(n) inputs are kept at any time, and what one block keeps while it runs again."""

    name = "recursive_checkpoint"
    summary = "Keeps the inputs of two halves of the chain, and runs each again in the same way, down to one block."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 2.0
    costs = "about half of log2(n) + 1 more forward passes of n blocks: 4 of 128, 5.5 of 1024"
    pays = "as the last resort for a very deep chain: the least memory that recomputation can reach"
    does_not_pay = "whenever another way of recomputing fits: it costs far less time"
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    conflicts = (NOT_WITH_FSDP,)
    citation = (
        "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost (section 4.4); Griewank and Walther 2000"
    )

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of at least three blocks: of two, each would be its own region."""
        return Verdict.yes() if facts is None else judge_chain(facts, 3)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Make nested regions."""
        from advisor.methods.recompute._plan import run_by_plan

        run_by_plan(training, halves, least=3)
