"""Where a model is best cut, from what its ranks have measured of their blocks in a step."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from advisor.methods.pipeline._places import StageLink
from advisor.methods.pipeline._stage_ranks import PipelineRanks
from advisor.methods.pipeline.balance import Costs, best_cut
from advisor.methods.pipeline.schedule_rules import in_flight, stages_per_rank

__all__ = ["measured_cut"]

_USABLE = 0.9
"""Share of the memory limit for what is measured of blocks: other tensors come and go."""


def measured_cut(
    model: nn.Module,
    costs: Costs,
    ranks: PipelineRanks,
    schedule: str,
    micro_batches: int,
    held_bytes: Callable[[nn.Parameter], int],
    limit: int | None,
) -> tuple[int, ...]:
    """The first block of every stage, then the number of blocks; every rank calls it.

    A rank with two stages gives each half of the limit.

    Args:
        model: This rank's part of the model.
        costs: Seconds, and bytes of activations.
        ranks: The ranks of the pipeline.
        schedule: Name of the schedule.
        micro_batches: Micro-batches of a step.
        held_bytes: What is held of a parameter: values, gradient, optimizer state.
        limit: The most bytes that a rank may take, if known.
    """
    links = [module for module in model.modules() if isinstance(module, StageLink)]
    blocks = {link.number: sum(map(held_bytes, link.parameters())) for link in links}
    outside = sum(map(held_bytes, model.parameters())) - sum(blocks.values())
    told = ranks.told_by_all([blocks, outside])
    of_block = {number: size for own, _ in told for number, size in own.items()}
    last = ranks.owners[-1]  # the first rank again, where the stages go down the ranks and up
    held = [of_block[number] for number in range(len(costs.blocks))]
    costs = costs.holding(told[0][1], held, told[last][1] if last else 0)
    several, stages = stages_per_rank(schedule), len(ranks.owners)
    alive = [in_flight(schedule, stage, micro_batches=micro_batches, size=ranks.size) for stage in range(stages)]
    return best_cut(costs, stages, limit=None if limit is None else _USABLE * limit / several, in_flight=alive)
