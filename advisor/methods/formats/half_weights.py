"""float16 weights without a float32 copy of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.methods.base import Conflict, Parameter
from advisor.methods.formats.short_training import SLICED, ShortTraining
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["HalfWeights"]

_OVERFLOW = "float16 lets gradients overflow now and then"


class HalfWeights(ShortTraining):
    """Parameters, gradients and the optimizer's state in float16, with the loss scaled as high as it goes.

    As in the paper, normalizations with running statistics stay in float32, the scale is found during training (steps
    whose gradients overflow are skipped), updates are computed in float32 for a few million elements at a time and then
    cast back, and state is scaled into the range of float16. Gradients are divided by the loss scale only in the
    update. Adam's epsilon of 1e-8 would be zero in float16, but is added in float32.

    Unlike in the paper, the state is held as its root: squares of gradients do not fit into float16 at any scale.
    Optimizers with a state format of their own keep it.
    """

    name = "half_weights"
    summary = "Keeps parameters, gradients and optimizer state in float16, without float32 master weights."
    computes_in = "fp16"
    costs = (
        "11 significant bits in the weights; now and then a skipped step; more passes over the elements of an update"
    )
    pays = "when parameters, gradients and optimizer state are most of the memory, on GPUs without bf16 (Volta, Turing)"
    does_not_pay = (
        "where the GPU has bf16, which does not overflow (pure_bf16), or for a model that makes float32 tensors as it "
        "goes and multiplies them by its weights, which fails"
    )
    parameters = (
        Parameter(
            "rounding",
            ("nearest", "stochastic"),
            "of updated weights: to what is nearer, as in the paper, which loses updates below 1/4096 of a weight; or "
            "at random so that the mean is right",
        ),
    )
    conflicts = (
        *SLICED,
        Conflict(
            "optimizer_in_backward",
            "float16 must look at all gradients for overflow before any parameter is updated; use pure_bf16",
        ),
        Conflict(
            "host_optimizer",
            "float16's search for overflow would have to run on the device and on the host at once; use pure_bf16",
        ),
        *(
            Conflict("gradient_compression", f"{_OVERFLOW}, and PowerSGD would carry it on", where={"hook": hook})
            for hook in ("powersgd_rank_1", "powersgd_rank_4")
        ),
    )
    citation = "Sohoni et al. 2019, Low-Memory Neural Network Training: A Technical Report, sections 3.2 and 4.3"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Shorten the model, scale its loss, and have every optimizer put in use update it in float32."""
        import torch

        from advisor.methods.formats._float32_updates import update_in_float32
        from advisor.methods.formats._loss_scaling import HalfLossScaler
        from advisor.methods.formats._rounding import Rounding
        from advisor.methods.formats._short_state import HalfState
        from advisor.methods.formats._short_weights import clip_grad_norm_
        from advisor.training.optimizer.fused_step import hooks_of_the_user

        weights, state = Rounding(stochastic=parameters["rounding"] == "stochastic"), Rounding(stochastic=True)
        self.shorten(training, torch.float16, "that the loss is scaled")
        training.state_parts |= {"rounding": weights, "state_rounding": state}
        scaler = HalfLossScaler(training.device.type)
        training.gradient_scaler = scaler
        training.clip_gradients = lambda gradients, norm: clip_grad_norm_(gradients, norm, scaler.inverse())
        training.gradient_factor = scaler.inverse

        def update(optimizer: torch.optim.Optimizer) -> None:
            if hooks_of_the_user(optimizer):
                raise MethodRefusedError(
                    "the optimizer has a hook that runs before its step, which would see gradients that are still "
                    "scaled; clip with max_grad_norm"
                )
            update_in_float32(
                optimizer, HalfState(), rounding=weights, state_rounding=state, gradient_factor=scaler.inverse
            )

        training.change_optimizer.append(update)
