"""Lower float formats for the forward and backward pass, with float32 master weights."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.number_formats import FLOAT_FORMAT, judge_format, refuse_device
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Precision"]


class Precision(Method):
    """Autocast to bfloat16 or float16, or float32 matrix products in the TF32 format.

    Parameters, gradients and optimizer state stay float32. float16 scales the loss, because many gradients are smaller
    than its smallest normal number, 6e-5; the first steps may be skipped while the scale is found.
    """

    name = "precision"
    summary = "Runs matrix products and most activations in a lower float format; master weights stay float32."
    fidelity = Fidelity.PRECISION
    gradient_tolerance = 0.05
    saves = frozenset({Saves.ACTIVATIONS, Saves.LOGITS})
    costs = "a 16-bit copy of the weights during the step; fp16 also scales the loss (tf32 costs nothing)"
    pays = "on GPUs with tensor cores (bf16 and tf32 from Ampere on, fp16 from Volta on), almost always"
    does_not_pay = "on CPUs without bf16 arithmetic, where it is emulated; on small models bound by kernel launches"
    stage = Stage.STEP
    parameters = (
        Parameter(
            "dtype",
            ("bf16", "fp16", "tf32"),
            "format: bf16 and fp16 store activations in 16 bits; tf32 only speeds up float32 matrix products",
            time_ratio={"bf16": 0.55, "fp16": 0.55, "tf32": 0.7},
            computes_in={"bf16": "bf16", "fp16": "fp16", "tf32": "tf32"},
        ),
    )
    decides = FLOAT_FORMAT
    citation = "Micikevicius et al. 2018, Mixed Precision Training; https://docs.pytorch.org/docs/stable/amp.html"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """On CUDA, bf16 and tf32 need compute capability 8.0; on CPU there is no tf32."""
        dtype = str(parameters["dtype"])
        verdict = judge_format(dtype, facts, hardware)
        if facts is None or dtype == "tf32" or not verdict.applicable:
            return verdict
        weights = _judge_weights(facts.parameter_dtypes)
        return verdict if weights.applicable else weights

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Enter autocast around every forward pass, or set the process-wide tf32 flags until the training closes."""
        import torch

        from advisor.methods.formats._loss_scaling import LossScaler
        from advisor.training.structure import parameter_dtypes

        dtype = str(parameters["dtype"])
        if dtype == "tf32" and training.device.type != "cuda":
            raise MethodRefusedError(f"tf32 is a format of NVIDIA GPUs, but the device is {training.device}")
        refuse_device(dtype, training.device)
        if dtype == "tf32":
            use_tf32(training)
            return
        require(_judge_weights(parameter_dtypes(training.model)))
        target = torch.bfloat16 if dtype == "bf16" else torch.float16
        device_type = training.device.type
        training.forward_contexts.append(lambda: torch.autocast(device_type, dtype=target))
        if dtype == "fp16":
            training.gradient_scaler = LossScaler(device_type)


def _judge_weights(dtypes: Iterable[str]) -> Verdict:
    low = ", ".join(name for name in dtypes if name != "float32")
    reason = f"the master weights must be float32, but the model has parameters of {low}; build the model in float32"
    return judged(not low, reason)


def use_tf32(training: Training) -> None:
    """Let float32 matrix products and convolutions of this process run in TF32 until the training closes.

    Only ``fp32_precision`` is touched: after it is set, reading the older ``allow_tf32`` flags raises.
    """
    import torch

    from advisor.training.process_setting import hold

    cudnn: Any = torch.backends.cudnn
    switches: list[Any] = [torch.backends.cuda.matmul, *(getattr(cudnn, name, None) for name in ("conv", "rnn"))]
    if not all(hasattr(switch, "fp32_precision") for switch in switches):
        raise MethodRefusedError(f"tf32 needs torch.backends.*.fp32_precision, which torch {torch.__version__} lacks")
    if all(switch.fp32_precision == "tf32" for switch in switches):
        training.notes.append("precision tf32 changed nothing: tf32 was already allowed in this process")
    for number, switch in enumerate(switches):
        hold(
            training,
            f"fp32_precision {number}",
            "tf32",
            read=functools.partial(getattr, switch, "fp32_precision"),
            write=functools.partial(setattr, switch, "fp32_precision"),
        )
