"""Choose the kernel of scaled dot-product attention instead of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Method, Parameter, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["AttentionBackend"]

_AMPERE = (8, 0)
_FUNCTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward")
"""Torch functions that run such a kernel; the second only if no attention weights are asked for."""
_OF_GPUS = ("efficient", "cudnn")
_NEEDS_AMPERE = ("flash", "cudnn")


class AttentionBackend(Method):
    """Allows one kernel only, for the whole process until the training closes: recomputation must find it as well."""

    name = "attention_backend"
    summary = "Computes scaled dot-product attention with a kernel of your choice instead of torch's."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-4
    other_masks = True
    saves = frozenset()
    costs = "nothing where the kernel suits; dropout inside attention draws other masks with each kernel"
    pays = "where torch's own choice is not the fastest for the shapes at hand, or keeps the whole score matrix"
    does_not_pay = "where torch already chooses it; flash and cudnn need 16-bit floats on a GPU"
    stage = Stage.STEP
    parameters = (
        Parameter(
            "kernel",
            ("flash", "efficient", "cudnn", "math"),
            "flash: FlashAttention; efficient: memory-efficient attention; cudnn: NVIDIA's; math: plain operators",
        ),
    )
    citation = "PyTorch documentation, torch.nn.attention.sdpa_kernel"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs attention by torch's function, and for some kernels a GPU or compute capability 8.0."""
        kernel = str(parameters["kernel"])
        verdict = _judge_device(kernel, hardware.device, on_gpu=hardware.kind is DeviceKind.CUDA)
        if not verdict.applicable:
            return verdict
        capability = hardware.compute_capability
        if capability is not None and capability < _AMPERE and kernel in _NEEDS_AMPERE:
            return Verdict.no(
                f"{kernel} needs compute capability 8.0 (Ampere), but {hardware.name} has "
                f"{capability[0]}.{capability[1]}; use efficient"
            )
        # Empty: plain training did not fit, and nothing is known.
        if facts is not None and facts.function_counts and not any(facts.function_counts.get(n) for n in _FUNCTIONS):
            return Verdict.no(f"{facts.model_class} never calls torch's scaled_dot_product_attention")
        if hardware.kind is DeviceKind.CUDA and kernel in _NEEDS_AMPERE:
            return Verdict.yes("it needs attention in 16-bit floats, as precision bf16 gives")
        return Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Allow only this kernel until the training closes. A step that it cannot compute is refused."""
        from advisor.methods.kernels._attention_backend import allow_only

        kernel = str(parameters["kernel"])
        require(_judge_device(kernel, str(training.device), on_gpu=training.device.type == "cuda"))
        allow_only(training, kernel, f"attention_backend {kernel}")


def _judge_device(kernel: str, device: str, *, on_gpu: bool) -> Verdict:
    reason = f"{kernel} is a kernel for NVIDIA GPUs, but the device is {device}"
    return judged(on_gpu or kernel not in _OF_GPUS, reason)
