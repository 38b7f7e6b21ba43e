"""Give residual blocks a momentum, which makes them invertible: the backward pass computes what was not kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Conflict, Method, Parameter, Saves, Stage, Verdict
from advisor.methods.recompute.block_rules import WHAT_BLOCKS_KEEP, require_blocks
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.methods.recompute._reversible import MomentumRunner
    from advisor.training.training import Training

__all__ = ["MomentumResidual"]

_MOST_LOST = 1e-3
"""Relative error of the first block's recomputed input above which gradients are taken as wrong."""
_STEPS_BETWEEN_CHECKS = 100
_NO_SUCH_BLOCK = "none of the repeated blocks returns the shape that it is given, so none can be a residual block"
_MUST_BE_EXACT = "what the blocks returned must be kept exactly, for their inputs are computed backward from it"


class MomentumResidual(Method):
    """Runs blocks as ``v = momentum * v + (1 - momentum) * (block(x) - x); x = x + v``, which can be inverted.

    Any block will do; none has to be built for it. Blocks that change the shape run as before, and a run of blocks ends
    where a stage of the model does. Rounding errors grow on the way back, so the exact values are kept again after
    every 16 blocks; the first step and every hundredth check what was lost, and refuse too much. The trained weights
    are right only with the momentum: evaluate with the training, or train on with this method.
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

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
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
        from advisor.training.chain import Chain, Segment
        from advisor.training.recompute import stop_key_value_cache
        from advisor.training.structure import stages_of

        blocks = require_blocks(training)
        stop_key_value_cache(training)
        momentum = float(parameters["momentum"])
        stages = stages_of(training.model, blocks)
        runners = [MomentumRunner(training.model, momentum) for _ in stages]
        chain = Chain(training, blocks)
        chain.segments = tuple(
            Segment(s.start, s.stop, run, always=True) for s, run in zip(stages, runners, strict=True)
        )
        training.notes.append(
            "momentum_residual: the trained weights are right only with the momentum; evaluate with training.evaluate, "
            "for a plain model into which the state is loaded computes something else"
        )
        steps = itertools.count()

        def check_now_and_then() -> None:
            # Reading it waits for the device. Blocks may become steeper as they learn, and their inversion worse.
            if next(steps) % _STEPS_BETWEEN_CHECKS == 0:
                _check(runners)

        training.after_step.append(check_now_and_then)


def _check(runners: Sequence[MomentumRunner]) -> None:
    """Refuse if no block was inverted, or too inexactly."""
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
