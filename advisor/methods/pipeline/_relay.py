"""Run a function that calls the model once, on one stage after another: to evaluate, and to find out shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch

from advisor.errors import DeviceOutOfMemoryError, MethodRefusedError, StageLostError, UserError
from advisor.methods.pipeline._passage import Mark, Run
from advisor.methods.pipeline._returned import Form
from advisor.methods.pipeline._stage_ranks import PipelineRanks
from advisor.methods.pipeline._stages import Stages
from advisor.training.out_of_memory import is_of_cpu_allocator, is_out_of_memory

__all__ = ["Handed", "Relay"]


@dataclass
class Handed:
    """What a stage returned, as every rank knows it.

    Attributes:
        left: Whether these are hidden states for the next stage.
        shape: Their shape.
        dtype: Their format.
        requires_grad: Whether they depend on something that is trained.
        forms: How the stage's blocks returned them.
        drew: Whether the pass drew random numbers.
        marks: As the pass began, each block began and ended, and the pass ended, if it was measured.
        error: The class and the text of an error that the stage raised.
        is_users: Whether that is an error that the user can fix.
        is_memory: Whether the stage's device ran out of memory.
    """

    left: bool = False
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    requires_grad: bool = False
    forms: tuple[Form, ...] = ()
    drew: bool = False
    marks: tuple[Mark, ...] = ()
    error: str = ""
    is_users: bool = False
    is_memory: bool = False

    def like(self, device: torch.device) -> torch.Tensor:
        """Memory for the same."""
        return torch.empty(self.shape, dtype=self.dtype, device=device).requires_grad_(self.requires_grad)


class Relay:
    """Runs stages in their order, each on what the one before it returned.

    Args:
        stages: The stages of this rank.
        ranks: The ranks of the pipeline.

    Attributes:
        ranks: Those ranks.
    """

    def __init__(self, stages: Stages, ranks: PipelineRanks) -> None:
        self._stages = stages
        self.ranks = ranks

    def run(
        self,
        function: Callable[[], Any],
        *,
        number: int,
        watched: bool = False,
        gauge: Callable[[], Mark] | None = None,
        seen: Callable[[int, Run, Any], None] | None = None,
    ) -> tuple[list[Handed], Any]:
        """Run a function that calls the model once.

        Args:
            function: The function.
            number: Number of the pass, which the random numbers depend on.
            watched: Whether to note what is used elsewhere than it may be.
            gauge: Measures the pass.
            seen: Called with every own stage, its pass and what it returned.

        Returns:
            What each stage returned, in outline; and what the last one returned, on its rank.

        Raises:
            DeviceOutOfMemoryError: Another stage ran out of memory.
            StageLostError: Another stage raised an error.
        """
        stages, ranks = self._stages, self.ranks
        handed: list[Handed] = []
        incoming: torch.Tensor | None = None
        value: Any = None
        for stage in range(stages.count):
            failure: BaseException | None = None
            own = Handed()
            if stage in stages.own:
                run = stages.new_run(stage, incoming, watched=watched, gauge=gauge)
                try:
                    value, own = self._of_stage(run, stage, number, function)
                    if seen is not None:
                        seen(stage, run, value)
                    own.drew, own.marks = stages.draws.drew, tuple(run.marks)
                except Exception as error:
                    failure = error
                    own = Handed(
                        error=f"{type(error).__name__}: {error}",
                        is_users=isinstance(error, UserError),
                        is_memory=self._is_memory(error),
                    )
            own = Handed(*ranks.told(astuple(own), by=ranks.owners[stage]))
            if failure is not None:
                raise failure
            _require(own, stage, stages.count)
            stages.passage.forms |= dict(zip(stages.blocks_of(stage), own.forms, strict=False))
            handed.append(own)
            if stage < stages.count - 1:
                incoming = self._passed_on(stage, value, own)
        return handed, value if stages.count - 1 in stages.own else None

    def any_rank(self, condition: bool) -> bool:
        """Whether it holds on any rank."""
        return any(self.ranks.told_by_all(condition))

    def _is_memory(self, error: Exception) -> bool:
        """Whether the device ran out of memory, not the host beside it."""
        of_host = isinstance(error, MemoryError) or (self.ranks.device.type != "cpu" and is_of_cpu_allocator(error))
        return is_out_of_memory(error) and not of_host

    def _of_stage(self, run: Run, stage: int, number: int, function: Callable[[], Any]) -> tuple[Any, Handed]:
        left, value = self._stages.run(run, stage, number, function)
        own = Handed(left=left, forms=tuple(run.forms))
        if isinstance(value, torch.Tensor):
            own.shape, own.dtype, own.requires_grad = tuple(value.shape), value.dtype, value.requires_grad
        return value, own

    def _passed_on(self, stage: int, value: Any, handed: Handed) -> torch.Tensor | None:
        """The hidden states of a stage on the rank of the next one."""
        ranks = self.ranks
        sender, receiver = ranks.owners[stage], ranks.owners[stage + 1]
        if sender == receiver == ranks.rank:
            got: torch.Tensor = value.detach()
        elif ranks.rank == sender:
            ranks.send(value, receiver)
            return None
        elif ranks.rank == receiver:
            with torch.no_grad():
                got = ranks.receive(torch.empty(handed.shape, dtype=handed.dtype, device=ranks.device), sender)
        else:
            return None
        return got.requires_grad_(handed.requires_grad and torch.is_grad_enabled())


def _require(handed: Handed, stage: int, count: int) -> None:
    """Require that a stage did its part.

    Raises:
        DeviceOutOfMemoryError: It ran out of memory: every rank must stop at the same batch.
        MethodRefusedError: It raised an error that the user can fix, or never called its blocks.
        StageLostError: It raised another one.
    """
    if handed.is_memory:
        raise DeviceOutOfMemoryError(
            f"every stage of a pipeline must fit into the memory of its device, but stage {stage} raised {handed.error}"
        )
    if handed.error:
        text = f"every stage of a pipeline must compute its part of the loss, but stage {stage} raised {handed.error}"
        raise MethodRefusedError(text) if handed.is_users else StageLostError(text)
    if handed.left is (stage == count - 1):
        raise MethodRefusedError(
            f"every stage of a pipeline must call its blocks, but the loss of stage {stage} did not; compute_loss must "
            "call the model that it is given"
        )
