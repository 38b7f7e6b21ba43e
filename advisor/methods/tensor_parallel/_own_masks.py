"""Random numbers of a rank's own where ranks compute different things, and common ones elsewhere."""

from __future__ import annotations

import torch
from torch.utils._mode_utils import no_dispatch

from advisor.training.unsaved import Unsaved

__all__ = ["OwnDraws"]

_MIX = 0x9E3779B97F4A7C15
_SEEDS = 2**62


class OwnDraws(Unsaved):
    """Between :meth:`start` and :meth:`stop` the default generator of a device draws what only this rank draws.

    The seed is drawn from the common numbers, so what is recomputed from the same state draws the same again. The
    common state is parked in a generator, not in an attribute: recomputation puts back the generators that a model's
    modules hold, and may begin between the two calls.

    Args:
        rank: This rank in the tensor-parallel group.
        device: Where the model computes.
    """

    def __init__(self, rank: int, device: torch.device) -> None:
        self._rank = rank
        self._device = device
        self._open = False
        self.parked = torch.Generator(device)

    def start(self) -> None:
        """From here on, own numbers."""
        common = self._generator()
        seed = _drawn_seed(common)
        self.parked.set_state(common.get_state())
        common.manual_seed((seed + self._rank * _MIX) % _SEEDS)
        self._open = True

    def stop(self) -> None:
        """From here on, common numbers again."""
        self._generator().set_state(self.parked.get_state())
        self._open = False

    def abandon(self) -> None:
        """A forward pass has failed: if numbers were own ones then, go on with the common ones."""
        if self._open:
            self.stop()

    def _generator(self) -> torch.Generator:
        if self._device.type == "cuda":
            index = torch.cuda.current_device() if self._device.index is None else self._device.index
            return torch.cuda.default_generators[index]
        return torch.default_generator


def _drawn_seed(generator: torch.Generator) -> int:
    """A seed from the generator, which moves on. Does not wait for a GPU."""
    if generator.device.type == "cuda":
        offset = generator.get_offset()
        generator.set_offset(offset + 4)
        return (generator.initial_seed() * _MIX + offset) % _SEEDS
    with no_dispatch():  # A number, whatever modes make of tensors.
        return int(torch.randint(_SEEDS, (), generator=generator))
