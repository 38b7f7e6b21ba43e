"""Keep only the input of every few blocks, and run those again together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.hardware.hardware import Hardware
from advisor.methods.base import Parameter, Verdict
from advisor.methods.recompute.block_rules import ChainCheckpoint, judge_chain
from advisor.methods.recompute.plan import Plan, blocks_in, segments
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["ResidualCheckpoint"]


class ResidualCheckpoint(ChainCheckpoint):
    """Keeps the input of every ``blocks``-th block and nothing between: checkpoint-residual-m of Sohoni et al.

    Their checkpoint-residual-1 is ``checkpoint(every=1)``. When the backward pass reaches a segment, its blocks run
    again and keep everything. With ``inside="inputs"``, the starred strategies of the paper, they keep only their
    inputs then, and each runs a third time. (The paper also recomputes normalizations in that last stage; this does
    not.)
    """

    name = "residual_checkpoint"
    summary = "Keeps only the input of every m-th block, and runs segments of m blocks again in the backward pass."
    time_ratio = 1.33
    costs = "the forward pass of all blocks once more, with inside=inputs nearly twice more"
    pays = "when the inputs of all blocks, which checkpoint(every=1) keeps, are still too much"
    does_not_pay = "when what the blocks of one segment keep together is more than the inputs that it saves"
    parameters = (
        Parameter("blocks", (2, 3, 4), "blocks in a segment"),
        Parameter(
            "inside",
            ("everything", "inputs"),
            "what the blocks of a segment keep when it runs again: everything, or their inputs, to run once more",
            time_ratio={"inputs": 1.25},
        ),
    )
    citation = "Sohoni et al. 2019, Low-Memory Neural Network Training (residual-m and residual-m*)"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of at least ``blocks`` blocks."""
        return Verdict.yes() if facts is None else judge_chain(facts, int(parameters["blocks"]))

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Make one region of every segment; the last may be shorter."""
        from advisor.methods.recompute._plan import run_by_plan

        size = int(parameters["blocks"])

        def plan(count: int) -> Plan:
            whole = segments(count, size)
            if parameters["inside"] == "everything":
                return whole
            return tuple(tuple((block,) for block in blocks_in(segment)) for segment in whole)

        run_by_plan(training, plan, size)
