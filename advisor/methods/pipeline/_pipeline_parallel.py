"""A model whose blocks are in stages on the ranks of a pipeline, as a training uses it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._common_draws import CommonDraws
from advisor.methods.pipeline._copies import Copies
from advisor.methods.pipeline._measured_cut import measured_cut
from advisor.methods.pipeline._micro_batch_kinds import kind_of_all
from advisor.methods.pipeline._output import told_output
from advisor.methods.pipeline._outside import empty_parameters
from advisor.methods.pipeline._passage import Passage
from advisor.methods.pipeline._places import drop_other_blocks, put_links
from advisor.methods.pipeline._relay import Handed, Relay
from advisor.methods.pipeline._schedules import Schedule, holding_what_is_sent, schedule_of
from advisor.methods.pipeline._stage_ranks import PipelineRanks
from advisor.methods.pipeline._stage_rehearsal import Rehearsal
from advisor.methods.pipeline._stage_state import PlainNames, StageState
from advisor.methods.pipeline._stages import StageModule, Stages, torch_stage, unraised_cause
from advisor.methods.pipeline._traced_rehearsal import TracedRehearsal
from advisor.methods.pipeline.balance import Costs, even, require_bounds
from advisor.methods.pipeline.schedule_rules import stages_of_rank, stages_per_rank

__all__ = ["PipelineParallel"]

_T = TypeVar("_T")
Finish = Callable[[Any, torch.Tensor, bool], tuple[torch.Tensor, torch.Tensor]]
"""``(micro-batch, what a stage returned, whether it is the last) -> (what goes on, the share of the loss)``."""


class PipelineParallel:
    """The blocks of one model, distributed in place over the ranks of a group.

    Parameters and buffers become those of the group's first rank. Blocks of other ranks are dropped at once, so a model
    may be given in host memory that is too large for a device. Methods that wrap blocks come afterwards. The first step
    finds out, in passes of its own, what every stage needs besides its blocks.

    Naive model parallelism is ``gpipe`` with one micro-batch.

    Args:
        model: The whole model, on any device.
        blocks: Its blocks in their order, each called once, on what the one before it returned.
        group: The ranks of the pipeline; its timeout is how long they wait for each other.
        schedule: One of :data:`~advisor.methods.pipeline.schedule_rules.SCHEDULES`.
        bounds: The first block of every stage, then the number of blocks; default: as many in each.
        device: Where the stages compute.
        place: Of this process among those that have the same stage but draw other random numbers in its blocks.

    Attributes:
        bounds: The first block of every stage, then the number of blocks.
        own: Numbers of the stages of this rank.
        state: Gathers and picks states; exists once the pipeline is set up.

    Raises:
        MethodRefusedError: There are fewer blocks than stages.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        group: dist.ProcessGroup,
        *,
        schedule: str,
        bounds: Sequence[int] | None = None,
        device: torch.device | None = None,
        place: str = "",
    ) -> None:
        device = device or torch.device("cpu")
        size = dist.get_world_size(group)
        count = size * stages_per_rank(schedule)
        self.bounds = tuple(bounds or even(len(blocks), count))
        require_bounds(self.bounds, count, len(blocks))
        owners = {stage: rank for rank in range(size) for stage in stages_of_rank(schedule, rank, size)}
        self._ranks = PipelineRanks(group, device, [owners[stage] for stage in range(count)])
        self.own = stages_of_rank(schedule, self._ranks.rank, size)
        self._schedule_name = schedule
        self._device = device
        self._names = PlainNames(model, blocks)
        self._is_trace = dist.get_backend(group) == "fake"
        self._trained = [any(one.requires_grad for one in block.parameters()) for block in blocks]
        if not self._is_trace:
            self._agree(model)
        self._draws = CommonDraws(device, place)
        passage = Passage(self._draws)
        numbers = [n for stage in self.own for n in range(self.bounds[stage], self.bounds[stage + 1])]
        self._own_blocks = {number: blocks[number] for number in numbers}
        drop_other_blocks(model, blocks, set(numbers), passage)
        self.model = model
        self._stages = Stages(model, self.bounds, self.own, passage, self._draws)
        self._relay = Relay(self._stages, self._ranks)
        self._linked = False
        self._costs: Costs | None = None
        self._copies: Copies | None = None
        self._emptied: set[str] = set()
        self._late: set[str] = set()
        self._handed: dict[Any, list[Handed]] = {}
        self._schedule: tuple[Any, Schedule] | None = None
        self._computed: Callable[[int, torch.Tensor | None, int], torch.Tensor] = _outside_of_steps
        self._passes = self._micro_batches = 0
        self._complete = True

    def step(
        self,
        micro_batches: Sequence[Any],
        compute: Callable[[Any], torch.Tensor],
        *,
        finish: Finish | None = None,
        may_empty: bool = True,
    ) -> torch.Tensor:
        """Compute the gradients of a batch, by the schedule.

        Args:
            micro_batches: The micro-batches; the same on every rank, all of the same shapes.
            compute: The loss of a micro-batch, from calling the model.
            finish: What follows in a step, but not where a pass only shows what a stage needs; what it returns first
                has the gradients, and what it returns second adds up to the loss of the batch.
            may_empty: Whether parameters that no stage of this rank needs may be emptied, in the first step.

        Returns:
            The loss of the batch, detached, on every rank.

        Raises:
            MethodRefusedError: The model, or its loss, cannot be cut where it is.
            WorkloadError: The micro-batches have different shapes.
            StageLostError: Another rank failed, ended, or did not answer in time.
        """
        kind = kind_of_all(micro_batches)
        self._put_links()
        self._rehearse(kind, lambda: compute(micro_batches[0]), may_empty=may_empty)
        finish = finish or (lambda micro_batch, value, is_last: (value, value))
        losses: list[torch.Tensor] = []

        def computed(stage: int, incoming: torch.Tensor | None, number: int) -> torch.Tensor:
            micro_batch, is_last = micro_batches[number], stage == self._stages.count - 1
            value = self._pass(stage, incoming, number, lambda: compute(micro_batch))
            value, share = finish(micro_batch, value, is_last)
            if is_last:
                losses.append(share.detach())
            output = value.reshape(1) if is_last else value.contiguous()
            return output.clone() if output._is_view() else output  # A view could not be detached.

        self._computed = computed
        numbers = torch.arange(len(micro_batches))
        try:
            held = holding_what_is_sent() if self._is_trace else contextlib.nullcontext()
            with held, self._ranks.waiting(), unraised_cause():
                self._scheduled(kind, len(micro_batches)).step(
                    *((numbers,) if 0 in self.own else ()),
                    number=numbers,
                    target=numbers if self._stages.count - 1 in self.own else None,
                    return_outputs=False,
                )
        except BaseException:
            self._schedule = None  # It holds what is left of the failed step.
            raise
        finally:
            self._computed = _outside_of_steps
        self._passes += len(micro_batches)
        self._micro_batches = len(micro_batches)
        self._complete = False
        total = torch.zeros((), dtype=self._handed[kind][-1].dtype, device=self._device)
        if losses:
            total = torch.stack([loss.reshape(()) for loss in losses]).sum().to(total.dtype)
        with self._ranks.waiting():
            dist.broadcast(total, group=self._ranks.group, group_src=self._ranks.owners[-1])
        return total

    def evaluate(self, function: Callable[[nn.Module], _T]) -> _T:
        """``function(model)``, where every call of the model runs through all stages; every rank must call it.

        The model's output is sent to all ranks, so that the function returns the same on each.

        Raises:
            MethodRefusedError: The function runs blocks other than by calling the model.
            StageLostError: Another rank failed, ended, or did not answer in time.
        """
        self._put_links()
        model = self.model
        before = vars(model).get("forward")
        original = model.forward
        passage = self._stages.passage
        forms = dict(passage.forms)  # Without gradients, blocks may return other values.

        def forward(*args: Any, **kwargs: Any) -> Any:
            self._passes += 1
            _, value = self._relay.run(lambda: original(*args, **kwargs), number=self._passes)
            return told_output(value, self._ranks)

        model.forward = forward
        try:
            return function(model)
        finally:
            if before is None:
                del model.forward
            else:
                model.forward = before
            passage.forms = forms

    def complete_gradients(self) -> None:
        """Sum the gradients of parameters that several stages have; a second call in a step does nothing."""
        if not self._complete:
            assert self._copies is not None, "a step has been made"
            self._copies.sum_gradients(self._names.of(self.model))
        self._complete = True

    def after_step(self) -> None:
        """Make the copies of parameters that several stages have the same again, once an optimizer has stepped."""
        if self._copies is not None:
            self._copies.agree(self._names.of(self.model))

    def measured_bounds(self, held_bytes: Callable[[nn.Parameter], int], limit: int | None) -> tuple[int, ...] | None:
        """Where the model is best cut, after a step whose blocks were measured; ``None`` after any other.

        Args:
            held_bytes: What is held of a parameter: values, gradient, optimizer state.
            limit: The most bytes that a rank may take, if known.
        """
        costs, self._costs = self._costs, None
        if costs is None:
            return None
        return measured_cut(self.model, costs, self._ranks, self._schedule_name, self._micro_batches, held_bytes, limit)

    def copies(self, parameter: nn.Parameter) -> int:
        """How many ranks of the pipeline have this parameter, with the same gradient."""
        if self._copies is None:
            return 1
        name = next((name for name, own in self._names.of(self.model).items() if own is parameter), "")
        return self._copies.count(name)

    @property
    def state(self) -> StageState:
        """Gathers what all ranks hold, and picks what this one holds."""
        return StageState(self._names, self._ranks, self.model, self._owner, self._emptied)

    def _owner(self, name: str) -> int:
        """The rank whose value of an entry of the state is the model's."""
        first = self._names.first(name)
        number = self._names.block_of(first)
        if number is not None:
            stage = next(s for s in range(self._stages.count) if number in self._stages.blocks_of(s))
            return self._ranks.owners[stage]
        if name in self._late:
            return self._ranks.owners[-1]
        return 0 if self._copies is None else self._copies.owner(first)

    def _agree(self, model: nn.Module) -> None:
        """Give every rank the parameters and buffers of the first, one at a time: the device never holds the whole."""
        with self._ranks.waiting():
            for tensor in (*model.parameters(), *model.buffers()):
                own = tensor.detach()
                sent = own.to(self._device).contiguous()
                dist.broadcast(sent, group=self._ranks.group, group_src=0)
                if sent.data_ptr() != own.data_ptr():
                    own.copy_(sent)

    def _put_links(self) -> None:
        if not self._linked:
            put_links(self.model, self._own_blocks, self._stages.passage)
            self._own_blocks = {}
            self._linked = True

    def _rehearse(self, kind: Any, function: Callable[[], torch.Tensor], *, may_empty: bool) -> None:
        """Find out the shapes of micro-batches of a new kind and, the first time, what every stage needs."""
        if kind in self._handed:
            return
        rehearsal: Rehearsal | TracedRehearsal
        if self._is_trace:
            rehearsal = TracedRehearsal(self._stages, self._ranks.owners, self._device, self._trained)
        else:
            rehearsal = Rehearsal(self._stages, self._relay, self._device)
        if self._copies is None:
            self._learn(rehearsal, function, may_empty=may_empty)
        else:
            rehearsal.run(function)
        self._handed[kind] = rehearsal.handed

    def _learn(
        self, rehearsal: Rehearsal | TracedRehearsal, function: Callable[[], torch.Tensor], *, may_empty: bool
    ) -> None:
        if not self._is_trace:
            self._draws.base = self._ranks.told(int(torch.randint(2**31, ())), by=0)
        rehearsal.learn(function)
        if self._schedule_name == "zero_bubble":
            rehearsal.require_split()
        self._draws.are_made = rehearsal.drew
        self._costs = rehearsal.costs()
        parameters = self._names.of(self.model)
        users = rehearsal.users(parameters)
        trained = [name for name in self._names.parameters if any(name in names for names in users)]
        trained = [n for n in trained if n not in parameters or parameters[n].requires_grad]
        self._copies = Copies(self._ranks, users, trained)
        self._late = rehearsal.late_buffers()
        if may_empty:
            # What nobody uses stays with the first rank.
            kept = set() if self._ranks.rank else set(self._names.parameters).difference(*users)
            modules = [one.module for one in rehearsal.not_needed]
            self._emptied = empty_parameters(self.model, modules, parameters, keep=kept)

    def _scheduled(self, kind: Any, count: int) -> Schedule:
        """The schedule of a step; the last one is kept, with the memory that it receives in."""
        if self._schedule is None or self._schedule[0] != (kind, count):
            handed = self._handed[kind]
            self._schedule = None
            stages = []
            own = weakref.proxy(self)  # A cycle would keep the model's memory until the next garbage collection.
            for index in self.own:
                module = StageModule(self.model, index, lambda *given: own._computed(*given), count)
                given = handed[index - 1].like(self._device) if index else torch.zeros(1, dtype=torch.int64)
                is_last = index == self._stages.count - 1
                made = torch.empty(1, dtype=handed[index].dtype) if is_last else handed[index].like(self._device)
                stages.append(torch_stage(module, self._stages.count, self._ranks.group, self._device, given, made))
            self._schedule = (kind, count), schedule_of(self._schedule_name, stages, count)
        return self._schedule[1]

    def _pass(
        self, stage: int, incoming: torch.Tensor | None, number: int, function: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        """One stage of one micro-batch.

        Raises:
            MethodRefusedError: The function does not call the model.
        """
        run = self._stages.new_run(stage, incoming)
        left, value = self._stages.run(run, stage, self._passes + number, function)
        if left is (stage == self._stages.count - 1):
            raise MethodRefusedError(
                "every stage of a pipeline must call its blocks in every step, but the loss did not; compute_loss must "
                "call the model that it is given"
            )
        self._stages.passage.require_known(run)
        output: torch.Tensor = value
        return output


def _outside_of_steps(stage: int, incoming: torch.Tensor | None, number: int) -> torch.Tensor:
    raise AssertionError("stages run inside of a step")
