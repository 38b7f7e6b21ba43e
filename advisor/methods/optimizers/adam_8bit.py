"""Adam with its two moments in 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.optimizers.adam import WHICH_OPTIMIZER, group_without, judge_adam, refuse_if_not_adam
from advisor.methods.optimizers.optimizer_class import traits_of
from advisor.methods.optimizers.traits import BITSANDBYTES_8BIT
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Adam8bit"]

_NEEDS: dict[str, Any] = {
    "replacement": "the 8-bit version",
    "lacks": ("amsgrad", "maximize", "differentiable", "capturable"),
    "couples_decay": False,
    "tensor_rate": False,
}
_TAKEN = frozenset({"betas", "eps", "lr", "weight_decay"})


class Adam8bit(Method):
    """Replaces Adam or AdamW by bitsandbytes' version, which keeps its moments in blockwise dynamic 8-bit numbers."""

    name = "adam_8bit"
    summary = "Keeps Adam's two moments in 8 bits instead of 32 (bitsandbytes)."
    fidelity = Fidelity.LOSSY
    gradient_tolerance = 0.0
    saves = frozenset({Saves.OPTIMIZER_STATE})
    costs = "quantization noise in the moments; one kernel per parameter instead of a fused one"
    pays = "when optimizer state is a large part of the memory: large models, small batches"
    does_not_pay = "when activations dominate (convolutional networks, long sequences), or parameters are small"
    stage = Stage.OPTIMIZER
    decides = WHICH_OPTIMIZER
    requires = ("bitsandbytes",)
    extra = "quant"
    citation = "Dettmers et al. 2022, 8-bit Optimizers via Block-wise Quantization"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs torch's Adam or AdamW, with options that the 8-bit version has too."""
        if facts is None:
            return Verdict.yes()
        return judge_adam(facts.optimizer_class, facts.optimizer_options, **_NEEDS)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Build the 8-bit optimizer over the same parameter groups and options."""
        import torch

        plain = training.optimizer
        refuse_if_not_adam(plain, self.name, **_NEEDS)
        try:
            import bitsandbytes
        except Exception as error:  # Whatever a native library raises while it loads is the user's answer.
            raise MethodRefusedError(f"bitsandbytes cannot be imported: {error}") from error
        build = bitsandbytes.optim.AdamW8bit if traits_of(plain).decays_apart else bitsandbytes.optim.Adam8bit
        training.optimizer = _built(build, [group_without(group, taken=_TAKEN) for group in plain.param_groups])
        sizes = [p.numel() for group in plain.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
        if not any(BITSANDBYTES_8BIT.takes(size) for size in sizes):
            training.notes.append(
                f"adam_8bit changed nothing: every parameter has fewer than {BITSANDBYTES_8BIT.smallest} elements and "
                "keeps 32 bits"
            )


def _built(build: Any, groups: list[dict[str, Any]]) -> Any:
    """The 8-bit optimizer, also under fake tensors.

    It reads numbers from tensors to make its tables of 8-bit values, and a fake tensor has none: it is built without
    fake tensors, and gets its tables anew where its other tensors will be.
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        optimizer = build(groups)
        tables = {name: table.tolist() for name, table in optimizer.name2qmap.items()}
    optimizer.name2qmap = {name: torch.tensor(values) for name, values in tables.items()}
    return optimizer
