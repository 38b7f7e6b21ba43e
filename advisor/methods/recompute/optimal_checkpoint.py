"""Keep as many activations as a byte budget allows, and recompute those that cost the least time per byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import NOT_WITH_FSDP, WHAT_BLOCKS_KEEP, judge_chain
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from torch import nn

    from advisor.methods.recompute.optimal_plan import Unit
    from advisor.methods.recompute.plan import Plan
    from advisor.training.training import Training

__all__ = ["OptimalCheckpoint"]


class _Settled(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a policy keeps of a training's first step.

    Attributes:
        plan: Which blocks are run again, from where.
        least: If no plan met the budget, what this plan keeps, as a share of everything.
    """

    plan: object
    least: float | None = None


class OptimalCheckpoint(Method):
    """Measures every block in the first step, then runs the fastest plan whose kept bytes are within the budget.

    The budget is a share of what keeping everything takes, so that a plan stays right at another batch size: the bytes
    and seconds of all blocks grow alike. It holds for each stage of the model (consecutive blocks that one module
    holds). Where no plan is within it, the one that keeps the least is used, and a note says how much that is.

    Seconds that are measured again may make another plan, and with it another peak. So the plan is what this method
    settles on: it is part of the policy that was measured, and training by that policy runs by it from the first step.
    """

    name = "optimal_checkpoint"
    summary = "Measures each block's time and bytes, then recomputes what costs the least time within a byte budget."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.15
    costs = "as little recomputation as the budget allows: under one more forward pass down to about a quarter"
    pays = "when checkpointing everything saves more than is needed, or blocks differ in time and bytes"
    does_not_pay = "when a fixed pattern already meets the budget: with equal blocks it finds hardly anything better"
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    conflicts = (NOT_WITH_FSDP,)
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

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of at least two blocks."""
        return Verdict.yes() if facts is None else judge_chain(facts, 2)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Run by the plan that was settled on, if there is one.

        Otherwise recompute and measure every block in the first step; then plan, with rank 0's measurements on every
        rank.
        """
        from torch._subclasses.fake_tensor import FakeTensor

        from advisor.methods.recompute._block_costs import BlockCosts, can_see_saved_tensors
        from advisor.methods.recompute._plan import chain_of, segments_of
        from advisor.methods.recompute.optimal_plan import Unit
        from advisor.methods.recompute.plan import as_plan
        from advisor.training.random_state import default_generators
        from advisor.training.structure import stages_of

        if not can_see_saved_tensors():
            raise MethodRefusedError("this version of torch does not tell which saved-tensor hooks are in use")
        share = float(parameters["budget"])
        chain, blocks = chain_of(training, least=2)
        generators = default_generators(training.model)
        label = f"{self.name}(budget={share:g})"
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
    """The fastest plan within a share of all bytes; and, where none is, what the one that keeps the least keeps."""
    from advisor.methods.recompute._plan import by_stages
    from advisor.methods.recompute.optimal_plan import bytes_of_everything, held_at_most, least_plan, optimal_plan

    held, too_little = 0, False

    def plan_stage(stage: range) -> Plan:
        nonlocal held, too_little
        own = units[stage.start : stage.stop]
        plan = optimal_plan(own, int(share * bytes_of_everything(own)))
        if plan is None:
            plan, too_little = least_plan(own), True
        held += held_at_most(plan, own)
        return plan

    plan = by_stages(training.model, blocks, plan_stage)
    return plan, held / bytes_of_everything(units) if too_little else None


def _read(text: str) -> _Settled:
    """What a policy says that was settled.

    Raises:
        MethodRefusedError: It cannot be read.
    """
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
