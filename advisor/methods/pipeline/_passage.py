"""One stage of a model, run through the model's own forward function and the user's own loss.

Blocks before the stage hand on what they are given, the last of them returns what came from the stage before, and an
exception leaves the forward function after the last own block, except in the last stage, which goes on to the loss.
What a model computes between two blocks is thus computed where the second of them is. Masks, positions and whatever
else it computes before its blocks is computed on every stage from the batch, so that only hidden states travel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._common_draws import CommonDraws
from advisor.methods.pipeline._leaves import is_made_from
from advisor.methods.pipeline._returned import Form, as_form, form_of, hidden_of
from advisor.training.block_call import BlockCall
from advisor.training.processes.cut import LeftPass

__all__ = ["Mark", "Passage", "Run"]

Mark = tuple[float, int]
"""Seconds on a clock, and bytes that live."""

_RULE = (
    "stages of a pipeline are made of blocks that take a tensor and return one, or one first, each called once, on "
    "what the one before it returned or on what is computed from that"
)


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
        forms: How its own blocks returned hidden states, in their order.
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
        self.forms: list[Form] = []
        # If watched: what the last block that was called has returned, and what the first own block was given.
        self.returned: torch.Tensor | None = None
        self.given: torch.Tensor | None = None
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
        forms: Number of a block -> how it returns hidden states.
        usual: How blocks do of which that is not known.
        is_written: Whether an own block, or what precedes it, writes to what came from the stage before.
    """

    def __init__(self, draws: CommonDraws) -> None:
        self.forms: dict[int, Form] = {}
        self.usual: Form = None
        self.is_written = False
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
            raise MethodRefusedError(f"{_RULE}, but block {number} is called without a tensor as its first argument")
        hidden, call = read
        run = self._at(number, hidden)
        if number not in run.blocks:
            return self._handed_on(run, number, hidden)
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
            raise MethodRefusedError(f"{_RULE}, but block {number} is called without a tensor as its first argument")
        return self._handed_on(self._at(number, hidden), number, hidden)

    def require_known(self, run: Run) -> None:
        """Require that the own blocks returned what other stages take for granted.

        Raises:
            MethodRefusedError: They did not.
        """
        for number, form in zip(run.blocks, run.forms, strict=True):
            if self.forms.get(number, form) != form:
                raise MethodRefusedError(
                    f"a stage of a pipeline must return as many values in every step, but block {number} returned "
                    "others than in the first one"
                )

    def _at(self, number: int, hidden: torch.Tensor) -> Run:
        """The pass under way, in which this block is due."""
        run = self._run
        if run is None:
            raise MethodRefusedError(
                "a model whose blocks are on several devices only runs inside of Training.step and Training.evaluate"
            )
        if number != run.next:
            raise MethodRefusedError(f"{_RULE}, but block {number} is called when block {run.next} is due")
        run.next += 1
        before, run.returned = run.returned, None
        if before is not None and before.requires_grad and not is_made_from(hidden, before):
            raise MethodRefusedError(
                f"{_RULE}, but what block {number} is called on does not depend on what block {number - 1} returned"
            )
        return run

    def _handed_on(self, run: Run, number: int, hidden: torch.Tensor) -> Any:
        """What a block before the stage returns: what came from the stage before, or what it was given."""
        if number == run.blocks.start - 1 and run.incoming is not None:
            hidden, run.incoming = run.incoming, None
        elif run.watched:
            hidden = hidden.detach()
            if hidden.is_floating_point():
                # Other values than in passes that are not watched: what a stage computes must not depend on them.
                hidden = (0.7 - 1.3 * hidden).requires_grad_()
            run.stands_in.append(hidden)
        if run.watched or (self.is_written and number == run.blocks.start - 1):
            hidden = hidden.clone()  # The model may write to what its own blocks returned, but not to a leaf.
        if run.watched:
            run.returned = run.given = hidden
        return as_form(hidden, self.forms.get(number, self.usual), number)

    def _own(self, run: Run, number: int, block: torch.nn.Module, hidden: torch.Tensor, call: BlockCall) -> Any:
        if number == run.blocks.start:
            self._draws.begin_blocks()
        run.mark()
        output = call.output(block, hidden)
        run.mark()
        given, run.given = run.given, None
        self.is_written |= given is not None and given._version > 0
        found = hidden_of(output)
        if found is None:
            raise MethodRefusedError(f"{_RULE}, but {type(block).__name__} returns a {type(output).__name__}")
        run.forms.append(form_of(output))
        if number == run.blocks.stop - 1:
            self._draws.end_blocks()
            if not run.is_last:
                run.left = True
                raise LeftPass(found)
            if run.watched:
                found = found.view_as(found)  # a node of its own, to tell what comes after it
            run.last_hidden = found
        if run.watched:
            run.returned = found
        return found if run.forms[-1] is None else (found, *output[1:])
