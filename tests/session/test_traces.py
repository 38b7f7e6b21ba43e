"""Where memory may bound the batch a trace is asked, in a worker of its own; where it may not, nobody waits for one."""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement, SizePoint, Sizing
from advisor.methods.use import use
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.problem.hardware import DeviceKind, Hardware
from advisor.problem.workload import WorkloadKind, WorkloadSource
from advisor.search.resolved import Combination
from advisor.session.budget import TimeBudget
from advisor.session.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialKind, TrialResult, TrialSpec

MIB = 2**20
CHECKPOINT = Combination((use("checkpoint", every=1),))


def point(batch: int) -> SizePoint:
    """The optimizer step is the peak, 300 MiB; the passes take 20 MiB a sample."""
    return SizePoint(
        micro_batch=batch,
        step_seconds=0.001 * batch,
        memory=MemoryMeasurement(
            peak_bytes=300 * MIB,
            peak_allocated_bytes=300 * MIB,
            peak_reserved_bytes=None,
            device_used_bytes=None,
            allocation_retries=None,
            forward_peak_bytes=(100 + 20 * batch) * MIB // 2,
            backward_peak_bytes=(100 + 20 * batch) * MIB,
            optimizer_peak_bytes=300 * MIB,
            breakdown=MemoryBreakdown(
                parameters=50 * MIB, buffers=0, gradients=50 * MIB, optimizer_state=100 * MIB, activations=batch * MIB
            ),
        ),
    )


SHORT_RUNS = Sizing(points=(point(2), point(4)), out_of_memory_at=None, loss_trace=(1.0,))

FORESEEN = MemoryPrediction(
    moments=(
        Moment(phase="optimizer", live=Affine(300.0 * MIB, 0.0), parts={}),
        Moment(phase="backward", live=Affine(100.0 * MIB, 30.0 * MIB), parts={}),
    ),
    activations=Affine(0.0, 25.0 * MIB),
    traced_at=(8, 16),
)


class Answering:
    """A runner that answers each kind of trial with one result."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[TrialSpec] = []
        self._answers = answers

    def run(self, spec: TrialSpec) -> TrialResult:
        self.asked.append(spec)
        return msgspec.structs.replace(TrialResult(key=spec.key, outcome=Outcome.OK), **self._answers)


def trials(foreseer: Answering | None, *, limit_mib: int = 1000, capability: tuple[int, int] | None = None) -> Trials:
    gib = 2**30
    return Trials(
        runner=Answering(sizing=SHORT_RUNS),  # type: ignore[arg-type]
        foreseer=foreseer,  # type: ignore[arg-type]
        source=WorkloadSource(kind=WorkloadKind.FILE, location="m.py", name="m", fingerprint="f"),
        hardware=Hardware(
            kind=DeviceKind.CPU if capability is None else DeviceKind.CUDA,
            device="cpu" if capability is None else "cuda:0",
            name="a device",
            memory_bytes=8 * gib,
            free_bytes=8 * gib,
            host_memory_bytes=8 * gib,
            host_free_bytes=8 * gib,
            host_cores=2,
            compute_capability=capability,
        ),
        memory_limit_bytes=limit_mib * MIB,
        usable_bytes=8 * gib,
        budget=TimeBudget(600.0),
        seed=0,
        first_batch=2,
    )


def test_the_largest_batch_is_that_of_the_trace() -> None:
    foreseer = Answering(prediction=FORESEEN)
    model, _ = trials(foreseer).size(CHECKPOINT, None)
    assert model is not None
    assert model.predict(30) == 1000 * MIB  # the short runs alone would have promised 700
    assert [spec.kind for spec in foreseer.asked] == [TrialKind.PREDICT]
    assert foreseer.asked[0].policy.methods == CHECKPOINT.uses
    assert model.note == ""


def test_nobody_is_asked_where_the_batch_that_time_allows_takes_little() -> None:
    foreseer = Answering(prediction=FORESEEN)
    trials(foreseer, limit_mib=10**9).size(CHECKPOINT, None)
    assert foreseer.asked == []


def test_a_policy_that_cannot_be_traced_is_sized_by_short_runs_and_the_reason_is_told() -> None:
    model, _ = trials(Answering(reason="a step reads values")).size(CHECKPOINT, None)
    assert model is not None
    assert model.predict(30) == 700 * MIB
    assert model.note == "checkpoint(every=1): memory was not foreseen, because a step reads values"


def test_a_trace_that_short_runs_contradict_is_not_believed() -> None:
    steeper = msgspec.structs.replace(
        FORESEEN, moments=(Moment(phase="backward", live=Affine(100.0 * MIB, 300.0 * MIB), parts={}),)
    )
    model, _ = trials(Answering(prediction=steeper)).size(CHECKPOINT, None)
    assert model is not None
    assert "its short runs grow otherwise than its trace" in model.note


def test_on_a_gpu_the_trace_is_made_on_the_host_and_stands_for_it() -> None:
    foreseer = Answering(prediction=FORESEEN)
    trials(foreseer, capability=(9, 0)).size(CHECKPOINT, None)
    (spec,) = foreseer.asked
    assert spec.device == "cpu"
    assert spec.stands_for is not None
    assert spec.stands_for.compute_capability == (9, 0)


def test_without_a_worker_for_traces_short_runs_are_all_there_is() -> None:
    model, _ = trials(None).size(CHECKPOINT, None)
    assert model is not None
    assert model.predict(30) == 700 * MIB
