"""How the state of an optimizer is held in 16 bits between its steps."""

from __future__ import annotations

from typing import Any

import torch

from advisor.methods.formats._rounding import Rounding

__all__ = ["Bfloat16State", "HalfState", "ShortState"]

_State = dict[str, Any]


class ShortState:
    """Leaves the state as it is: for optimizers with a state format of their own."""

    def pack(self, state: _State, rounding: Rounding) -> _State:
        """One parameter's state as it is held; only state in float32 is rounded."""
        return state

    def unpack(self, state: _State) -> _State:
        """The state that the optimizer computes with, as near to what was packed as the format allows."""
        return state

    def plain(self, state: _State) -> _State:
        """Packed state as the same optimizer loads it without this method."""
        return state


class Bfloat16State(ShortState):
    """Every tensor in bfloat16. Single numbers, such as the count of steps, stay float32.

    Rounded to the nearest, Adam's second moment stops to decay: a step of it is 1/1000.
    """

    def pack(self, state: _State, rounding: Rounding) -> _State:
        """Round it."""
        return {
            name: rounding.round(value, torch.bfloat16) if _is_long(value) else value for name, value in state.items()
        }

    def unpack(self, state: _State) -> _State:
        """In float32, exactly."""
        return {
            name: value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value
            for name, value in state.items()
        }


class HalfState(ShortState):
    """Every tensor in float16, as its root with its sign, scaled so that the largest is just below 2**15.

    Most squares of gradients, which Adam's second moment holds, would be zero in float16, and dividing by the root of
    zero makes training diverge. Scaling alone leaves a range of 2**40, too small for the squares of gradients that
    differ by more than 2**20 from the largest of their parameter; their roots fit.
    """

    def pack(self, state: _State, rounding: Rounding) -> _State:
        """Scale the roots and round them; each keeps its scale beside it."""
        packed: _State = {}
        for name, value in state.items():
            if not _is_long(value):
                packed[name] = value
                continue
            root = value.abs().sqrt_()
            scale = _scale(root.amax()) if root.numel() else root.new_ones(())
            root = root.mul_(scale).copysign_(value)
            # Rounding up must not reach the next power of two: the scale can then be told from what is held.
            packed[name] = rounding.round(root, torch.float16).clamp_(-_LARGEST, _LARGEST)
            packed[name + _SCALE] = scale
        return packed

    def unpack(self, state: _State) -> _State:
        """Square what is held and undo the scale."""
        unpacked: _State = {}
        for name, value in state.items():
            if name.endswith(_SCALE):
                continue
            if (scale := state.get(name + _SCALE)) is not None:
                root = value.float().div_(scale)
                value = root.mul_(root.abs())
            elif isinstance(value, torch.Tensor) and value.dtype == torch.float16:
                value = value.float()  # made in the format of the parameter, and not yet packed
            unpacked[name] = value
        return unpacked

    def plain(self, state: _State) -> _State:
        """In float32, on the host: there may be no room for it on the device."""
        return {name: value.cpu() if _is_long(value) else value for name, value in self.unpack(state).items()}


_SCALE = ".scale"
_LARGEST = 2.0**15 - 16.0
"""The float16 before 2**15."""


def _is_long(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.dim() > 0


def _scale(peak: torch.Tensor) -> torch.Tensor:
    """The power of two that brings a peak into [2**14, 2**15); one if it is zero or not finite. Reads no value."""
    exponent = torch.frexp(peak).exponent
    scale = torch.ldexp(torch.ones_like(peak), 15 - exponent)
    return torch.where((peak > 0) & peak.isfinite(), scale, torch.ones_like(peak))
