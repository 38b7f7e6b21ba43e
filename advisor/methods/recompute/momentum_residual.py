"""Give residual blocks a momentum, which makes them invertible: the backward pass computes what was not kept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.methods.recompute._reversible import MomentumRunner
    from advisor.training.training import Training

__all__ = ["MomentumResidual"]

_MOST_LOST = 1e-3
"""Relative error of what the first block of a run was given at which gradients are taken as wrong."""
_STEPS_BETWEEN_CHECKS = 100
_NO_SUCH_BLOCK = "none of the repeated blocks returns the shape that it is given, so none can be a residual block"


_MUST_BE_EXACT = "what the blocks returned must be kept exactly, for their inputs are computed backward from it"


class MomentumResidual(Method):
    """Runs blocks as ``v = momentum * v + (1 - momentum) * (block(x) - x); x = x + v``, which can be inverted.

    These are the invertible residual blocks of the literature: any block will do, none has to be built for it. Blocks
    that change the shape run as they always did, and a run of blocks ends where a stage of the model does. Rounding
    errors grow on the way back, so the true numbers are kept again after every 16 blocks, and the first step and every
    hundredth are refused if too much was lost all the same. What is trained only computes the same with the momentum:
    evaluate it by the training, or train on with this method; a plain model with these weights is another one.
    """

    name = "momentum_residual"
    summary = "Makes residual blocks invertible by a momentum: their inputs are computed backward from their outputs."
    fidelity = Fidelity.MODEL
    saves = frozenset({Saves.ACTIVATIONS})
    time_ratio = 1.33
    costs = "the blocks' forward pass once more, and another model: what a block adds arrives spread over later blocks"
    pays = "with many residual blocks of one shape, when a model is trained from its beginning"
    does_not_pay = "for pretrained weights, which were trained without a momentum; with few blocks of one shape"
    stage = Stage.CHECKPOINT
    decides = WHAT_BLOCKS_KEEP
    parameters = (
        Parameter("momentum", (0.9, 0.99), "share of the velocity that stays: a higher one is inverted more exactly"),
    )
    conflicts = (
        Conflict("compress_activations", _MUST_BE_EXACT),
        Conflict("fp8_activations", _MUST_BE_EXACT),
        Conflict(
            "fsdp",
            "it gathers sliced parameters when the model calls a block, and blocks are called again without the model",
        ),
    )
    citation = (
        "Sander et al. 2021, Momentum Residual Neural Networks; Gomez et al. 2017, The Reversible Residual Network"
    )

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a chain of blocks of which some keep the shape."""
        if facts is None:
            return Verdict.yes()
        if facts.chain_reason:
            return Verdict.no(facts.chain_reason)
        if facts.first_loss is not None and facts.shape_keeping_blocks == 0:
            return Verdict.no(_NO_SUCH_BLOCK)
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Run the blocks of each stage as one segment."""
        from advisor.methods.recompute._reversible import MomentumRunner
        from advisor.methods.recompute.block_rules import judge_blocks
        from advisor.training.chain import Chain, Segment
        from advisor.training.recompute import stop_key_value_cache
        from advisor.training.structure import find_blocks, stages_of

        blocks = find_blocks(training.model, training.blocks)
        verdict = judge_blocks(len(blocks), 1, type(training.model).__name__)
        if not verdict.applicable:
            raise MethodRefusedError(verdict.reason)
        stop_key_value_cache(training)
        momentum = float(parameters["momentum"])
        runners = {stage: MomentumRunner(training.model, momentum) for stage in stages_of(training.model, blocks)}
        chain = Chain(training, blocks)
        chain.segments = tuple(
            Segment(stage.start, stage.stop, runner, always=True) for stage, runner in runners.items()
        )

        training.notes.append(
            "momentum_residual: the trained weights are right only with the momentum; evaluate with training.evaluate, "
            "for a plain model into which the state is loaded computes something else"
        )
        steps = itertools.count()

        def check_now_and_then() -> None:
            # Reading it waits for the device. What blocks learn may make them steeper, and their inversion worse.
            if next(steps) % _STEPS_BETWEEN_CHECKS == 0:
                _check(list(runners.values()))

        training.after_step.append(check_now_and_then)


def _check(runners: Sequence[MomentumRunner]) -> None:
    """Whether there was a block to invert, and whether what was inverted was right."""
    from torch._subclasses.fake_tensor import FakeTensor

    if not any(runner.reversible for runner in runners):
        raise MethodRefusedError(_NO_SUCH_BLOCK)
    lost = max(
        (float(part) for runner in runners for part in runner.lost if not isinstance(part, FakeTensor)), default=0.0
    )
    if lost > _MOST_LOST:
        raise MethodRefusedError(
            f"what the blocks were given must be found again within {_MOST_LOST:g}, but the error was "
            f"{lost:.2g}: rounding errors grow too fast in these blocks; use a higher momentum, or recompute them"
        )
