"""Predicted memory on a CUDA device against what torch's allocator takes there, on models that are no examples.

    python -m benchmarks.allocator_prediction                      # all models, policies and batches
    python -m benchmarks.allocator_prediction --models llama vit   # some models
    python -m benchmarks.allocator_prediction --predict-again      # what was measured stays

For every model of ``benchmarks/workloads/unseen`` under every policy at two batches: a timed trial tells the peaks of
allocated and of reserved memory; a trace tells what ``momadvise predict`` says on the device, and another one, on the
CPU, what it says with ``--profile``. Runs on a GPU, or on GPUs in software (``python -m tests.cuda_device``): the
allocator is the same. Lines are added to ``allocator-prediction.jsonl``; what is there is not measured again. Prints a
Markdown page and writes it beside its lines.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import Hardware
from advisor.hardware.profiles import load_profiles, match_profile
from advisor.policy.policy import Policy
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.session.setup.versions import versions
from advisor.trial.process.runner import Runner
from advisor.trial.spec import PredictTrial, TimeTrial
from advisor.workload.source import resolve_source
from advisor.workload.workload import WorkloadSource
from benchmarks.allocator_page import BATCHES, POLICIES, Case, page

__all__ = ["DIFFER", "MODELS", "ROOT", "Specs", "main", "predicted", "source_of", "specs_of"]

ROOT = Path(__file__).resolve().parents[1]
_WORKLOADS = ROOT / "benchmarks" / "workloads" / "unseen"
MODELS = sorted(path.stem for path in _WORKLOADS.glob("*.py"))
_LIMIT_BYTES = 32 * 2**30
_SECONDS = 300.0
DIFFER = "steps at two batches differ in more than sizes"


def source_of(model: str) -> WorkloadSource:
    """The workload of that name."""
    return resolve_source(_WORKLOADS / f"{model}.py")


def _cases(
    runner: Runner, hardware: Hardware, models: Sequence[str], known: set[tuple[str, str, int]]
) -> Iterator[Case]:
    for model in models:
        source = source_of(model)
        for name, settings in POLICIES.items():
            for batch in BATCHES:
                if (model, name, batch) not in known:
                    yield _case(runner, hardware, source, model, name, Policy(methods=settings, micro_batch=batch))


def _case(runner: Runner, hardware: Hardware, source: WorkloadSource, model: str, name: str, policy: Policy) -> Case:
    case = Case(model=model, policy=name, batch=policy.micro_batch, device=_named(hardware), versions=versions())
    result = runner.run(specs_of(hardware, source, policy).timed)
    if result.measurement is None:
        return msgspec.structs.replace(case, why_not=result.reason or result.outcome.value)
    memory = result.measurement.memory
    assert memory.peak_reserved_bytes is not None, "measured on a CUDA device"
    measured = msgspec.structs.replace(case, allocated=memory.peak_allocated_bytes, reserved=memory.peak_reserved_bytes)
    return _predict(runner, hardware, source, policy, measured)


def _again(runner: Runner, hardware: Hardware, case: Case) -> Case:
    source = source_of(case.model)
    policy = Policy(methods=POLICIES[case.policy], micro_batch=case.batch)
    return _predict(runner, hardware, source, policy, msgspec.structs.replace(case, versions=versions()))


class Specs(NamedTuple):
    """The trials of one case: the measured one, and those that predict it."""

    timed: TimeTrial
    on_device: PredictTrial
    by_profile: PredictTrial


def specs_of(hardware: Hardware, source: WorkloadSource, policy: Policy, **model_size: int | float) -> Specs:
    """The trials of one case.

    Args:
        hardware: Where it is measured.
        source: The workload.
        policy: With its batch.
        model_size: Arguments of ``build_model``.
    """
    timed = TimeTrial(
        workload=source,
        policy=policy,
        device=hardware.device,
        memory_limit_bytes=_LIMIT_BYTES,
        max_timed_steps=3,
        measure_seconds=1.0,
        time_limit_seconds=_SECONDS,
        model_size=model_size,
    )
    on_device = PredictTrial(
        workload=source,
        policy=policy,
        device=hardware.device,
        memory_limit_bytes=_LIMIT_BYTES,
        allocator_limit_bytes=_LIMIT_BYTES,
        measure_seconds=1.0,
        time_limit_seconds=_SECONDS,
        model_size=model_size,
    )
    # A CPU has no expandable segments; what the allocator would take with them is predicted in any case.
    by_profile = msgspec.structs.replace(
        on_device,
        device="cpu",
        stands_for=_described(hardware),
        policy=msgspec.structs.replace(
            policy, methods=tuple(each for each in policy.methods if each.name != "expandable_segments")
        ),
    )
    return Specs(timed, on_device, by_profile)


def _predict(runner: Runner, hardware: Hardware, source: WorkloadSource, policy: Policy, measured: Case) -> Case:
    """The case with predictions."""
    specs = specs_of(hardware, source, policy)
    traces = (runner.run(specs.on_device), runner.run(specs.by_profile))
    on_device, by_profile = (trace.prediction and predicted(trace.prediction, policy) for trace in traces)
    return msgspec.structs.replace(
        measured,
        on_device=on_device or None,
        by_profile=by_profile or None,
        why_not="; ".join(
            where + (trace.reason or DIFFER)
            for where, trace in zip(("on the device: ", "by --profile: "), traces, strict=True)
            if trace.prediction is None or not trace.prediction.reserved
        ),
    )


def _described(hardware: Hardware) -> CudaDevice:
    """The device as its profile has it."""
    name = match_profile(hardware.kind, hardware.name)
    assert name is not None, f"{hardware.name} has no profile"
    profile = load_profiles()[name]
    assert profile.compute_capability is not None, "a CUDA device has one"
    assert profile.multiprocessors is not None, "likewise"
    return CudaDevice(
        compute_capability=profile.compute_capability.value, multiprocessors=profile.multiprocessors.value
    )


def _named(hardware: Hardware) -> str:
    """The device; one in software must not be taken for a GPU."""
    return f"{hardware.name} in software" if "SOFTWARE_GPUS" in os.environ else hardware.name


def predicted(prediction: MemoryPrediction, policy: Policy) -> tuple[int, int] | None:
    """Allocated and reserved bytes; ``None`` where steps at two batches differ in more than sizes."""
    expandable = any(each.name == "expandable_segments" for each in policy.methods)
    replay = next((one for one in prediction.reserved if one.expandable == expandable), None)
    return None if replay is None else (replay.allocated_bytes, replay.peak_bytes)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.allocator_prediction", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (default: docs/results)")
    parser.add_argument("--predict-again", action="store_true", help="for the cases that were measured, nothing else")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    lines = options.output / "allocator-prediction.jsonl"
    cases = [msgspec.json.decode(line, type=Case) for line in lines.read_bytes().splitlines()] if lines.exists() else []
    known = {(case.model, case.policy, case.batch) for case in cases}
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        hardware = detect_hardware("cuda")
        if options.predict_again:
            again = [case for case in cases if case.model in options.models and case.allocated]
            if not again:
                parser.error(f"--predict-again needs cases that were measured, but {lines} has none of these models")
            found: Iterator[Case] = (_again(runner, hardware, case) for case in again)
        else:
            found = _cases(runner, hardware, options.models, known)
        for case in found:
            cases = [
                one for one in cases if (one.model, one.policy, one.batch) != (case.model, case.policy, case.batch)
            ]
            cases.append(case)
            lines.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in cases))
            print(case.model, case.policy, case.batch, case.why_not or "predicted", flush=True)
    text = page(cases)
    (options.output / "allocator-prediction.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
