"""Distribute the blocks of a model over the devices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.pipeline.schedule_rules import SCHEDULES, stages_per_rank
from advisor.methods.recompute.block_rules import judge_blocks, require_blocks
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Pipeline"]

_SEVERAL_STAGES = tuple(schedule for schedule in SCHEDULES if stages_per_rank(schedule) > 1)
_NO_HOOKS = (
    "it acts when the gradient of a block is complete, and the zero-bubble schedule computes the gradients of weights "
    "apart, without the hooks that would tell; use schedule=interleaved or 1f1b, or ddp"
)
_MERGED = (
    "saving merges what it trains into the weights of all layers, and those of other devices are not there; use fsdp"
)
_SEVERAL_AS_ONE = (
    "it runs several blocks as one, and a device with two stages has blocks that do not follow on each other; use "
    "schedule=1f1b or gpipe"
)
_EACH_PASS = (
    "it uses each gradient as soon as a backward pass has it, but in a pipeline a gradient is complete only after "
    "those of all micro-batches, and for tied weights only once the stages have summed theirs"
)
_COMPILED = (
    "a compiled backward pass computes all gradients of a block at once, and the zero-bubble schedule needs those of "
    "weights apart"
)


class Pipeline(Method):
    """Each device has some of the blocks, in stages; micro-batches pass through the stages one after another.

    A stage runs the model's own forward function and the user's own loss: blocks of other stages are left out, and only
    hidden states travel. Masks and positions are computed by every stage. Micro-batches are those of gradient
    accumulation, and must have the same shapes. The first step measures time and memory of every block; a training by
    the same policy then cuts the model where the slowest stage is fastest, among the cuts that fit.

    ``schedule=gpipe`` with one micro-batch is naive model parallelism: one device works at a time.
    ``training.forward`` and ``backward`` cannot be called apart: a step runs passes of several micro-batches in turn.
    Weights that several stages compute with (tied ones) are in each of them, and their gradients are summed.
    """

    name = "pipeline"
    summary = "Distributes the blocks over the devices; micro-batches pass through the stages one after another."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-5
    other_masks = True
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS})
    costs = "devices wait at the beginning and end of a step, the less the more micro-batches there are"
    pays = "when a model does not fit on one device, or on slow links: it sends least of all that divides a model"
    does_not_pay = "with few micro-batches, or when the blocks differ much in time and cannot be cut evenly"
    stage = Stage.PARALLELIZE
    parameters = (
        Parameter(
            "schedule",
            SCHEDULES,
            "the order of passes: one forward, one backward; all forward first; two stages a device; or those with the "
            "gradients of weights where a device would wait",
        ),
    )
    conflicts = (
        Conflict("optimizer_in_backward", _EACH_PASS),
        Conflict("host_optimizer", _EACH_PASS),
        Conflict("gradient_compression", "with a pipeline, gradients are averaged once a step and not in buckets"),
        *(Conflict(other, _MERGED) for other in ("lora", "qlora", "sparse_reparameterization")),
        Conflict(
            "momentum_residual", "its blocks hand on a velocity besides hidden states, and only the latter travel"
        ),
        Conflict("fsdp", _NO_HOOKS, own={"schedule": "zero_bubble"}),
        Conflict("compile", _COMPILED, own={"schedule": "zero_bubble"}),
        Conflict("compile_budget", _COMPILED, own={"schedule": "zero_bubble"}),
        *(
            Conflict(other, _SEVERAL_AS_ONE, own={"schedule": schedule})
            for other, schedule in itertools.product(
                ("optimal_checkpoint", "recursive_checkpoint", "residual_checkpoint", "sqrt_checkpoint"),
                _SEVERAL_STAGES,
            )
        ),
    )
    axis = MeshAxis.PIPELINE
    citation = (
        "Huang et al. 2019, GPipe; Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU "
        "Clusters; Qi et al. 2024, Zero Bubble Pipeline Parallelism; torch.distributed.pipelining"
    )

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs blocks that follow on each other."""
        if facts is None:
            return Verdict.yes()
        if facts.block_count > 0 and facts.staged_reason:
            return Verdict.no(f"its blocks cannot be in stages: {facts.staged_reason}")
        return judge_blocks(facts.block_count, 2 * stages_per_rank(str(parameters["schedule"])), facts.model_class)

    def why_not_on(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts | None) -> str:
        """Every stage needs a block."""
        stages = mesh.pipeline * stages_per_rank(str(parameters["schedule"]))
        if facts is not None and facts.staged_blocks < stages:
            return f"every stage needs a block, but the model has {facts.staged_blocks} for {stages} stages"
        return ""

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Take the blocks of other devices out of the model, and run its passes by the schedule."""
        from advisor.methods.pipeline._staged_training import StagedTraining

        blocks = require_blocks(training)
        bounds = _read(training.settled[self.name], len(blocks)) if self.name in training.settled else None
        cut = StagedTraining(
            training,
            blocks,
            schedule=str(parameters["schedule"]),
            bounds=bounds,
            settle=functools.partial(_settle, training.settled, self.name),
        )
        for other in training.cuts:
            other.let_go(training.model)
        training.cuts.insert(0, cut)  # What a stage has of the whole model is what the others divide.
        training.run_passes = cut.run_passes
        training.after_step.append(cut.after_step)
        # Too few are left to be found by their number.
        training.blocks = training.blocks or tuple({type(block): None for block in blocks})
        training.settling_steps = max(training.settling_steps, 1)  # It sets itself up in the first step.


def _settle(settled: dict[str, str], name: str, bounds: tuple[int, ...]) -> None:
    """What a policy keeps of a training's first step; one that came with a policy stays."""
    settled.setdefault(name, ",".join(map(str, bounds)))


def _read(text: str, blocks: int) -> tuple[int, ...]:
    """The bounds that a policy says.

    Raises:
        MethodRefusedError: They are not of this model.
    """
    try:
        bounds = tuple(int(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    if bounds[:1] != (0,) or bounds[-1] != blocks or any(a >= b for a, b in itertools.pairwise(bounds)):
        raise MethodRefusedError(
            f"what pipeline settled on must be the first block of every stage and the number of blocks, {blocks}, but "
            f"the policy has {text!r}; take the line out of the policy's settled, and it is measured again"
        )
    return bounds
