"""Predicted and measured peak memory: from profiling runs, and from traces that run nothing.

    python -m benchmarks.memory_prediction                 # every table in benchmarks/tables, 16 traces each
    python -m benchmarks.memory_prediction --traces 4      # fewer traces

The measured peaks are those of the recorded tables (``benchmarks.search.record``): every combination of a search space
at one to four batches, below and above half of the memory limit. The profiling runs were recorded with them, at batches
of a few samples, from which a session predicts; batches of the profiling runs are excluded. Some random combinations of
every table are traced again, on fake tensors at batches of four and eight, as if nothing had been run before; the
traced batches are excluded. Prints a Markdown page and writes it next to its lines.
"""

from __future__ import annotations

import argparse
import datetime
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.hardware.detect import detect_hardware
from advisor.policy.policy import Policy
from advisor.search.space.space import Combination
from advisor.session.setup.versions import versions
from advisor.trial.process.runner import Runner
from advisor.trial.spec import PredictTrial
from advisor.workload.source import resolve_source
from benchmarks.markdown import packages
from benchmarks.search.recordings import RECORDINGS, SMOKE
from benchmarks.search.table_lines import Header, Line, Sized, Timed, read

__all__ = ["Case", "main", "page", "profiling_run_cases", "trace_cases"]

_ROOT = Path(__file__).resolve().parents[1]
_TABLES = _ROOT / "benchmarks" / "tables"
_RESULTS = _ROOT / "docs" / "results"
_TRACED_AROUND = 8
_ORDER_SEED = 0
_TIME_LIMIT_SECONDS = 300.0
_WORST = 5
"""Number of cases to name."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one batch.

    Attributes:
        source: ``"profiling runs"`` (profiling runs) or ``"traces"``.
        model: Name of the workload.
        methods: Label of the combination.
        batch: Samples.
        measured_bytes: Peak of a timed trial.
        predicted_bytes: Predicted peak.
        manner: ``"aligned"`` allocation by allocation, or ``"fitted"`` through peaks.
        device: Where it was measured.
        recorded: ISO date of the measurement.
        date: ISO date of the prediction.
        versions: Package -> version used for the prediction.
    """

    source: str
    model: str
    methods: str
    batch: int
    measured_bytes: int
    predicted_bytes: int
    manner: str
    device: str
    recorded: str
    date: str
    versions: dict[str, str]

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted_bytes / self.measured_bytes - 1


def profiling_run_cases(lines: Sequence[Line]) -> Iterator[Case]:
    """Every timed batch that the profiling runs had not seen."""
    header = _header(lines)
    sizings = {line.combination.label: line for line in lines if isinstance(line, Sized)}
    for line in _ran(lines):
        sized = sizings[line.combination.label]
        forecast = sized.forecast
        if forecast is not None and line.batch not in [point.micro_batch for point in sized.points]:
            yield _case(
                header,
                line,
                source="profiling runs",
                predicted_bytes=forecast.predict(line.batch),
                manner="fitted" if sized.prediction is None else sized.prediction.manner.value,
            )


def trace_cases(lines: Sequence[Line], runner: Runner, device: str, *, count: int) -> Iterator[Case]:
    """Trace some combinations, and predict all of their timed batches that were not traced.

    Args:
        lines: Lines of a table.
        runner: Runs the traces.
        device: torch's name of the device.
        count: Most combinations to trace; those that cannot be traced are printed.
    """
    header = _header(lines)
    recording = SMOKE if header.workload == SMOKE.name else RECORDINGS[header.workload]
    source = resolve_source(recording.workload)
    labels = sorted({line.combination.label: line.combination for line in _ran(lines)}.items())
    random.Random(_ORDER_SEED).shuffle(labels)
    settled = {line.combination.label: line.settled for line in lines if isinstance(line, Sized)}
    for label, combination in labels[:count]:
        result = runner.run(
            PredictTrial(
                workload=source,
                # Trace the calibration that the measured steps used.
                policy=Policy(methods=combination.settings, micro_batch=_TRACED_AROUND, settled=settled[label]),
                device=device,
                memory_limit_bytes=header.limit_bytes,
                measure_seconds=_TIME_LIMIT_SECONDS,
                time_limit_seconds=_TIME_LIMIT_SECONDS,
            )
        )
        prediction = result.prediction
        if prediction is None:
            print(f"{header.workload}, {label}: no trace ({result.outcome.value}): {result.reason}", flush=True)
            continue
        for line in _ran(lines):
            if line.combination.label == label and line.batch not in prediction.traced_at:
                yield _case(
                    header,
                    line,
                    source="traces",
                    predicted_bytes=prediction.peak(line.batch),
                    manner=prediction.manner.value,
                )


def page(cases: Sequence[Case]) -> str:
    """The errors as a Markdown page."""
    parts = ["# Predicted and measured peak memory", _EXPLANATION]
    for source in dict.fromkeys(case.source for case in cases):
        of_source = [case for case in cases if case.source == source]
        models = list(dict.fromkeys(case.model for case in of_source))
        first = of_source[0]
        measured = sorted({f"{case.device}, {case.recorded}" for case in of_source})
        used = packages([first.versions])
        rows = [_row(model, [case for case in of_source if case.model == model]) for model in models]
        worst = sorted(of_source, key=lambda case: -abs(case.error))[:_WORST]
        parts += [
            f"## {_TITLES[source]}",
            f"Measured on {'; '.join(measured)}. Predicted on {first.date} with {used}.",
            "\n".join([*_HEAD, *rows, _row("**all**", of_source)]),
            "Largest errors: " + "; ".join(_named(case) for case in worst) + ".",
        ]
    return "\n\n".join(parts) + "\n"


_EXPLANATION = """\
`python -m benchmarks.memory_prediction` compares predictions with the peaks of real training steps, at batch sizes
that the predictions had not seen. *Profiling runs* extrapolate from two steps at batches of a few samples, as a
session does before it times a policy; *traces* run the policy on fake tensors and execute nothing. Errors are
(predicted - measured) / measured; the median and the 95th percentile are of the absolute error. `aligned` counts
predictions made allocation by allocation; the others extrapolate peaks."""

_TITLES = {"profiling runs": "Profiling runs", "traces": "Traces"}

_HEAD = (
    "| model | policies | cases | median | 95th percentile | lowest | highest | too low by more than 1 % | aligned |",
    "|---|---|---|---|---|---|---|---|---|",
)


def _row(name: str, cases: Sequence[Case]) -> str:
    errors = sorted(case.error for case in cases)
    sizes = sorted(map(abs, errors))
    late = sizes[min(len(sizes) - 1, int(0.95 * len(sizes)))]
    low = sum(error < -0.01 for error in errors)
    aligned = sum(case.manner == "aligned" for case in cases)
    policies = len({(case.model, case.methods) for case in cases})
    return (
        f"| {name} | {policies} | {len(cases)} | {statistics.median(sizes):.3%} | {late:.2%} | {errors[0]:+.2%} | "
        f"{errors[-1]:+.2%} | {low} | {aligned} |"
    )


def _named(case: Case) -> str:
    return f"{case.error:+.2%} {case.model}, {case.methods}, batch {case.batch}"


def _header(lines: Sequence[Line]) -> Header:
    return next(line for line in lines if isinstance(line, Header))


def _ran(lines: Sequence[Line]) -> list[Timed]:
    return [line for line in lines if isinstance(line, Timed) and not line.reference and line.peak_bytes is not None]


def _case(header: Header, line: Timed, *, source: str, predicted_bytes: int, manner: str) -> Case:
    assert line.peak_bytes is not None
    return Case(
        source=source,
        model=header.workload,
        methods=Combination(line.settings).label,
        batch=line.batch,
        measured_bytes=line.peak_bytes,
        predicted_bytes=predicted_bytes,
        manner=manner,
        device=header.device,
        recorded=header.date,
        date=datetime.date.today().isoformat(),
        versions=versions() if source == "traces" else header.versions,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_prediction", description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, nargs="+", help="tables (default: all in benchmarks/tables)")
    parser.add_argument("--traces", type=int, default=16, help="combinations to trace per table (default: 16)")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder (default: docs/results)")
    options = parser.parse_args(arguments)
    tables = [read(path) for path in options.tables or sorted(_TABLES.glob("*.jsonl.gz"))]
    cases = [case for lines in tables for case in profiling_run_cases(lines)]
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        for lines in tables:
            cases += trace_cases(lines, runner, detect_hardware(None).device, count=options.traces)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "memory-prediction.jsonl").write_bytes(
        b"".join(msgspec.json.encode(one) + b"\n" for one in cases)
    )
    text = page(cases)
    (options.output / "memory-prediction.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
