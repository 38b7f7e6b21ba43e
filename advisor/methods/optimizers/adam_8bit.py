"""Adam with its two moments in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advisor.goal import Fidelity
from advisor.methods.applying import load
from advisor.methods.optimizers.adam import AdamReplacement, group_without
from advisor.methods.optimizers.optimizer_class import traits_of
from advisor.methods.optimizers.traits import BITSANDBYTES_8BIT
from advisor.methods.setting import ParameterValue

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Adam8bit"]

_TAKEN = frozenset({"betas", "eps", "lr", "weight_decay"})


class Adam8bit(AdamReplacement):
    """Replaces Adam or AdamW by bitsandbytes' version, which keeps its moments in blockwise dynamic 8-bit numbers."""

    name = "adam_8bit"
    summary = "Keeps Adam's two moments in 8 bits instead of 32 (bitsandbytes)."
    fidelity = Fidelity.LOSSY
    costs = "quantization noise in the moments; one kernel per parameter instead of a fused one"
    pays = "when optimizer state is a large part of the memory: large models, small batches"
    does_not_pay = "when activations dominate (convolutional networks, long sequences), or parameters are small"
    requires = ("bitsandbytes",)
    extra = "quant"
    replacement = "the 8-bit version"
    lacks = ("amsgrad", "maximize", "differentiable", "capturable")
    tensor_rate = False
    citation = "Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Build the 8-bit optimizer over the same parameter groups and options."""
        self.require_adam(training)
        plain = training.optimizer
        optimizers = load("bitsandbytes:optim")
        build = optimizers.AdamW8bit if traits_of(plain).decays_apart else optimizers.Adam8bit
        training.optimizer = _built(build, [group_without(group, taken=_TAKEN) for group in plain.param_groups])
        if not any(BITSANDBYTES_8BIT.takes(p.numel()) for group in plain.param_groups for p in group["params"]):
            training.notes.append(
                f"adam_8bit changed nothing: every parameter has fewer than {BITSANDBYTES_8BIT.smallest} elements and "
                "keeps 32 bits"
            )


def _built(build: Any, groups: list[dict[str, Any]]) -> Any:
    """The 8-bit optimizer, also under fake tensors.

    It reads its tables of 8-bit values from tensors, and fake tensors have no values: it is built without fake tensors,
    and then gets its tables again where its other tensors will be.
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        optimizer = build(groups)
        tables = {name: table.tolist() for name, table in optimizer.name2qmap.items()}
    optimizer.name2qmap = {name: torch.tensor(values) for name, values in tables.items()}
    return optimizer
