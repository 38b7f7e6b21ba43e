"""Recompute whole blocks in the backward pass instead of keeping their activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP, judge_blocks, require_blocks
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Checkpoint"]


class Checkpoint(Method):
    """One block in ``every`` keeps only its input and is run again in the backward pass."""

    name = "checkpoint"
    summary = "Keeps only the input of one block in every k, and runs that block again in the backward pass."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.33
    costs = "the wrapped blocks' forward pass once more: about a third more time when every block is wrapped"
    pays = "when activations fill the memory and a larger batch, or a larger model, is worth a second forward pass"
    does_not_pay = "when the device is already busy at the batch that fits: the second forward pass is pure loss"
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    parameters = (
        Parameter(
            "every",
            (1, 2, 3, 4),
            "wrap one block in this many: 1 saves the most, 4 costs the least time",
            time_ratio={2: 0.87, 3: 0.83, 4: 0.81},
        ),
    )
    citation = "Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs at least ``every`` repeated blocks."""
        if facts is None:
            return Verdict.yes()
        return judge_blocks(facts.block_count, int(parameters["every"]), facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Wrap every ``every``-th block, as torchtitan counts: the last of each group."""
        from advisor.training.recompute import recompute_modules, stop_key_value_cache

        every = int(parameters["every"])
        blocks = require_blocks(training, every)
        stop_key_value_cache(training)
        recompute_modules(training.model, blocks[every - 1 :: every])
