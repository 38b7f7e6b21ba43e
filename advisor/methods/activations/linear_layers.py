"""Which module classes are linear layers."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONV1D", "linear_layers", "no_linear"]

CONV1D = "transformers.pytorch_utils.Conv1D"
"""A linear layer whose weight is (inputs, outputs)."""

_KINDS = ("torch.nn.Linear", CONV1D)


def linear_layers(module_counts: Mapping[str, int]) -> int:
    """How many modules are linear layers.

    Args:
        module_counts: As in :class:`advisor.workload.facts.Facts`.
    """
    return sum(module_counts.get(kind, 0) for kind in _KINDS)


def no_linear(model_class: str) -> str:
    """Why a model without any is refused."""
    return f"{model_class} has no linear layer (torch.nn.Linear, or Conv1D of transformers)"
