"""What methods have in common that keep weights, gradients and optimizer state in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import judged
from advisor.methods.base import Conflict, Method, Saves, Stage, Verdict
from advisor.methods.number_formats import FLOAT_FORMAT, judge_format, refuse_device
from advisor.methods.optimizers.traits import OptimizerTraits, named, of_torch
from advisor.methods.setting import Parameters
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["SLICED", "ShortTraining", "judge_optimizer"]

SLICED = (
    Conflict("zero_1", "it builds the optimizer again over a part of the parameters, without the rounding of updates"),
    Conflict("fsdp", "updates are rounded for whole parameters, and it slices them; use its own mixed_precision"),
)
"""Methods that divide the parameters over devices."""


class ShortTraining(Method):
    """Trains in one 16-bit format, that of :attr:`computes_in`, without float32 copies of the weights."""

    fidelity = Fidelity.PRECISION
    gradient_tolerance = 0.05
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS, Saves.LOGITS})
    time_ratio = 0.55
    stage = Stage.PARALLELIZE  # Before anything measures, wraps or divides the parameters.
    decides = FLOAT_FORMAT

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs arithmetic in the format, and an optimizer that takes its parameters in parts."""
        verdict = judge_format(self.computes_in, facts, hardware)
        if facts is None or not verdict.applicable:
            return verdict
        return judge_optimizer(facts.optimizer_class, named(facts.optimizer_class))

    def shorten(self, training: Training, dtype: torch.dtype, elsewhere: str) -> None:
        """Bring the model into the format; ``elsewhere`` says what is changed if it came in it."""
        from advisor.methods.formats._short_weights import shorten

        refuse_device(self.computes_in, training.device)
        if not shorten(training, dtype):
            training.notes.append(
                f"{self.name}: the parameters came in {str(dtype).removeprefix('torch.')}; what it changed is "
                f"{elsewhere}, and that updates, losses and BatchNorm are computed in float32"
            )


def judge_optimizer(optimizer: str, traits: OptimizerTraits) -> Verdict:
    """Whether an optimizer, given by its qualified class name, can step on some of its parameters at a time."""
    return judged(
        _in_parts(traits),
        "it needs an optimizer that treats parameters one by one (of torch.optim, all but "
        f"{' and '.join(of_torch(lambda other: not _in_parts(other)))}), but the optimizer is {optimizer}",
    )


def _in_parts(traits: OptimizerTraits) -> bool:
    return traits.per_parameter and traits.dense
