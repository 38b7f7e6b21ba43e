"""Activation functions with smooth derivatives: which modules and functions compute them."""

from __future__ import annotations

from advisor.methods.applying import judged
from advisor.methods.base import Verdict

__all__ = ["FORMULAS", "FUNCTIONS", "judge_activations"]

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


def judge_activations(found: bool, model_class: str) -> Verdict:
    """Refuse a model without any."""
    return judged(
        found,
        f"{model_class} calls neither GELU nor SiLU; ReLU keeps its output, which the next layer needs anyway, and "
        "other activations are not known",
    )
