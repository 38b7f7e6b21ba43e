"""Everything in bfloat16, with updates that are rounded at random so that small ones are not lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.methods.base import Parameter
from advisor.methods.formats.short_training import SLICED, ShortTraining
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["PureBf16"]


class PureBf16(ShortTraining):
    """Parameters, gradients and the optimizer's state in bfloat16, without a float32 copy of any.

    Each update is computed in float32 from the parameter, its gradient and its state, for a few million elements at a
    time, and then rounded to bfloat16. Rounding to the nearest loses every update below 1/512 of its parameter, and
    stops the decay of Adam's second moment; stochastic rounding keeps both on average.

    Normalizations with running statistics, and losses, stay in float32. Optimizers with a state format of their own
    keep it.
    """

    name = "pure_bf16"
    summary = "Keeps parameters, gradients and optimizer state in bfloat16, and rounds updates stochastically."
    computes_in = "bf16"
    costs = "8 significant bits in the weights; noise from rounding; the update makes several passes over its elements"
    pays = "when parameters, gradients and optimizer state are most of the memory: it halves each of them"
    does_not_pay = (
        "when activations dominate (precision halves them too and keeps float32 weights), or for a model that makes "
        "float32 tensors as it goes and multiplies them by its weights, which fails"
    )
    parameters = (
        Parameter(
            "rounding",
            ("stochastic", "nearest"),
            "of updates and optimizer state: up or down at random so that the mean is right, or what is nearer",
            worse={"nearest": Fidelity.LOSSY},
        ),
    )
    conflicts = SLICED
    citation = "Zamirai et al. 2020, Revisiting BFloat16 Training; torchao.optim, bf16_stochastic_round"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Shorten the model, and have every optimizer that is put in use update it in float32."""
        import torch

        from advisor.methods.formats._float32_updates import update_in_float32
        from advisor.methods.formats._rounding import Rounding
        from advisor.methods.formats._short_state import Bfloat16State
        from advisor.methods.formats._short_weights import clip_grad_norm_

        rounding = Rounding(stochastic=parameters["rounding"] == "stochastic")
        self.shorten(training, torch.bfloat16, "how their updates are rounded")
        training.state_parts["rounding"] = rounding
        training.clip_gradients = clip_grad_norm_
        training.change_optimizer.append(
            lambda optimizer: update_in_float32(optimizer, Bfloat16State(), rounding=rounding, state_rounding=rounding)
        )
