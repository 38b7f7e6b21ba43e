"""Which module classes are linear layers."""

from __future__ import annotations

from advisor.methods.applying import judged
from advisor.methods.base import Verdict

__all__ = ["LINEAR_LAYERS", "judge_linear"]

LINEAR_LAYERS = ("torch.nn.Linear", "transformers.pytorch_utils.Conv1D")
"""Kinds of layers whose weight is one matrix, as a probe names them; that of Conv1D is (inputs, outputs)."""


def judge_linear(found: bool, model_class: str) -> Verdict:
    """Refuse a model without any."""
    return judged(found, f"{model_class} has no linear layer (torch.nn.Linear, or Conv1D of transformers)")
