"""The stages that one rank runs of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.pipelining import PipelineStage

from advisor.methods.pipeline._common_draws import CommonDraws
from advisor.methods.pipeline._passage import Mark, Passage, Run
from advisor.training.processes.cut import LeftPass

__all__ = ["StageModule", "Stages", "torch_stage", "unraised_cause"]


class Stages:
    """Runs a model's own code as one of its stages.

    Args:
        model: The model, without the blocks of other ranks.
        bounds: The first block of every stage of the pipeline, then the number of blocks.
        own: Numbers of the stages of this rank.
        passage: Which stage runs now.
        draws: Random numbers of the stages.
    """

    def __init__(
        self, model: nn.Module, bounds: Sequence[int], own: Sequence[int], passage: Passage, draws: CommonDraws
    ) -> None:
        self.model = model
        self.bounds = tuple(bounds)
        self.own = tuple(own)
        self.passage = passage
        self.draws = draws

    @property
    def count(self) -> int:
        """Stages of the whole pipeline."""
        return len(self.bounds) - 1

    def blocks_of(self, stage: int) -> range:
        """Numbers of the blocks of a stage."""
        return range(self.bounds[stage], self.bounds[stage + 1])

    def new_run(
        self,
        stage: int,
        incoming: torch.Tensor | None,
        *,
        watched: bool = False,
        gauge: Callable[[], Mark] | None = None,
    ) -> Run:
        """A pass of a stage, to be run."""
        is_last = stage == self.count - 1
        return Run(self.blocks_of(stage), is_last=is_last, incoming=incoming, watched=watched, gauge=gauge)

    def run(self, run: Run, stage: int, number: int, function: Callable[[], Any]) -> tuple[bool, Any]:
        """Run a function that calls the model.

        Args:
            run: From :meth:`new_run`.
            stage: Number of the stage.
            number: Number of the pass, the same in all stages.
            function: The function.

        Returns:
            Whether it was left after the last own block, and what that block returned; otherwise what it returned.
        """
        with self.draws.passing(stage, number), self.passage.running(run):
            run.mark()
            try:
                value = function()
            except LeftPass as left:
                value = left.hidden
                left.__traceback__ = None  # The way through the user's frames keeps alive what they hold.
            run.mark()
        return run.left, value


class StageModule(nn.Module):
    """A stage as torch's schedules call it.

    Args:
        model: The model that the stages of this rank share.
        index: Number of the stage.
        compute: ``(stage, hidden states from the stage before, number of the micro-batch) -> output``.
        micro_batches: Micro-batches of a step.
    """

    def __init__(
        self,
        model: nn.Module,
        index: int,
        compute: Callable[[int, torch.Tensor | None, int], torch.Tensor],
        micro_batches: int,
    ) -> None:
        super().__init__()
        self.model = model
        self.index = index
        self._compute = compute
        self._micro_batches = micro_batches
        self._called = 0

    def forward(self, incoming: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """What the stage sends on, or the loss as one element."""
        # In a trace it has no value, but every schedule takes micro-batches in their order.
        which = self._called % self._micro_batches if isinstance(number, FakeTensor) else int(number)
        self._called += 1
        return self._compute(self.index, _Received.apply(incoming) if self.index else None, which)  # type: ignore[no-untyped-call]


class _Received(torch.autograd.Function):
    """Hidden states as they came; their gradient is sent back, for which its elements must follow on each other."""

    @staticmethod
    def forward(ctx: Any, incoming: torch.Tensor) -> torch.Tensor:
        return incoming.view_as(incoming)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].contiguous()


def torch_stage(
    module: StageModule,
    count: int,
    group: Any,
    device: torch.device,
    given: torch.Tensor,
    made: torch.Tensor,
) -> PipelineStage:
    """A stage whose shapes are known, so that torch need not find them out in a pass of its own.

    Args:
        module: The stage.
        count: Stages of the pipeline.
        group: The ranks.
        device: Where they compute.
        given: What the stage gets for a micro-batch; only its shape, format and need of a gradient count.
        made: What it returns.
    """
    return PipelineStage(module, module.index, count, device, input_args=given, output_args=made, group=group)


@contextlib.contextmanager
def unraised_cause() -> Any:
    """Torch's schedules wrap every error of a stage in one that describes arguments: raise what the stage raised."""
    try:
        yield
    except RuntimeError as error:
        if error.__cause__ is not None and "failed to run" in str(error).lower():
            raise error.__cause__ from None
        raise
