"""Store images with their channels last, as the fastest convolution kernels read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Conflict, Method, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["ChannelsLast"]

_CONVOLUTIONS = ("Conv2d", "Conv3d", "ConvTranspose2d", "ConvTranspose3d")


class ChannelsLast(Method):
    """Lays out the weights of 2-D and 3-D convolutions, and the model's inputs of as many dimensions, channels last.

    Between convolutions, torch keeps the layout itself.
    """

    name = "channels_last"
    summary = "Stores images and the weights of convolutions with the channels last in memory."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-3
    update_tolerance = 0.1  # Adam blows up gradients that are zero but for rounding: a bias before BatchNorm.
    other_masks = True
    saves = frozenset()
    time_ratio = 0.95
    costs = (
        "a copy of each input, and at each operator that only supports the usual layout; dropout, which "
        "follows the order in memory, draws other masks"
    )
    pays = "for convolutional networks in 16-bit floats on GPUs with tensor cores"
    does_not_pay = "in float32 on many GPUs, and where operators between convolutions change the layout back"
    stage = Stage.PARALLELIZE  # Before anything looks at the parameters.
    conflicts = (
        Conflict("fsdp", "it shards parameters, which must then have the usual memory layout"),
        Conflict("adam_8bit", "bitsandbytes returns every weight that it updates to the usual layout"),
    )
    citation = "PyTorch tutorial, Channels Last Memory Format"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Needs a convolution in two or three dimensions."""
        if facts is None:
            return Verdict.yes()
        return _judge(any(facts.module_counts.get(f"torch.nn.{name}") for name in _CONVOLUTIONS), facts.model_class)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Lay out the weights in place, and the inputs of every call of the model."""
        import torch
        from torch import nn

        kinds = tuple(getattr(nn, name) for name in _CONVOLUTIONS)
        model = training.model
        weights = {id(m.weight): m.weight for m in model.modules() if isinstance(m, kinds)}
        require(_judge(bool(weights), type(model).__name__))
        changed = False
        with torch.no_grad():
            for weight in weights.values():
                laid_out = _channels_last(weight)
                changed |= laid_out.stride() != weight.stride()
                # The same parameter with other strides: optimizers, tied modules and hooks keep their hold of it.
                weight.data = laid_out
        if not changed:
            training.notes.append("channels_last changed nothing: all weights of convolutions already have this layout")
        model.register_forward_pre_hook(_lay_out_inputs, with_kwargs=True)


def _lay_out_inputs(_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return tuple(map(_channels_last, args)), {name: _channels_last(value) for name, value in kwargs.items()}


def _channels_last(value: Any) -> Any:
    """A tensor of images or volumes in the layout; anything else as it is."""
    import torch

    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.dim() not in (4, 5):
        return value
    return value.contiguous(memory_format=torch.channels_last if value.dim() == 4 else torch.channels_last_3d)


def _judge(found: bool, model_class: str) -> Verdict:
    return judged(found, f"{model_class} has no convolution in two or three dimensions")
