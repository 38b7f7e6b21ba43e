"""One stage of a model, run through the model's own forward function and the user's own loss.

Blocks before the stage hand on what they are given, the first own block takes what came from the stage before, and an
exception leaves the forward function after the last own block, except in the last stage, which goes on to the loss.
Masks, positions and whatever else a model computes before its blocks is computed on every stage from the batch, so that
only hidden states travel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._common_draws import CommonDraws
from advisor.training.block_call import NO_CHAIN, BlockCall, as_returned
from advisor.training.processes.cut import LeftPass

__all__ = ["Mark", "Passage", "Run"]

Mark = tuple[float, int]
"""Seconds on a clock, and bytes that live."""


class Run:
    """One forward pass of one stage.

    Args:
        blocks: Numbers of its blocks.
        is_last: Whether it is the last stage.
        incoming: Hidden states from the stage before; ``None`` in the first stage.
        watched: Whether to note what is used elsewhere than it may be.
        gauge: Seconds, once the device has done what it was given, and bytes that live then; for a measured pass.

    Attributes:
        left: Whether the pass was left after its last block.
        next: Number of the block to be called next.
        stands_in: In the place of what blocks before the stage return, if watched: leaves of the graph.
        last_hidden: What the last block of the stage returned, in the last stage.
        marks: What the gauge showed at the beginning, before and after each own block, and at the end.
    """

    def __init__(
        self,
        blocks: range,
        *,
        is_last: bool,
        incoming: torch.Tensor | None = None,
        watched: bool = False,
        gauge: Callable[[], Mark] | None = None,
    ) -> None:
        self.blocks = blocks
        self.is_last = is_last
        self.incoming = incoming
        self.watched = watched
        self.left = False
        self.next = 0
        self.stands_in: list[torch.Tensor] = []
        self.last_hidden: torch.Tensor | None = None
        self.marks: list[Mark] = []
        self._gauge = gauge

    def mark(self) -> None:
        """Note time and memory, in a measured pass."""
        if self._gauge is not None:
            self.marks.append(self._gauge())

    @property
    def entered(self) -> bool:
        """Whether an own block was called."""
        return self.next > self.blocks.start


class Passage:
    """Which stage runs now; every block of the model, own or not, asks it what to do.

    Args:
        draws: Random numbers of the stages.

    Attributes:
        values: How many values blocks return in a tuple (:attr:`BlockCall.values`).
    """

    def __init__(self, draws: CommonDraws) -> None:
        self.values = 0
        self._draws = draws
        self._run: Run | None = None

    @property
    def run(self) -> Run | None:
        """The pass that is under way."""
        return self._run

    @contextlib.contextmanager
    def running(self, run: Run) -> Generator[None, None, None]:
        """Context for one pass of a stage."""
        before, self._run = self._run, run
        try:
            yield
        finally:
            self._run = before
            run.incoming = None

    def call(self, number: int, block: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the model gets for the call of a block that this process has.

        Args:
            number: Number of the block.
            block: The block with its wrappers.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Raises:
            MethodRefusedError: The blocks are not called as a chain.
            LeftPass: The stage is done.
        """
        read = BlockCall.read(block, args, kwargs)
        if read is None:
            raise MethodRefusedError(f"{NO_CHAIN}, but block {number} is called without a tensor as its first argument")
        hidden, call = read
        run = self._at(number)
        if number not in run.blocks:
            return self._handed_on(run, hidden)
        return self._own(run, number, block, hidden, call)

    def skip(self, number: int, hidden: Any) -> Any:
        """What the model gets for the call of a block that another process has.

        Args:
            number: Number of the block.
            hidden: The hidden states that it is called with.

        Raises:
            MethodRefusedError: The blocks are not called as a chain.
        """
        if not isinstance(hidden, torch.Tensor):
            raise MethodRefusedError(f"{NO_CHAIN}, but block {number} is called without a tensor as its first argument")
        return self._handed_on(self._at(number), hidden)

    def _at(self, number: int) -> Run:
        """The pass under way, in which this block is due."""
        run = self._run
        if run is None:
            raise MethodRefusedError(
                "a model whose blocks are on several devices only runs inside of Training.step and Training.evaluate"
            )
        if number != run.next:
            raise MethodRefusedError(f"{NO_CHAIN}, but block {number} is called when block {run.next} is due")
        run.next += 1
        return run

    def _handed_on(self, run: Run, hidden: torch.Tensor) -> Any:
        """What a block before the stage returns: what it was given, because nobody but the next block looks at it."""
        if run.watched:
            hidden = hidden.detach()
            hidden = hidden.requires_grad_() if hidden.is_floating_point() else hidden
            run.stands_in.append(hidden)
        return as_returned(hidden, self.values)

    def _own(self, run: Run, number: int, block: torch.nn.Module, hidden: torch.Tensor, call: BlockCall) -> Any:
        if number == run.blocks.start:
            self._draws.begin_blocks()
            if run.incoming is not None:
                hidden, run.incoming = run.incoming, None
        run.mark()
        hidden = call.run(block, hidden)
        run.mark()
        self.values = call.values
        if number == run.blocks.stop - 1:
            self._draws.end_blocks()
            if not run.is_last:
                run.left = True
                raise LeftPass(hidden)
            if run.watched:
                hidden = hidden.view_as(hidden)  # a node of its own, to tell what comes after it
            run.last_hidden = hidden
        return as_returned(hidden, call.values)
