"""PREDICT: the memory of a policy at every batch, from two traces on fake tensors."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable

import msgspec
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils._python_dispatch import _disable_current_modes

from advisor.errors import MethodRefusedError, WorkloadError
from advisor.methods.training import Training
from advisor.policy.apply import apply_policy
from advisor.predict.envelope import are_alike, predict_aligned, predict_fitted
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.predict.reserved import allocation_log, reserved
from advisor.predict.scratch import measured_scratch
from advisor.predict.standing_for import cublas_workspace_bytes, standing_for
from advisor.predict.step_trace import StepTrace, faked, faked_model, trace_step, with_scratch
from advisor.trial.bench import Bench

__all__ = ["predict", "traced_batches"]


class _CannotTraceError(Exception):
    """The policy cannot be traced, for a reason that is the model's or a method's."""


def traced_batches(around: int) -> tuple[int, int]:
    """Two micro-batches to trace for predictions around one: it and its half, but never a single sample.

    A single sample is a case of its own to many a model, and two points are needed. A trace costs the same at every
    batch, so that they lie where the prediction is wanted: what is taken in pieces of a fixed size (a loss in chunks,
    activations that are coded) grows with a small batch, and no more with a large one.
    """
    high = max(4, around)
    return max(2, high // 2), high


def predict(bench: Bench) -> tuple[MemoryPrediction | None, str]:
    """Run the trial.

    Returns:
        The prediction, or ``None`` and the reason why there is none.

    Raises:
        MethodRefusedError: A method does not apply.
        WorkloadError: The workload does not meet its contract.
    """
    begin = time.perf_counter()
    own_batch = bench.workload.batch_size
    around = own_batch if bench.spec.at_own_batch and own_batch is not None else bench.spec.policy.micro_batch
    try:
        traces = [_traced(bench, micro_batch) for micro_batch in traced_batches(around)]
    except _CannotTraceError as error:
        return None, str(error)
    stands_for = bench.spec.stands_for
    if bench.device.type == "cpu" and stands_for is None:
        bench.tell("what convolutions take inside")
        scratch = measured_scratch(call for trace in traces for _, call, _ in trace.calls)
        traces = [with_scratch(trace, scratch) for trace in traces]
    steps = bench.spec.policy.accumulation_steps
    first, second = traces
    if are_alike(first, second):
        prediction = predict_aligned(first, second, accumulation_steps=steps)
    else:
        prediction = predict_fitted(traces, accumulation_steps=steps)
    if stands_for is not None:
        prediction = _on_cuda(bench, prediction, first, second, around, stands_for)
    seconds = time.perf_counter() - begin
    return msgspec.structs.replace(prediction, trace_seconds=seconds, own_batch=own_batch), ""


def _on_cuda(
    bench: Bench,
    prediction: MemoryPrediction,
    first: StepTrace,
    second: StepTrace,
    micro_batch: int,
    device: CudaDevice,
) -> MemoryPrediction:
    """The prediction with what the caching allocator would take, and with what is known to be missing."""
    notes = list(prediction.notes)
    if any(trace.calls for trace in (first, second)):
        notes.append("what cuDNN takes inside convolutions is not in it")
    log, found = allocation_log(first, second), []
    if log is None:
        notes.append("the steps differ with the batch, so that what the allocator reserves is not predicted")
    else:
        bench.tell("what the allocator would take")
        workspace, limit = cublas_workspace_bytes(device), bench.spec.memory_limit_bytes
        most = prediction.largest_batch(limit - workspace)
        found = [
            reserved(
                log,
                micro_batch=micro_batch,
                expandable=expandable,
                limit_bytes=limit,
                at_most=0 if most == math.inf else math.floor(most),
                workspace_bytes=workspace,
            )
            for expandable in (False, True)
        ]
    return msgspec.structs.replace(prediction, notes=tuple(notes), reserved=tuple(found))


def _standing(device: CudaDevice | None) -> contextlib.AbstractContextManager[None]:
    """Where the trace stands for a CUDA device: its kernels, and its choices."""
    return contextlib.nullcontext() if device is None else standing_for(device)


def _traced(bench: Bench, micro_batch: int) -> StepTrace:
    """A trace at one micro-batch. A model that cannot be built without values is built with them, and traced then."""
    bench.tell(f"tracing at batch {micro_batch}")
    batch = bench.batches(micro_batch * bench.spec.policy.accumulation_steps)[0]
    policy = msgspec.structs.replace(bench.spec.policy, micro_batch=micro_batch)
    error: Exception | None = None
    for build_model in (_without_values, _with_values):
        mode = FakeTensorMode(allow_non_fake_inputs=True)

        def build(
            build_model: Callable[[Bench, FakeTensorMode], torch.nn.Module] = build_model, mode: FakeTensorMode = mode
        ) -> Training:
            return apply_policy(policy, build_model(bench, mode), device=bench.device, **bench.options())

        try:
            with _standing(bench.spec.stands_for):
                return trace_step(
                    build,
                    faked(batch, mode),
                    micro_batch=micro_batch,
                    device=bench.device,
                    mode=mode,
                    stands_for_another=bench.spec.stands_for is not None,
                )
        except (MethodRefusedError, WorkloadError):
            raise
        except Exception as raised:  # whatever the model's code, a method or a library raises without values
            error = raised
    assert error is not None, "a trace comes to an end"
    raise _CannotTraceError(_reason(error)) from error


def _without_values(bench: Bench, mode: FakeTensorMode) -> torch.nn.Module:
    return bench.build_model()


def _with_values(bench: Bench, mode: FakeTensorMode) -> torch.nn.Module:
    with unset_fake_temporarily(), _disable_current_modes():
        model = bench.build_model()
    return faked_model(model, mode)


def _reason(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException):
        return "a step reads the value of a tensor (.item(), an if on a tensor), and a trace has no values"
    if isinstance(error, DynamicOutputShapeException):
        return "the shape of a result depends on values (nonzero, a mask as an index), and a trace has no values"
    text = str(error).strip()
    return f"a trace without values raised {type(error).__name__}{f': {text.splitlines()[0]}' if text else ''}"
