"""Which module classes, and functions, are linear layers and activations with smooth derivatives."""

from __future__ import annotations

from advisor.methods.applying import judged
from advisor.methods.base import Verdict

__all__ = ["FORMULAS", "FUNCTIONS", "LINEAR_LAYERS", "judge_activations", "judge_linear"]

LINEAR_LAYERS = ("torch.nn.Linear", "transformers.pytorch_utils.Conv1D")
"""Kinds of layers whose weight is one matrix, as a probe names them; that of Conv1D is (inputs, outputs)."""

_TANH_GELU = (
    "transformers.activations.AccurateGELUActivation",
    "transformers.activations.FastGELUActivation",
    "transformers.activations.GELUTanh",
    "transformers.activations.NewGELUActivation",
)

FORMULAS = {
    "torch.nn.GELU": "gelu",
    "torch.nn.SiLU": "silu",
    "transformers.activations.GELUActivation": "gelu",
    "transformers.activations.QuickGELUActivation": "quick_gelu",
    "transformers.activations.SiLUActivation": "silu",
    **dict.fromkeys(_TANH_GELU, "gelu_tanh"),
}
"""Kind of module, as a probe names it -> the formula that it computes."""

FUNCTIONS = ("gelu", "silu")
"""Functions of ``torch.nn.functional`` that compute one."""


def judge_linear(found: bool, model_class: str) -> Verdict:
    """Refuse a model without any."""
    return judged(found, f"{model_class} has no linear layer (torch.nn.Linear, or Conv1D of transformers)")


def judge_activations(found: bool, model_class: str) -> Verdict:
    """Refuse a model without any."""
    return judged(
        found,
        f"{model_class} calls neither GELU nor SiLU; ReLU keeps its output, which the next layer needs anyway, and "
        "other activations are not known",
    )
