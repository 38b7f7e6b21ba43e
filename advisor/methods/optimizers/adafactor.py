"""Adam's second moment as a product of two vectors, and no first moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.methods.base import Conflict
from advisor.methods.optimizers.adam import AdamReplacement, group_without
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Adafactor"]

_TAKEN = frozenset({"lr", "weight_decay", "maximize", "foreach"})
"""Options of Adam that Adafactor has too; betas and eps mean other things there and keep Adafactor's defaults."""


class Adafactor(AdamReplacement):
    """Replaces Adam or AdamW by ``torch.optim.Adafactor``, which keeps one number per row and one per column.

    The learning rate and its schedule stay the user's, but their meaning changes: a step is relative to the size of the
    parameter (root mean square times ``min(lr, 1 / sqrt(step))``). A rate tuned for Adam is usually too low; 0.01 is a
    common choice. Weight decay is AdamW's. There is no momentum.
    """

    name = "adafactor"
    summary = "Trains with Adafactor in place of Adam: no first moment, and a second one of one row and one column."
    fidelity = Fidelity.MODEL
    learns_slower = True
    costs = "another optimizer: the learning rate becomes relative to the size of the parameters and must be tuned anew"
    pays = "for pre-training or fine-tuning large matrices, where even 8-bit moments are too much"
    does_not_pay = "where a recipe for Adam must be kept; with vectors and small kernels, which have nothing to factor"
    conflicts = (
        Conflict("fsdp", "its step takes norms over whole rows and columns, which are sliced there"),
        Conflict("tensor_parallel", "its step takes norms over whole rows and columns, which are sliced there"),
    )
    replacement = "Adafactor"
    lacks = ("amsgrad", "differentiable", "capturable")
    citation = "Shazeer and Stern 2018, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Build Adafactor over the same parameter groups."""
        import torch

        from advisor.methods.optimizers._fake_numbers import let_step_without_values

        self.require_adam(training)
        groups = training.optimizer.param_groups
        training.optimizer = torch.optim.Adafactor([group_without(group, taken=_TAKEN) for group in groups])
        let_step_without_values(training.optimizer)  # It reads the norm of each parameter and of its update.
        if all(p.dim() < 2 for group in groups for p in group["params"]):
            training.notes.append(
                "adafactor factored nothing: no parameter is a matrix, so that only the first moment is saved"
            )
