"""Random numbers of stages: alike outside of the blocks, different inside.

A loss that draws noise, or a model that masks its inputs, does so on every stage, and all must draw the same. The
blocks of different stages must not: they would drop the same elements. So every pass of a micro-batch begins with a
seed that all stages have, and goes on with a seed of the stage between its first block and its last.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Generator

import torch

__all__ = ["CommonDraws"]


class CommonDraws:
    """Seeds the default generators of the CPU and of one device.

    Args:
        device: The device.
        place: Of the process among those that have the same stage but draw other numbers in its blocks.

    Attributes:
        base: The seed that all stages have in common; ``None`` as long as they have not agreed on one.
        are_made: Whether some stage draws any number; if not, nothing is seeded.
        drew: Whether a pass of this rank was seen to draw any.
    """

    def __init__(self, device: torch.device, place: str = "") -> None:
        self.base: int | None = None
        self.are_made = True
        self.drew = False
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._generators.append(torch.cuda.default_generators[index])
        self._place = place
        self._stage = 0
        self._pass = 0
        self._outside: list[torch.Tensor] = []
        self._seeded: list[torch.Tensor] = []

    @contextlib.contextmanager
    def passing(self, stage: int, number: int) -> Generator[None, None, None]:
        """Context of one pass.

        Args:
            stage: Number of the stage.
            number: Number of the pass; the same in all stages for one micro-batch, another for each.
        """
        if not self.are_made or self.base is None:
            yield
            return
        before = self._states()
        self._stage, self._pass = stage, number
        self._seed(f"{self.base}/{number}")
        try:
            yield
        finally:
            self._look()
            self._outside = []
            self._set(before)

    def begin_blocks(self) -> None:
        """Go on with the stage's own numbers."""
        if self.are_made and self.base is not None:
            self._look()
            self._outside = self._states()
            self._seed(f"{self.base}/{self._pass}/{self._stage}/{self._place}")

    def end_blocks(self) -> None:
        """Go on with the numbers that all stages have."""
        if self._outside:
            self._look()
            self._set(self._outside)
            self._seeded, self._outside = self._outside, []

    def _look(self) -> None:
        """Note whether anything was drawn since the last seed."""
        if not self.drew:
            self.drew = not all(map(torch.equal, self._states(), self._seeded))

    def _states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self._generators]

    def _set(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    def _seed(self, text: str) -> None:
        # The CPU's generator takes 32 bits of a seed only: they must differ in all of them.
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest())
        for generator in self._generators:
            generator.manual_seed(seed)
        if not self.drew:
            self._seeded = self._states()
