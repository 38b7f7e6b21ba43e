"""One training step of an applied policy without memory: fake tensors, from building the model to the second step.

The optimizer makes its state in the first step, so that only the second one is like all that follow.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from advisor.measure.memory.meter import listening
from advisor.measure.memory.storages import tensors_in, view_bytes
from advisor.predict.prediction import Affine, Category
from advisor.predict.step_work import Work
from advisor.predict.trace.engine_sums import EngineSums
from advisor.predict.trace.operator_work import as_on_cuda
from advisor.predict.trace.scratch import Call
from advisor.predict.trace.side_by_side import side_by_side
from advisor.predict.trace.storage_log import LoggedCall, StorageLog
from advisor.predict.trace.work_counter import WorkCounter
from advisor.training.moving import listening_to_moves, moved_tensors, replace_tensors
from advisor.training.training import Phase, Training

__all__ = ["StepTrace", "faked", "faked_model", "trace_steps", "with_scratch"]


class StepTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What was allocated and freed in one step.

    Attributes:
        micro_batch: Samples per pass.
        events: ``(number of the storage, bytes)`` from the beginning of everything; see :class:`StorageLog`.
        begin: Index of the first event of the step; those before it made what lives when it begins.
        moved: Index of the first event after the model was on the device; before it nothing of the policy was applied.
        marks: ``(index of the first event, phase)``, in order; the first is the beginning.
        categories: Of storages that are no activations or temporaries.
        operators: Of every storage.
        batch_bytes: The batch itself where it is not among the events, because it is on the device already.
        notes: What the methods said.
        calls: As in :class:`StorageLog`, of the step; empty once their workspace is among the events.
        workspace_calls: As there, from the beginning of everything.
        products: Indices of the first events after the first product of matrices in each pass.
        works: The work of the step, if it was counted; ``None`` also if it has copies between host and device, which
            are no copies here.
    """

    micro_batch: int
    events: list[tuple[int, int]]
    begin: int
    marks: list[tuple[int, Phase]]
    categories: dict[int, Category]
    operators: list[str]
    batch_bytes: int
    notes: tuple[str, ...]
    calls: list[tuple[int, Call, int]]
    workspace_calls: list[LoggedCall] = msgspec.field(default_factory=list)
    products: list[int] = msgspec.field(default_factory=list)
    moved: int = 0
    works: list[Work] | None = None


def trace_steps(
    build: Callable[[], Training],
    batches: Sequence[tuple[int, Any]],
    *,
    device: torch.device,
    mode: FakeTensorMode,
    stands_for_another: bool = False,
    counts_work: bool = False,
) -> list[StepTrace]:
    """Trace a step at each of some micro-batches, all of one training, with the optimizer's state there.

    Args:
        build: Builds the model and applies the policy; called under ``mode``.
        batches: Micro-batches, and what a step is given: fake tensors of ``mode``. Several only where nothing but the
            optimizer keeps anything from one step to the next.
        device: Whose memory is followed.
        mode: Makes the tensors fake.
        stands_for_another: See :class:`StorageLog`; the work is then counted, too.
        counts_work: Whether it is for the device itself.

    Raises:
        Exception: Whatever the model or a method raises under fake tensors, such as for reading a value.
    """
    log = StorageLog(device, stands_for_another=stands_for_another)
    log.ignore([batch for _, batch in batches])

    def move(model: torch.nn.Module) -> None:
        if stands_for_another:  # where the model is made, which is the host there
            log.begin_with(moved_tensors(model))
        log.moved = len(log.events)

    with mode, log, EngineSums():
        with listening_to_moves(move):
            training = build()
        try:
            made = _states_made_alone(training) if len(batches) > 1 else None
            if made is None:
                for _ in range(1 + training.settling_steps):
                    training.step(batches[0][1])

            def trace(micro_batch: int, batch: Any) -> StepTrace:
                if len(batches) > 1:
                    training.micro_batch = micro_batch
                found, used = _trace(training, log, micro_batch, batch, counts_work=counts_work)
                state = training.optimizer.state
                if unused := [one for one in made or () if id(one) not in used and one in state]:
                    for parameter in unused:
                        del state[parameter]  # a true step would never have made it
                    found, _ = _trace(training, log, micro_batch, batch, counts_work=counts_work)
                return found

            if len(batches) != 2 or made is None:
                return [trace(*each) for each in batches]
            one, other = batches
            first, second = side_by_side(functools.partial(trace, *one), lambda: _after_a_pass(training, trace, *other))
            if _is_steady(first) and _is_steady(second):
                return [first, second]
            return [first, trace(*other)]  # what the first has left behind shows in this one
        finally:
            training.close()


def _after_a_pass(
    training: Training, trace: Callable[[int, Any], StepTrace], micro_batch: int, batch: Any
) -> StepTrace:
    """The trace of a step that is not the model's first, as the other one is.

    What a model makes only once, or keeps, then makes the two differ, as they do one after the other.
    """
    training.micro_batch = micro_batch
    for part in training.split(batch):
        training.forward(part)
    return trace(micro_batch, batch)


def _is_steady(trace: StepTrace) -> bool:
    """Whether a step has left as much memory as it found."""
    return sum(size for _, size in trace.events[trace.begin :]) == 0


def _states_made_alone(training: Training) -> list[torch.Tensor] | None:
    """Let the optimizer make its state from gradients that no pass has made: a third of the time of a trace.

    Returns:
        The parameters that got a state; ``None`` where it cannot, and nothing is changed.
    """
    if training.settling_steps or training.gradient_scaler is not None or training.steps_in_backward:
        return None
    optimizer = training.optimizer
    before = dict(optimizer.state)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    try:
        training.optimizer_step()
    except Exception:  # one that takes no dense gradients, say; what else is wrong is told by a true step
        optimizer.state.clear()
        optimizer.state.update(before)
        return None
    finally:
        optimizer.zero_grad(set_to_none=True)
    return [parameter for parameter in optimizer.state if parameter not in before]


def _trace(
    training: Training, log: StorageLog, micro_batch: int, batch: Any, *, counts_work: bool
) -> tuple[StepTrace, set[int]]:
    """The trace, and the identities of the parameters that got a (dense) gradient."""
    used: set[int] = set()
    marks: list[tuple[int, Phase]] = []
    categories: dict[int, Category] = {}
    counter = WorkCounter()
    _name(log, [dict(state) for state in training.optimizer.state.values()], categories, Category.OPTIMIZER_STATE)
    _name(log, list(training.model.buffers()), categories, Category.BUFFERS)
    _name(log, list(training.model.parameters()), categories, Category.PARAMETERS)
    gc.collect()  # what only a reference cycle holds is no memory of the step
    begin = len(log.events)

    def listen(phase: Phase) -> None:
        counter.phase = phase
        log.look_again()
        if phase is Phase.OPTIMIZER:
            gradients = [(parameter, parameter.grad) for parameter in training.model.parameters()]
            used.update(id(one) for one, gradient in gradients if gradient is not None and not gradient.is_sparse)
            for number in log.add([gradient for _, gradient in gradients]):
                categories.setdefault(number, Category.GRADIENTS)
        marks.append((len(log.events), phase))

    counts = counts_work or log.stands_for_another
    counting: contextlib.AbstractContextManager[Any] = counter if counts else contextlib.nullcontext()
    with counting, EngineSums(), listening(training, listen):
        training.step(batch)
    log.look_again()
    # Each pass copies its share to a device, which the log sees.
    copied = log.device != "cpu" or log.stands_for_another
    batch_bytes = 0 if copied else view_bytes(tensors_in(batch))
    works = None
    if counts and not log.uses_host:
        works = [as_on_cuda(work) if log.stands_for_another else work for work in counter.works]
    trace = StepTrace(
        micro_batch=micro_batch,
        events=list(log.events),
        begin=begin,
        marks=marks,
        categories=categories,
        operators=list(log.operators),
        batch_bytes=batch_bytes,
        notes=tuple(training.notes),
        calls=[call for call in log.calls if call[0] >= begin],
        workspace_calls=list(log.workspace_calls),
        products=sorted(log.products.values()),
        moved=log.moved,
        works=works,
    )
    return trace, used


def with_scratch(trace: StepTrace, scratch: Mapping[Call, Affine]) -> StepTrace:
    """The trace with the workspace of operators, freed before their results are allocated."""
    inserted: dict[int, list[tuple[int, int]]] = {}
    operators = list(trace.operators)
    for index, call, batch in trace.calls:
        size = round(scratch[call].at(batch))
        if size:
            inserted.setdefault(index, []).append((len(operators), size))
            operators.append(f"inside {call.operator}")
    events: list[tuple[int, int]] = []
    moved = []
    for index in range(len(trace.events) + 1):
        moved.append(len(events))
        for number, size in inserted.get(index, ()):
            events += [(number, size), (number, -size)]
        events += trace.events[index : index + 1]
    # A phase that begins where an operator does has that operator in it.
    marks = [(moved[index], phase) for index, phase in trace.marks]
    return msgspec.structs.replace(trace, events=events, marks=marks, operators=operators, calls=[])


def faked(tree: Any, mode: FakeTensorMode) -> Any:
    """The same with fake tensors."""
    return tree_map_only(torch.Tensor, mode.from_tensor, tree)


def faked_model(model: torch.nn.Module, mode: FakeTensorMode) -> torch.nn.Module:
    """The model with fake parameters and buffers in the places of real ones; what is shared stays shared."""
    with mode:
        replace_tensors(
            model, lambda one: torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=one.device)
        )
    return model


def _name(log: StorageLog, tree: Any, categories: dict[int, Category], category: Category) -> None:
    for number in log.add(tree):
        categories[number] = category
