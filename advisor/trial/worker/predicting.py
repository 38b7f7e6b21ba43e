"""Predict the memory of a policy at every batch, from two traces on fake tensors."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import msgspec
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from advisor.errors import MethodRefusedError, NothingPredictedError, WorkloadError
from advisor.measure.speed.device_rates import device_rates
from advisor.predict.cuda.on_cuda import on_cuda, standing_for
from advisor.predict.cuda.optimizers import optimizers_as_with_values
from advisor.predict.prediction import CudaDevice
from advisor.predict.step_work import StepWork, of_passes, work_through
from advisor.predict.trace.envelope import are_alike, predict_aligned, predict_fitted
from advisor.predict.trace.grouped_products import grouped_products_of_all_types
from advisor.predict.trace.plain_linear import linear_as_plain
from advisor.predict.trace.scratch import measured_scratch
from advisor.predict.trace.step_trace import StepTrace, faked, faked_model, trace_steps, with_scratch
from advisor.predict.trace.thinned import thinned
from advisor.predict.trace.transformers_masks import mask_facts, masks_as_with_values
from advisor.training.batch.tree import leaves_of
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.result import PredictResult
from advisor.trial.spec import PredictTrial
from advisor.trial.worker.bench import Bench
from advisor.workload.batch_layout import ANY_SIZE, BatchLayout
from advisor.workload.reads import reads_so_far

__all__ = ["predict", "traced_batches"]


_USUAL_BATCH = 32
"""One that can be traced, it is assumed, where the user states none and a smaller one cannot."""


class _CannotTraceError(Exception):
    """The policy cannot be traced, for a reason that is the model's or a method's."""


def traced_batches(around: int, layout: BatchLayout = ANY_SIZE) -> tuple[int, int]:
    """Two micro-batches to trace for predictions around one: it and its half, but never a single sample.

    Two points are needed, and many models treat a single sample specially. A trace costs the same at every batch, so
    the points lie near the batch of interest: memory taken in chunks of a fixed size (a chunked loss, coded
    activations) grows with a small batch, but not with a large one. Where a batch cannot have half as many samples,
    the points are it and its double.
    """
    high = layout.fitted(max(4, around)) or layout.least_samples
    half = layout.fitted(max(2, high // 2))
    return (half, high) if half else (high, 2 * high)


def predict(bench: Bench[PredictTrial]) -> PredictResult:
    """Run the trial.

    The work of a step is counted on request or for another device, if possible.

    Raises:
        MethodRefusedError: A method does not apply.
        WorkloadError: The workload does not meet its contract.
    """
    begin = time.perf_counter()
    spec, own_batch = bench.spec, bench.workload.batch_size
    around = own_batch if spec.at_own_batch and own_batch is not None else spec.policy.micro_batch
    try:
        first, second = _traces_around(bench, around)
    except _CannotTraceError as error:
        return spec.ended(Outcome.OK, str(error), reads=reads_so_far())
    work = None
    if bench.device.type == "cpu" and spec.stands_for is None:
        bench.tell("what convolutions take inside")
        scratch = measured_scratch(call for trace in (first, second) for _, call, _ in trace.calls)
        first, second = with_scratch(first, scratch), with_scratch(second, scratch)
    passes = _traced_passes(bench)
    if are_alike(first, second):
        prediction = predict_aligned(first, second, accumulation_steps=passes)
    else:
        prediction = predict_fitted((first, second), accumulation_steps=passes)
    if spec.allocator_limit_bytes is not None:
        bench.tell("what the allocator would take")
        device = spec.stands_for or _device(bench.device)
        prediction = on_cuda(
            prediction, first, second, micro_batch=around, limit_bytes=spec.allocator_limit_bytes, device=device
        )
    if spec.stands_for is not None:
        bench.notes.append(_what_a_sample_was(bench))
    if spec.counts_work or spec.stands_for is not None:
        # Of several devices it is one rank's own operators: only what is measured there says how long the others take.
        counted = bench.world.size == 1 or spec.counts_work
        work = _work(first, second, passes, spec.policy.accumulation_steps) if counted else None
    timeline = thinned(first, second, spec.policy.micro_batch, passes=passes) if spec.counts_work else None
    seconds = time.perf_counter() - begin
    rates = None
    if spec.measures_rates and work is not None:
        bench.tell("what the device can do")
        rates = device_rates(bench.device)
    prediction = msgspec.structs.replace(prediction, trace_seconds=seconds, own_batch=own_batch)
    return spec.ended(
        Outcome.OK,
        prediction=prediction,
        work=work,
        timeline=timeline,
        device_rates=rates,
        reads=reads_so_far(),
        # Last: the user's code may keep what has no values.
        identity=bench.data.identity_on_meta() if spec.identifies else None,
    )


def _device(device: torch.device) -> CudaDevice:
    properties = torch.cuda.get_device_properties(device)
    return CudaDevice(
        compute_capability=(properties.major, properties.minor), multiprocessors=properties.multi_processor_count
    )


def _what_a_sample_was(bench: Bench[PredictTrial]) -> str:
    """Describe the samples that the model's file made here, so that users can check them."""
    dims = bench.data.layout.dims
    tensors = [
        f"{leaf.path or 'the batch'} of {'x'.join(map(str, _of_a_sample(leaf.value, dims.get(leaf.path)))) or '1'}"
        for leaf in leaves_of(bench.data.batches(bench.data.first(2) * bench.world.data.size)[0])
        if isinstance(leaf.value, torch.Tensor)
    ]
    return (
        f"A sample was: {', '.join(tensors)}. The model's file ran on this machine, without that GPU: anything that "
        "depends on torch.cuda.is_available(), such as this size, was decided accordingly."
    )


def _of_a_sample(tensor: torch.Tensor, dim: int | str | None) -> list[int]:
    sizes = list(tensor.shape)
    if isinstance(dim, int):
        del sizes[dim]
    return sizes


def _traced_passes(bench: Bench[PredictTrial]) -> int:
    """Passes to trace: a third adds nothing that the second does not, but for a pipeline, which has many under way."""
    if bench.spec.policy.axes.pipeline > 1:
        return bench.spec.policy.accumulation_steps
    return min(2, bench.spec.policy.accumulation_steps)


def _work(first: StepTrace, second: StepTrace, traced: int, passes: int) -> StepWork | None:
    """The work of a step with so many passes, of which some were traced."""
    if first.works is None or second.works is None:
        return None
    works = [of_passes(trace.works or (), passes / traced) for trace in (first, second)]
    return work_through((first.micro_batch * passes, works[0]), (second.micro_batch * passes, works[1]))


def _traces_around(bench: Bench[PredictTrial], around: int) -> list[StepTrace]:
    """A trace at each of two micro-batches; of larger ones where the model does not take the smaller."""
    micro_batches = traced_batches(around, bench.data.layout)
    try:
        return _traces(bench, micro_batches)
    except _CannotTraceError:
        larger = around if bench.workload.batch_size is not None else max(around, _USUAL_BATCH)
        if micro_batches[0] >= larger:
            raise
        try:
            return _traces(bench, (larger, 2 * larger))
        except Exception:
            bench.tell("neither can a larger batch be traced")
        raise


def _traces(bench: Bench[PredictTrial], micro_batches: tuple[int, int]) -> list[StepTrace]:
    """A trace at each micro-batch: of the same training if only its optimizer keeps state between steps."""
    spec = bench.spec
    # The order matters to an allocator: optimizer state created before the first step leaves no gaps.
    if not spec.policy.methods and spec.stands_for is None and spec.allocator_limit_bytes is None:
        first, second = _traced(bench, micro_batches)
        if are_alike(first, second):
            return [first, second]
    # A method or a model that keeps state for a batch: each batch is traced from its own first step.
    return [trace for micro_batch in micro_batches for trace in _traced(bench, (micro_batch,))]


def _traced(bench: Bench[PredictTrial], micro_batches: Sequence[int]) -> list[StepTrace]:
    """Traces of one training. A model that cannot be built on fake tensors is built on real ones, then traced."""
    bench.tell(f"tracing at batch {' and '.join(map(str, micro_batches))}")
    passes, wanted = _traced_passes(bench), bench.spec.policy.accumulation_steps
    batches = [bench.data.largest(micro_batch * passes * bench.world.data.size) for micro_batch in micro_batches]
    policy = msgspec.structs.replace(bench.spec.policy, micro_batch=micro_batches[0], accumulation_steps=passes)
    stands_for = bench.spec.stands_for
    masks = mask_facts(batches[0])
    error: Exception | None = None
    for with_values in (False, True):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        # Errors of the user's code here would occur in every training.
        real_model = bench.build_model() if with_values else None

        contexts = contextlib.ExitStack()

        def build(
            real_model: torch.nn.Module | None = real_model,
            mode: FakeTensorMode = mode,
            contexts: contextlib.ExitStack = contexts,
        ) -> Training:
            model = bench.build_model() if real_model is None else faked_model(real_model, mode)
            contexts.enter_context(masks_as_with_values(masks))
            return bench.apply(policy, model)

        standing = optimizers_as_with_values() if stands_for is None else standing_for(stands_for)
        try:
            with standing, linear_as_plain(bench.device.type), grouped_products_of_all_types(), contexts:
                traces = trace_steps(
                    build,
                    [(size, faked(batch, mode)) for size, batch in zip(micro_batches, batches, strict=True)],
                    device=bench.device,
                    mode=mode,
                    stands_for_another=stands_for is not None,
                    counts_work=bench.spec.counts_work,
                )
        except (MethodRefusedError, WorkloadError):
            raise
        except Exception as raised:  # whatever the model's code, a method or a library raises without values
            error = raised
        else:
            # If the host is the device, the whole batch is in memory during every pass.
            return [msgspec.structs.replace(one, batch_bytes=one.batch_bytes * wanted // passes) for one in traces]
    assert error is not None, "a trace comes to an end"
    raise _CannotTraceError(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, DataDependentOutputException):
        return "a step reads the value of a tensor (.item(), an if on a tensor), and a trace has no values"
    if isinstance(error, DynamicOutputShapeException):
        return "the shape of a result depends on values (nonzero, a mask as an index), and a trace has no values"
    text = str(error).strip()
    if isinstance(error, NothingPredictedError):
        return text
    return f"a trace without values raised {type(error).__name__}{f': {text.splitlines()[0]}' if text else ''}"
