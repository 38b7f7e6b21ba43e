"""Which predictions are compared with measured peaks: only batches that a prediction has not seen."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.search.space.space import Combination
from advisor.trial.process.runner import Runner
from advisor.trial.spec import TimeTrial
from benchmarks.memory_prediction import page, profiling_run_cases, trace_cases
from benchmarks.search.recordings import SMOKE
from benchmarks.search.table_lines import Line, Sized
from tests.benchmarks.search.tables import CHECKPOINT, complete, header, lost, sized, timed


def test_profiling_runs_are_compared_with_unseen_batches() -> None:
    seen = timed(CHECKPOINT, batch=4)
    cases = list(profiling_run_cases([*complete(), seen, lost(CHECKPOINT, batch=40)]))
    of_checkpointing = [case.batch for case in cases if case.methods == Combination((CHECKPOINT,)).label]
    assert of_checkpointing == [12, 24]
    assert all(case.batch != 4 for case in cases)
    assert {case.error for case in cases} == {0.0}, "made-up peaks grow in lines"


def test_an_error_is_relative_to_the_measurement() -> None:
    line = Moment(phase="backward", live=Affine(400, 66), parts={})
    prediction = MemoryPrediction(moments=(line,), activations=Affine(0, 0), traced_at=(2, 4))
    lines: list[Line] = [
        msgspec.structs.replace(one, prediction=prediction) if isinstance(one, Sized) and not one.settings else one
        for one in complete()
    ]
    (case,) = (case for case in profiling_run_cases(lines) if case.methods == "plain" and case.batch == 8)
    assert case.measured_bytes == 400 + 60 * 8
    assert case.predicted_bytes > case.measured_bytes
    assert case.error == case.predicted_bytes / case.measured_bytes - 1
    assert case.manner == "aligned"


def test_the_page_names_the_largest_errors() -> None:
    first, *rest = profiling_run_cases(complete())
    far = msgspec.structs.replace(first, predicted_bytes=first.measured_bytes * 9 // 10)
    text = page([far, *rest])
    assert f"Largest errors: -10.00% made up, {far.methods}, batch {far.batch};" in text
    last = next(line for line in text.splitlines() if line.startswith("| **all**"))
    cells = [cell.strip() for cell in last.split("|")]
    assert (cells[3], cells[4], cells[6], cells[8]) == (f"{len(rest) + 1}", "0.000%", "-10.00%", "1")


@pytest.mark.slow
def test_traces_predict_the_peak_of_a_real_step(tmp_path: Path) -> None:
    """The peaks of two real steps of the smoke workload, measured by the recorder's own trials."""
    from advisor.policy.policy import Policy
    from advisor.workload.source import resolve_source

    lines: list[Line] = [header(workload=SMOKE.name, limit_bytes=SMOKE.limit_bytes)]
    with Runner(tmp_path) as runner:
        for settings in ((), (CHECKPOINT,)):
            lines.append(sized(*settings))
            spec = TimeTrial(
                workload=resolve_source(SMOKE.workload),
                policy=Policy(methods=settings, micro_batch=6),
                device="cpu",
                memory_limit_bytes=SMOKE.limit_bytes,
                measure_seconds=0.1,
                time_limit_seconds=100.0,
            )
            measurement = runner.run(spec).measurement
            assert measurement is not None
            peak = measurement.memory.peak_bytes
            lines += [msgspec.structs.replace(timed(*settings, batch=batch), peak_bytes=peak) for batch in (6, 8)]
        cases = list(trace_cases(lines, runner, "cpu", count=5))
    assert [case.batch for case in cases] == [6, 6], "eight samples were traced"
    assert all(abs(case.error) < 0.01 for case in cases), cases
