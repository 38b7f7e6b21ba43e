"""The batch comes from what profiling runs predict moment by moment, where they do."""

from __future__ import annotations

from typing import Any

import msgspec

from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement, SizePoint, Sizing
from advisor.methods.setting import use
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.session.trials.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.result import TrialResult
from advisor.trial.spec import TrialSpec
from tests.decide.examples import goal
from tests.session.contexts import study

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


PROFILING_RUNS = Sizing(points=(point(2), point(4)), out_of_memory_at=None, loss_trace=(1.0,))

PREDICTED = MemoryPrediction(
    moments=(
        Moment(phase="optimizer", live=Affine(300.0 * MIB, 0.0), parts={}),
        Moment(phase="backward", live=Affine(100.0 * MIB, 20.0 * MIB), parts={}),
        Moment(phase="backward", live=Affine(20.0 * MIB, 30.0 * MIB), parts={}),
    ),
    activations=Affine(0.0, 25.0 * MIB),
    traced_at=(2, 4),
)


class Answering:
    """A runner that answers every trial with one result."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def run(self, spec: TrialSpec) -> TrialResult:
        return spec.ended(Outcome.OK, **self._answers)


def sized(**answers: Any) -> MemoryModel:
    aim = msgspec.structs.replace(goal(), memory_limit_bytes=1000 * MIB, shares_memory=True)
    trials = Trials(study(aim, usable_bytes=8 * 2**30), Answering(sizing=PROFILING_RUNS, **answers))  # type: ignore[arg-type]
    model, _ = trials.size(CHECKPOINT, None)
    assert model is not None
    return model


def test_a_moment_that_is_no_peak_of_any_profiling_run_bounds_the_batch() -> None:
    model = sized(prediction=PREDICTED)
    assert model.predict(4) == 300 * MIB
    assert model.predict(30) == 920 * MIB


def test_elsewhere_lines_go_through_the_peaks_of_the_profiling_runs() -> None:
    assert sized().predict(30) == 700 * MIB
