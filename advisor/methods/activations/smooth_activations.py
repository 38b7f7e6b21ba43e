"""Activation functions with smooth derivatives: which modules and functions compute them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["formula_of_module", "no_activation", "smooth_activations"]

_TANH_GELU = (
    "transformers.activations.AccurateGELUActivation",
    "transformers.activations.FastGELUActivation",
    "transformers.activations.GELUTanh",
    "transformers.activations.NewGELUActivation",
)

_FORMULAS = {
    "torch.nn.GELU": "gelu",
    "torch.nn.SiLU": "silu",
    "transformers.activations.GELUActivation": "gelu",
    "transformers.activations.QuickGELUActivation": "quick_gelu",
    "transformers.activations.SiLUActivation": "silu",
    **dict.fromkeys(_TANH_GELU, "gelu_tanh"),
}

_FUNCTIONS = ("gelu", "silu")


def formula_of_module(kind: str) -> str | None:
    """The formula that a module class computes, or ``None`` if it is no known activation.

    Args:
        kind: Its name as in :attr:`advisor.workload.facts.Facts.module_counts`.
    """
    return _FORMULAS.get(kind)


def smooth_activations(module_counts: Mapping[str, int], function_counts: Mapping[str, int]) -> int:
    """How many modules and calls of functions compute one; a module that calls a function may count twice."""
    modules = sum(count for kind, count in module_counts.items() if kind in _FORMULAS)
    return modules + sum(function_counts.get(name, 0) for name in _FUNCTIONS)


def no_activation(model_class: str) -> str:
    """Why a model without any is refused."""
    return (
        f"{model_class} calls neither GELU nor SiLU; ReLU keeps its output, which the next layer needs anyway, and "
        "other activations are not known"
    )
