"""Keep as many activations as a byte budget allows, and recompute those that cost the least time per byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from advisor.errors import MethodRefusedError
from advisor.methods.base import Parameter
from advisor.methods.recompute.block_rules import ChainCheckpoint
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from torch import nn

    from advisor.methods.recompute.optimal_plan import Unit
    from advisor.methods.recompute.plan import Plan
    from advisor.training.training import Training

__all__ = ["OptimalCheckpoint"]


class _Settled(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy keeps of a training's first step: the plan, and what it keeps if no plan met the budget."""

    plan: object
    least: float | None = None


class OptimalCheckpoint(ChainCheckpoint):
    """Measures every block in the first step, then runs the fastest plan whose kept bytes are within the budget.

    The budget is a share of what keeping everything takes, so a plan stays right at another batch size: the bytes and
    seconds of all blocks grow alike. It holds for each stage of the model (consecutive blocks that one module holds).
    Where no plan is within it, the one that keeps the least is used, and a note says how much that is.

    Other measured seconds may lead to another plan, and so to another peak. The plan is therefore part of the policy
    that was measured, and training by that policy uses it from the first step.
    """

    name = "optimal_checkpoint"
    summary = "Measures each block's time and bytes, then recomputes what costs the least time within a byte budget."
    time_ratio = 1.15
    costs = "as little recomputation as the budget allows: under one more forward pass down to about a quarter"
    pays = "when checkpointing everything saves more than is needed, or blocks differ in time and bytes"
    does_not_pay = "when a fixed pattern already meets the budget: with equal blocks it finds hardly anything better"
    fewest_blocks = 2
    parameters = (
        Parameter(
            "budget",
            (0.6, 0.4, 0.25, 0.1),
            "bytes that the blocks may keep, as a share of what keeping all takes",
            time_ratio={0.25: 1.05, 0.1: 1.15},
        ),
    )
    citation = (
        "Beaumont et al. 2019, Optimal checkpointing for heterogeneous chains (the persistent schedules of Rotor); "
        "Griewank and Walther 2000"
    )

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Run by the plan of the policy, if there is one.

        Otherwise recompute and measure every block in the first step, and then plan by rank 0's measurements.
        """
        from torch._subclasses.fake_tensor import FakeTensor

        from advisor.methods.recompute._block_costs import BlockCosts, require_visible_hooks
        from advisor.methods.recompute._plan import chain_of, segments_of
        from advisor.methods.recompute.optimal_plan import Unit
        from advisor.methods.recompute.plan import as_plan
        from advisor.training.random_state import default_generators
        from advisor.training.structure import stages_of

        require_visible_hooks()
        share = float(parameters["budget"])
        chain, blocks = chain_of(training, self.fewest_blocks)
        generators = default_generators(training.model)
        label = f"{self.name} budget={share:g}"
        if (text := training.settled.get(self.name)) is not None:
            settled = _read(text)
            plan = as_plan(settled.plan, stages_of(training.model, blocks))
            if plan is not None:
                chain.segments = segments_of(plan, blocks, generators)
                training.notes += _notes(label, settled)
                return
            training.notes.append(
                f"{label}: the plan of the policy is none for the blocks of this model; a new one is made"
            )
        costs = BlockCosts(blocks, generators)
        chain.segments = costs.segments()
        training.settling_steps = max(training.settling_steps, 1)

        def switch() -> None:
            training.after_step.remove(switch)
            plan, least = _fastest(training, blocks, training.world.agreed(costs.units(), list[Unit]), share)
            chain.segments = segments_of(plan, blocks, generators)
            settled = _Settled(plan=plan, least=least)
            training.settled[self.name] = msgspec.json.encode(settled).decode()
            training.notes += _notes(label, settled)
            if any(isinstance(parameter, FakeTensor) for parameter in training.model.parameters()):
                training.notes.append(
                    f"{label}: a trace has work to plan by and no seconds; a measured plan may keep other blocks"
                )

        training.after_step.append(switch)


def _fastest(
    training: Training, blocks: Sequence[nn.Module], units: Sequence[Unit], share: float
) -> tuple[Plan, float | None]:
    """The fastest plan within a share of all bytes; where there is none, the least plan and the share that it keeps."""
    from advisor.methods.recompute.optimal_plan import bytes_of_everything, held_at_most, least_plan, optimal_plan
    from advisor.methods.recompute.plan import shifted
    from advisor.training.structure import stages_of

    plan: Plan = ()
    held, too_little = 0, False
    for stage in stages_of(training.model, blocks):
        own = units[stage.start : stage.stop]
        fastest = optimal_plan(own, int(share * bytes_of_everything(own)))
        too_little |= fastest is None
        chosen = least_plan(own) if fastest is None else fastest
        held += held_at_most(chosen, own)
        plan += shifted(chosen, stage.start)
    return plan, held / bytes_of_everything(units) if too_little else None


def _read(text: str) -> _Settled:
    try:
        return msgspec.json.decode(text, type=_Settled)
    except msgspec.DecodeError:
        raise MethodRefusedError(
            f"what optimal_checkpoint settled on must be a plan as a tuning writes it, but the policy has {text!r}; "
            "leave it out, and a new one is made"
        ) from None


def _notes(label: str, settled: _Settled) -> list[str]:
    if settled.least is None:
        return []
    return [f"{label}: the blocks cannot keep less than {settled.least:.0%} of everything; the plan that does is used"]
