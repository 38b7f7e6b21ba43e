"""Everything in bfloat16, with updates that are rounded at random so that small ones are not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.formats.short_training import SLICED, judge_short
from advisor.methods.number_formats import FLOAT_FORMAT, judge_format, refuse_device
from advisor.methods.use import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["PureBf16"]


class PureBf16(Method):
    """Parameters, gradients and the optimizer's state in bfloat16; there is no float32 copy of anything.

    Each update is computed in float32 from the parameter, its gradient and its state, for a few million elements at a
    time, and then rounded to bfloat16. Rounding to the nearest loses every update below 1/512 of its parameter, and
    stops the decay of Adam's second moment; stochastic rounding keeps both on the average.

    Normalizations with running statistics stay in float32, and losses are computed in it. Optimizers that are not of
    torch.optim keep their state in the format that they choose themselves.
    """

    name = "pure_bf16"
    summary = "Keeps parameters, gradients and optimizer state in bfloat16, and rounds updates stochastically."
    fidelity = Fidelity.PRECISION
    gradient_tolerance = 0.05
    saves = frozenset({Saves.PARAMETERS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.ACTIVATIONS, Saves.LOGITS})
    time_ratio = 0.55
    computes_in = "bf16"
    costs = "8 significant bits in the weights; noise from rounding; the update makes several passes over its elements"
    pays = "when parameters, gradients and optimizer state are most of the memory: it halves each of them"
    does_not_pay = (
        "when activations dominate (precision halves them too and keeps float32 weights), or for a model that makes "
        "float32 tensors as it goes and multiplies them by its weights, which fails"
    )
    stage = Stage.PARALLELIZE  # Before anything measures, wraps or divides the parameters.
    parameters = (
        Parameter(
            "rounding",
            ("stochastic", "nearest"),
            "of updates and optimizer state: up or down at random so that the mean is right, or what is nearer",
            worse={"nearest": Fidelity.LOSSY},
        ),
    )
    decides = FLOAT_FORMAT
    conflicts = SLICED
    citation = "Zamirai et al. 2020, Revisiting BFloat16 Training; torchao.optim, bf16_stochastic_round"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs bfloat16 arithmetic (compute capability 8.0), and an optimizer that takes its parameters in parts."""
        verdict = judge_format("bf16", facts, hardware)
        return judge_short(facts) if verdict.applicable and facts is not None else verdict

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Shorten the model, and have every optimizer that is put in use update it in float32."""
        import torch

        from advisor.methods.formats._float32_updates import update_in_float32
        from advisor.methods.formats._rounding import Rounding
        from advisor.methods.formats._short_state import Bfloat16State
        from advisor.methods.formats._short_weights import clip_grad_norm_, shorten

        refuse_device("bf16", training.device)
        rounding = Rounding(stochastic=parameters["rounding"] == "stochastic")
        if not shorten(training, torch.bfloat16):
            training.notes.append(
                "pure_bf16: the parameters came in bfloat16; what it changed is how their updates are rounded, and "
                "that updates, losses and BatchNorm are computed in float32"
            )
        training.state_parts["rounding"] = rounding
        training.clip_gradients = clip_grad_norm_
        training.change_optimizer.append(
            lambda optimizer: update_in_float32(optimizer, Bfloat16State(), rounding=rounding, state_rounding=rounding)
        )
