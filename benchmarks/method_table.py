"""Every method on its own, on four models: peak memory, step time and fidelity relative to plain training.

    python -m benchmarks.method_table                      # on the device that momadvise would choose
    python -m benchmarks.method_table --size smoke         # seconds, on any CPU
    python docs/generate_methods.py                        # write the rows to docs/methods.md

Rows are appended to a file of JSON lines as they are measured. Rows for the same device and versions are not measured
again, so an interrupted run continues. Plain training is measured again after every few settings: a shared machine
drifts, and a ratio of two measurements an hour apart would measure the drift.
"""

from __future__ import annotations

import argparse
import datetime
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import Hardware
from advisor.measure.fidelity import NOT_FINITE, FidelityRecord, compared
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import judge, settings_of
from advisor.methods.libraries import needed_by
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.session.setup.limits import memory_budget
from advisor.session.setup.versions import versions
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import FidelityResult, ProbeResult, Result, TimeResult
from advisor.trial.spec import FidelityTrial, ProbeTrial, TimeTrial, Trial
from advisor.workload.facts import Facts
from advisor.workload.source import resolve_source
from advisor.workload.workload import WorkloadSource
from benchmarks.json_lines import append, file_of
from benchmarks.method_rows import Row, read

__all__ = ["main", "measure_model", "models_of", "parser_of", "settings_alone"]

_R = TypeVar("_R", bound=Result)

ROOT = Path(__file__).resolve().parents[1]
MODELS = {name: ROOT / "examples" / f"{name}.py" for name in ("gpt2", "bert_classifier", "resnet50", "unet")}
SMOKE = {"smoke": ROOT / "benchmarks" / "workloads" / "smoke.py"}

_BETWEEN_PLAIN = 4
"""Settings between two measurements of plain training."""

_TIME_LIMIT_SECONDS = 300.0
_MEASURE_SECONDS = {"smoke": 0.5, "full": 3.0}

_COMPARED_BATCH = 2
_COMPARED_STEPS = 8
"""Steps whose losses are compared with the reference run's: two rounds of the distinct batches."""


def settings_alone(*, every: bool) -> list[MethodSetting]:
    """The first setting of every method that one device can use, or all of them."""
    alone = (method for method in CATALOGUE if not (method.distributes or method.builds_on))
    return [setting for method in alone for setting in settings_of(method)[: None if every else 1]]


def measure_model(
    name: str,
    source: WorkloadSource,
    settings: Sequence[MethodSetting],
    *,
    hardware: Hardware,
    measure_seconds: float,
    known: Sequence[Row],
) -> Iterator[Row]:
    """Measure plain training and every setting on one model; yields each row as soon as it is known.

    Args:
        name: Name of the model in the rows.
        source: The workload.
        settings: The settings.
        hardware: The device.
        measure_seconds: Seconds of timed steps of each.
        known: Rows of earlier runs, which are not measured again.
    """
    found = versions()
    done = {row.setting for row in known if (row.model, row.device, row.versions) == (name, hardware.name, found)}
    left = [setting for setting in settings if setting.label not in done]
    if not left:
        return
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        bench = _Model(name, source, runner, hardware, measure_seconds, Path(folder))
        facts = bench.probe()
        if isinstance(facts, Row):
            yield facts
            return
        plain: Row | None = None
        for position, setting in enumerate(left):
            if position % _BETWEEN_PLAIN == 0:
                plain = bench.plain(position)
                if position == 0 and "plain" not in done:
                    yield plain
            assert plain is not None, "plain training is measured first"
            yield bench.setting(setting, facts, plain)


class _Model:
    """Measures settings on one model."""

    def __init__(
        self,
        name: str,
        source: WorkloadSource,
        runner: Runner,
        hardware: Hardware,
        measure_seconds: float,
        folder: Path,
    ) -> None:
        self._name = name
        self._source = source
        self._runner = runner
        self._hardware = hardware
        self._measure_seconds = measure_seconds
        self._limit = memory_budget(hardware, None).limit_bytes
        self._batch = 2
        self._gradient = folder / "gradient.pt"
        self._exact: FidelityRecord | None = None

    def probe(self) -> Facts | Row:
        """The facts, or a row with the reason why there are none."""
        result = self._run(ProbeTrial, (), libraries=needed_by(CATALOGUE))
        if result.facts is None:
            return self._row("plain", "", result)
        self._batch = result.facts.default_batch or self._batch
        self._exact = self._fidelity(()).fidelity
        return result.facts

    def plain(self, repeat: int) -> Row:
        """Plain training, measured again."""
        return self._row("plain", "", self._timed((), repeat=repeat))

    def setting(self, setting: MethodSetting, facts: Facts, plain: Row) -> Row:
        """One setting, relative to plain training."""
        verdict = judge((setting,), facts=facts, hardware=self._hardware)
        if not verdict.applicable:
            reason = verdict.reason.removeprefix(f"{setting.words}: ")
            return self._row(setting.label, setting.name, None, reason=reason)
        row = self._row(setting.label, setting.name, self._timed((setting,)))
        if row.peak_bytes is None or row.step_seconds is None or plain.peak_bytes is None or plain.step_seconds is None:
            return row
        row = msgspec.structs.replace(
            row,
            peak_ratio=row.peak_bytes / plain.peak_bytes,
            activation_ratio=_ratio(row.activation_bytes, plain.activation_bytes),
            time_ratio=row.step_seconds / plain.step_seconds,
        )
        return self._with_fidelity(setting, row)

    def _with_fidelity(self, setting: MethodSetting, row: Row) -> Row:
        """The row with its fidelity: a few steps at a small batch, compared with the same steps of plain training."""
        own = self._fidelity((setting,))
        if own.outcome is Outcome.DIVERGED:
            return msgspec.structs.replace(row, loss_drift=NOT_FINITE)
        if own.fidelity is None or self._exact is None:
            return row
        difference = compared(own.fidelity, self._exact, reference="plain", micro_batch=_COMPARED_BATCH)
        gradient = own.fidelity.gradient
        return msgspec.structs.replace(
            row,
            loss_drift=None if difference is None else difference.loss_drift,
            gradient_error=None if gradient is None else gradient.error,
        )

    def _fidelity(self, settings: tuple[MethodSetting, ...]) -> FidelityResult:
        """A few steps at a small batch; plain training's are those that others are compared with."""
        gradient = str(self._gradient)
        return self._run(
            FidelityTrial,
            settings,
            batch=_COMPARED_BATCH,
            fidelity_steps=_COMPARED_STEPS,
            write_gradient_to=None if settings else gradient,
            reference_gradient=gradient if settings else None,
        )

    def _timed(self, settings: tuple[MethodSetting, ...], *, repeat: int = 0) -> TimeResult:
        return self._run(TimeTrial, settings, max_timed_steps=10, repeat=repeat)

    def _run(
        self, kind: type[Trial[_R]], settings: tuple[MethodSetting, ...], *, batch: int | None = None, **asked: Any
    ) -> _R:
        return self._runner.run(
            kind(
                workload=self._source,
                policy=Policy(methods=settings, micro_batch=batch or self._batch),
                device=self._hardware.device,
                memory_limit_bytes=self._limit,
                measure_seconds=self._measure_seconds,
                time_limit_seconds=_TIME_LIMIT_SECONDS,
                **asked,
            )
        )

    def _row(self, setting: str, method: str, result: ProbeResult | TimeResult | None, *, reason: str = "") -> Row:
        measurement = result.measurement if isinstance(result, TimeResult) else None
        return Row(
            model=self._name,
            setting=setting,
            method=method,
            batch=self._batch,
            outcome=Outcome.REFUSED.value if result is None else result.outcome.value,
            reason=reason if result is None else result.reason,
            peak_bytes=None if measurement is None else measurement.memory.peak_bytes,
            activation_bytes=None if measurement is None else measurement.memory.breakdown.activations,
            step_seconds=None if measurement is None else measurement.step_seconds,
            spread=None if measurement is None else measurement.relative_spread,
            notes=() if result is None else result.notes,
            device=self._hardware.name,
            versions=versions(),
            date=datetime.date.today().isoformat(),
        )


def parser_of(prog: str, description: str) -> argparse.ArgumentParser:
    """Which models and methods are measured, and where; :func:`models_of` reads the former."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--size", choices=("smoke", "full"), default="full")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: what momadvise would choose)")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--methods", nargs="+", help="only these methods")
    return parser


def models_of(options: argparse.Namespace) -> dict[str, WorkloadSource]:
    """Name -> the model that is measured."""
    models = SMOKE if options.size == "smoke" else {name: MODELS[name] for name in options.models}
    return {name: resolve_source(path) for name, path in models.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parser_of("python -m benchmarks.method_table", __doc__.splitlines()[0])
    parser.add_argument("--all-settings", action="store_true", help="every setting (default: the first of each method)")
    parser.add_argument(
        "--output",
        type=Path,
        help="file of JSON lines (default: methods-DEVICE.jsonl in docs/results; smoke: in build/results)",
    )
    options = parser.parse_args(arguments)
    hardware = detect_hardware(options.device)
    output = options.output or file_of(f"methods-{hardware.kind.value}", options.size)
    settings = [
        setting
        for setting in settings_alone(every=options.all_settings)
        if options.methods is None or setting.name in options.methods
    ]
    for name, source in models_of(options).items():
        rows = measure_model(
            name,
            source,
            settings,
            hardware=hardware,
            measure_seconds=_MEASURE_SECONDS[options.size],
            known=read(output),
        )
        for row in rows:
            append(output, row)
            print(_line(row), flush=True)


def _ratio(own: int | None, plain: int | None) -> float | None:
    return own / plain if own is not None and plain else None


def _line(row: Row) -> str:
    if row.peak_bytes is None or row.step_seconds is None:
        return f"{row.model:16} {row.setting:48} {row.outcome}: {row.reason}"
    ratios = "" if row.time_ratio is None else f"peak x{row.peak_ratio:.2f}, time x{row.time_ratio:.2f}"
    return f"{row.model:16} {row.setting:48} {row.peak_bytes / 2**20:8.1f} MiB {row.step_seconds:8.3f} s  {ratios}"


if __name__ == "__main__":
    main()
