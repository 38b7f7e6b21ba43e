"""Lower float formats for the forward and backward pass, with float32 master weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.use import ParameterValue
from advisor.problem.facts import Facts
from advisor.problem.goal import Fidelity
from advisor.problem.hardware import DeviceKind, Hardware

if TYPE_CHECKING:
    from advisor.methods.training import Training

__all__ = ["Precision"]

_AMPERE = (8, 0)
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32"}
_EMULATED_BELOW = 0.25
"""Share of the float32 rate below which a format is taken as emulated: its 16-bit activations cannot make up for it."""


class Precision(Method):
    """Autocast to bfloat16 or float16, or float32 matrix products in the TF32 format.

    Parameters, gradients and optimizer state stay float32. float16 scales the loss, because its smallest normal
    number is 6e-5 and gradients are smaller; the first steps may be skipped while the scale is found.
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
        ),
    )
    citation = "Micikevicius et al. 2018, Mixed Precision Training; https://docs.pytorch.org/docs/stable/amp.html"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """On CUDA, bf16 and tf32 need compute capability 8.0; on CPU there is no tf32."""
        dtype = parameters["dtype"]
        if hardware.kind is DeviceKind.CPU and dtype == "tf32":
            return Verdict.no("tf32 is a format of NVIDIA GPUs, but the device is a CPU")
        emulated = None if facts is None else _emulated(_TORCH_NAMES[str(dtype)], facts.matmul_flops_per_second)
        if emulated is not None:
            return Verdict.no(emulated)
        capability = hardware.compute_capability
        if dtype in ("bf16", "tf32") and capability is not None and capability < _AMPERE:
            return Verdict.no(
                f"{dtype} needs compute capability 8.0 (Ampere), but {hardware.name} has "
                f"{capability[0]}.{capability[1]}" + ("; use fp16" if dtype == "bf16" else "")
            )
        if facts is None and hardware.kind is DeviceKind.CPU:
            return Verdict.yes("the first step of a tuning measures whether this CPU only emulates it")
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Enter autocast around every forward pass, or set the process-wide tf32 flags until the training closes."""
        dtype = parameters["dtype"]
        _refuse_device(training, str(dtype))
        if dtype == "tf32":
            use_tf32(training)
            return
        import torch

        low = sorted(
            {str(p.dtype) for p in training.model.parameters() if p.is_floating_point() and p.dtype != torch.float32}
        )
        if low:
            raise MethodRefusedError(
                f"the master weights must be float32, but the model has parameters of {', '.join(low)}; "
                "build the model in float32"
            )
        target = torch.bfloat16 if dtype == "bf16" else torch.float16
        device_type = training.device.type
        training.forward_contexts.append(lambda: torch.autocast(device_type, dtype=target))
        if dtype == "fp16":
            training.gradient_scaler = torch.amp.GradScaler(device_type)


def _emulated(name: str, rates: Mapping[str, float]) -> str | None:
    """Why a format is useless on this device, from the rates of matrix products that the probe measured."""
    rate, full = rates.get(name), rates.get("float32")
    if rate is None or full is None or rate >= _EMULATED_BELOW * full:
        return None
    return (
        f"this device only emulates {name}: its matrix products ran at {rate / 1e9:.3g} GFLOP/s, "
        f"against {full / 1e9:.3g} in float32"
    )


def use_tf32(training: Training) -> None:
    """Let float32 matrix products and convolutions of this process run in TF32 until the training closes.

    Only ``fp32_precision`` is touched: after it is set, reading the older ``allow_tf32`` flags raises.
    """
    import torch

    cudnn: Any = torch.backends.cudnn
    switches: list[Any] = [torch.backends.cuda.matmul, *(getattr(cudnn, name, None) for name in ("conv", "rnn"))]
    if not all(hasattr(switch, "fp32_precision") for switch in switches):
        raise MethodRefusedError(f"tf32 needs torch.backends.*.fp32_precision, which torch {torch.__version__} lacks")
    before = [switch.fp32_precision for switch in switches]
    if all(value == "tf32" for value in before):
        training.notes.append("precision(dtype=tf32) changed nothing: tf32 was already allowed in this process")
    for switch, value in zip(switches, before, strict=True):
        switch.fp32_precision = "tf32"
        training.on_close(lambda switch=switch, value=value: setattr(switch, "fp32_precision", value))  # type: ignore[misc]


def _refuse_device(training: Training, dtype: str) -> None:
    """What :meth:`Precision.applicable` refuses, for a policy applied where nobody asked it."""
    import torch

    if training.device.type != "cuda":
        if dtype == "tf32":
            raise MethodRefusedError(f"tf32 is a format of NVIDIA GPUs, but the device is {training.device}")
        return
    if dtype in ("bf16", "tf32") and torch.cuda.get_device_capability(training.device) < _AMPERE:
        raise MethodRefusedError(f"{dtype} needs compute capability 8.0 (Ampere)")
