"""Memory of methods that the table of methods leaves out: they need several devices, or a GPU.

    python -m benchmarks.method_memory                                    # 2 processes on one CPU
    python -m tests.cuda_device python -m benchmarks.method_memory        # a GPU in software: simulated, and said so
    python docs/generate_methods.py                                       # write the rows to docs/methods.md

Every row has two trials at the same global batch, in as many micro-batches: one with the method, and one with what it
is compared with. Of several processes, the one that needs most memory counts. No row has a time: processes share the
cores of one CPU, and a software GPU computes nothing. Rows are appended as they are measured and not measured again.
"""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.measure.measurement import MemoryMeasurement
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import judge, settings_of
from advisor.methods.libraries import needed_by
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.session.setup.limits import memory_budget
from advisor.session.setup.versions import versions
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ProbeResult, Result, TimeResult
from advisor.trial.spec import ProbeTrial, TimeTrial, Trial
from advisor.workload.workload import WorkloadSource
from benchmarks import json_lines
from benchmarks.method_table import models_of, parser_of

__all__ = ["Case", "Row", "cases", "main", "measure_model", "read"]

_R = TypeVar("_R", bound=Result)

PROCESSES = 2
OF_GPUS = ("float8", "swap", "overlapped_swap", "host_optimizer", "attention_backend", "expandable_segments")
"""Methods that a CPU has no use for."""

_TIME_LIMIT_SECONDS = 300.0
_MEASURE_SECONDS = 1.0
_TIMED_STEPS = 3


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one method on one model, beside that of what it is compared with.

    Attributes:
        model: Name of the workload.
        method: Name of the method.
        setting: Label of the methods in use.
        against: Label of what it is compared with: ``"plain"``, or the method that it works on top of.
        processes: Processes that train together.
        against_processes: The same of what it is compared with.
        batch: Samples per optimizer step of all processes.
        micro_batches: Micro-batches of each process.
        outcome: How the trial ended, or ``"refused"``.
        reason: Why it was not measured.
        peak_bytes: Peak of the process that needs most: reserved bytes on CUDA, live tensor storage on a CPU.
        activation_bytes: Bytes that it saved for the backward pass at the end of the forward pass.
        against_peak_bytes: Peak of what it is compared with.
        against_activation_bytes: What that saved for the backward pass.
        notes: Notes of the method.
        device: Name of the device.
        simulated: Whether software stands in for the device.
        versions: Package -> version.
        date: ISO date.
    """

    model: str
    method: str
    setting: str
    against: str
    processes: int
    against_processes: int
    batch: int
    micro_batches: int
    outcome: str
    reason: str = ""
    peak_bytes: int | None = None
    activation_bytes: int | None = None
    against_peak_bytes: int | None = None
    against_activation_bytes: int | None = None
    notes: tuple[str, ...] = ()
    device: str
    simulated: bool
    versions: dict[str, str]
    date: str


def read(path: Path) -> list[Row]:
    """The rows of a file in order; none if it does not exist."""
    return json_lines.read(path, msgspec.json.Decoder(Row))


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and what it is compared with.

    Attributes:
        method: The method.
        settings: It, and the method that it works on top of.
        against: The methods of the comparison.
        processes: Processes that train together.
        against_processes: The same of the comparison.
        mesh: How the processes divide the model.
        micro_batches: Micro-batches of each process, in both.
    """

    method: str
    settings: tuple[MethodSetting, ...]
    against: tuple[MethodSetting, ...] = ()
    processes: int = 1
    against_processes: int = 1
    mesh: Mesh = DATA_ONLY
    micro_batches: int = 1

    @property
    def label(self) -> str:
        """The methods in words."""
        return " + ".join(setting.label for setting in self.settings)

    def policy(self, batch: int) -> Policy:
        """With the method."""
        return _policy(self.settings, batch, self.processes, self.mesh, self.micro_batches)

    def comparison(self, batch: int) -> Policy:
        """Without it."""
        return _policy(self.against, batch, self.against_processes, DATA_ONLY, self.micro_batches)


def _policy(methods: tuple[MethodSetting, ...], batch: int, processes: int, mesh: Mesh, micro_batches: int) -> Policy:
    return Policy(
        methods=methods,
        micro_batch=max(1, batch // (micro_batches * (processes // mesh.model_degree))),
        accumulation_steps=micro_batches,
        gpu_count=processes,
        mesh=mesh,
    )


def cases(hardware: Hardware) -> list[Case]:
    """What the table of methods cannot show: of several processes on a CPU, and of a GPU the methods that need one."""
    if hardware.kind is DeviceKind.CPU:
        return [_distributed(method) for method in CATALOGUE if method.distributes or method.builds_on]
    return [Case(method=name, settings=(setting,)) for name in OF_GPUS for setting in settings_of(get_method(name))]


def _distributed(method: Method) -> Case:
    own = settings_of(method)[0]
    if method.builds_on:
        below = settings_of(get_method(method.builds_on[0]))[0]
        both = tuple(sorted((own, below), key=lambda setting: setting.name))
        return Case(
            method=method.name, settings=both, against=(below,), processes=PROCESSES, against_processes=PROCESSES
        )
    in_stages = method.axis is MeshAxis.PIPELINE
    mesh = Mesh(
        tensor=PROCESSES if method.axis is MeshAxis.TENSOR else 1,
        pipeline=PROCESSES if in_stages else 1,
    )
    # A pipeline has something to pass on while another stage works.
    micro_batches = PROCESSES if in_stages else 1
    return Case(method=method.name, settings=(own,), processes=PROCESSES, mesh=mesh, micro_batches=micro_batches)


def measure_model(
    name: str, source: WorkloadSource, asked: Sequence[Case], *, hardware: Hardware, known: Sequence[Row]
) -> Iterator[Row]:
    """Measure cases on one model; yields each row as soon as it is known.

    Args:
        name: Name of the model in the rows.
        source: The workload.
        asked: The cases.
        hardware: The device.
        known: Rows of earlier runs, which are not measured again.
    """
    found = versions()
    done = {row.setting for row in known if (row.model, row.device, row.versions) == (name, hardware.name, found)}
    left = [case for case in asked if case.label not in done]
    if not left:
        return
    limit = memory_budget(hardware, None).limit_bytes

    def run(runner: Runner, kind: type[Trial[_R]], policy: Policy, **more: Any) -> _R:
        return runner.run(
            kind(
                workload=source,
                policy=policy,
                device=hardware.device,
                memory_limit_bytes=limit // policy.gpu_count if hardware.kind is DeviceKind.CPU else limit,
                measure_seconds=_MEASURE_SECONDS,
                time_limit_seconds=_TIME_LIMIT_SECONDS,
                **more,
            )
        )

    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        degrees = tuple({case.mesh.tensor for case in left} - {1})
        probe: ProbeResult = run(
            runner, ProbeTrial, Policy(micro_batch=2), libraries=needed_by(CATALOGUE), tensor_degrees=degrees
        )
        batch = probe.facts.default_batch or PROCESSES if probe.facts is not None else PROCESSES
        for case in sorted(left, key=lambda case: (case.against_processes, case.micro_batches, case.processes)):
            row = _row(name, case, batch, hardware, outcome=Outcome.REFUSED.value)
            if probe.facts is None:
                yield msgspec.structs.replace(row, outcome=probe.outcome.value, reason=probe.reason)
                continue
            verdict = judge(
                case.settings,
                facts=probe.facts,
                hardware=hardware,
                accumulation_steps=case.micro_batches,
                gpu_count=case.processes,
                mesh=case.mesh,
            )
            if not verdict.applicable:
                yield msgspec.structs.replace(row, reason=verdict.reason)
                continue
            # The comparison's trials are read back where several cases have the same one.
            against = run(runner, TimeTrial, case.comparison(batch), max_timed_steps=_TIMED_STEPS)
            own = run(runner, TimeTrial, case.policy(batch), max_timed_steps=_TIMED_STEPS)
            yield _with_memory(row, own, against)


def _with_memory(row: Row, own: TimeResult, against: TimeResult) -> Row:
    failed = next((one for one in (own, against) if one.measurement is None), None)
    if failed is not None:
        return msgspec.structs.replace(row, outcome=failed.outcome.value, reason=failed.reason)
    mine, others = _memory(own), _memory(against)
    return msgspec.structs.replace(
        row,
        outcome=own.outcome.value,
        peak_bytes=mine.peak_bytes,
        activation_bytes=mine.breakdown.activations,
        against_peak_bytes=others.peak_bytes,
        against_activation_bytes=others.breakdown.activations,
        notes=own.notes,
    )


def _memory(result: TimeResult) -> MemoryMeasurement:
    assert result.measurement is not None
    return result.measurement.memory


def _row(name: str, case: Case, batch: int, hardware: Hardware, *, outcome: str) -> Row:
    return Row(
        model=name,
        method=case.method,
        setting=case.label,
        against=" + ".join(setting.label for setting in case.against) or "plain",
        processes=case.processes,
        against_processes=case.against_processes,
        batch=batch,
        micro_batches=case.micro_batches,
        outcome=outcome,
        device=hardware.name,
        simulated=hardware.simulated,
        versions=versions(),
        date=datetime.date.today().isoformat(),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = parser_of("python -m benchmarks.method_memory", __doc__.splitlines()[0])
    parser.add_argument(
        "--output",
        type=Path,
        help="file of JSON lines (default: method-memory.jsonl in docs/results; smoke: in build/results)",
    )
    options = parser.parse_args(arguments)
    output = options.output or json_lines.file_of("method-memory", options.size)
    hardware = detect_hardware(options.device)
    asked = [case for case in cases(hardware) if options.methods is None or case.method in options.methods]
    for name, source in models_of(options).items():
        for row in measure_model(name, source, asked, hardware=hardware, known=read(output)):
            json_lines.append(output, row)
            print(_line(row), flush=True)


def _line(row: Row) -> str:
    if row.peak_bytes is None or row.against_peak_bytes is None:
        return f"{row.model:16} {row.setting:48} {row.outcome}: {row.reason}"
    sizes = f"{row.peak_bytes / 2**20:8.1f} MiB, {row.against} {row.against_peak_bytes / 2**20:8.1f} MiB"
    return f"{row.model:16} {row.setting:48} {sizes}"


if __name__ == "__main__":
    main()
