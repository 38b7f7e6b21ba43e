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
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import Hardware
from advisor.hardware.profiles import load_profiles, match_profile
from advisor.methods.use import MethodUse, use
from advisor.policy.policy import Policy
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.session.setup.versions import versions
from advisor.trial.process.runner import Runner
from advisor.trial.spec import PredictTrial, TimeTrial
from advisor.workload.source import resolve_source
from advisor.workload.workload import WorkloadSource

__all__ = [
    "AIMS",
    "BATCHES",
    "DIFFER",
    "MODELS",
    "POLICIES",
    "Case",
    "Specs",
    "errors_of",
    "main",
    "page",
    "predicted",
    "source_of",
    "specs_of",
]

ROOT = Path(__file__).resolve().parents[1]
_WORKLOADS = ROOT / "benchmarks" / "workloads" / "unseen"
MODELS = sorted(path.stem for path in _WORKLOADS.glob("*.py"))
BATCHES = (4, 12)
_LIMIT_BYTES = 32 * 2**30
_SECONDS = 300.0
_WORST = 5
_SHOWN = 0.00005
"""Smaller errors are 0.00%."""
AIMS = {"allocated": (0.002, 0.02), "reserved": (0.005, 0.03)}
"""Median and worst relative error that are wanted, on the device and by ``--profile``."""
DIFFER = "steps at two batches differ in more than sizes"

POLICIES: dict[str, tuple[MethodUse, ...]] = {
    "plain": (),
    "bf16": (use("precision", dtype="bf16"),),
    "checkpoint": (use("checkpoint", every=1),),
    "selective": (use("selective_checkpoint", recompute="attention"),),
    "chunked loss": (use("chunked_cross_entropy", chunks=8),),
    "fused": (use("fused_optimizer"),),
    "bf16, 8-bit": (use("adam_8bit"), use("precision", dtype="bf16")),
    "expandable": (use("expandable_segments"),),
    "compression": (use("compress_activations", bits=4),),
}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One model under one policy at one batch.

    Attributes:
        model: Name of the workload.
        policy: Name of the policy.
        batch: Samples.
        why_not: Why there are no figures; empty if there are.
        allocated: Peak of allocated bytes in a timed trial.
        reserved: Peak of reserved bytes there.
        on_device: What is predicted on the device: ``(allocated, reserved)``.
        by_profile: What is predicted on a CPU.
        device: Where it was measured.
        versions: Package -> version.
    """

    model: str
    policy: str
    batch: int
    why_not: str = ""
    allocated: int = 0
    reserved: int = 0
    on_device: tuple[int, int] | None = None
    by_profile: tuple[int, int] | None = None
    device: str
    versions: dict[str, str]


def source_of(model: str) -> WorkloadSource:
    """The workload of that name."""
    return resolve_source(_WORKLOADS / f"{model}.py")


def _cases(
    runner: Runner, hardware: Hardware, models: Sequence[str], known: set[tuple[str, str, int]]
) -> Iterator[Case]:
    for model in models:
        source = source_of(model)
        for name, uses in POLICIES.items():
            for batch in BATCHES:
                if (model, name, batch) not in known:
                    yield _case(runner, hardware, source, model, name, Policy(methods=uses, micro_batch=batch))


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


def page(cases: Sequence[Case]) -> str:
    """The errors as a Markdown page."""
    first = cases[0]
    used = ", ".join(f"{package} {version}" for package, version in first.versions.items())
    parts = ["# Predicted memory against torch's allocator", _EXPLANATION, f"On {first.device}, with {used}."]
    for title, side in (("On the device", "on_device"), ("By `--profile`, on a CPU", "by_profile")):
        rows = []
        for label, members in _groups(cases):
            errors = [errors_of(case, side) for case in members if getattr(case, side) is not None]
            if errors:
                rows.append(
                    f"| {label} | {len(errors)} | {_cells([a for a, _ in errors])} | {_cells([r for _, r in errors])} |"
                )
        known = [case for case in cases if getattr(case, side) is not None]
        worst: list[str] = []
        for place, kind in enumerate(("allocated", "reserved")):
            found = ((errors_of(case, side)[place], case) for case in known)
            off = sorted((pair for pair in found if abs(pair[0]) >= _SHOWN), key=lambda pair: -abs(pair[0]))[:_WORST]
            named = "; ".join(f"{error:+.2%} {case.model}, {case.policy}, batch {case.batch}" for error, case in off)
            worst.append(f"Furthest off, {kind}: {named or 'none'}.")
        parts += [f"## {title}", "\n".join([*_HEAD, *rows]), *worst]
    if without := list(_without(cases)):
        parts += ["## Without a figure", "\n".join(without)]
    return "\n\n".join(parts) + "\n"


_EXPLANATION = """\
`python -m benchmarks.allocator_prediction` compares what `momadvise predict` says with the peaks of timed trials, for
models that are no examples of this project. Allocated is what blocks in use have, those of cuBLAS's workspaces among
them; reserved is what the allocator took from the device for it. Errors are (predicted - measured) / measured, and the
median is of their magnitude.

What kernels take inside of themselves is derived from torch's source and computed from shapes, strides and types:
partial results of reductions, parts of gradients in attention, copies for convolutions and normalizations, what is
sorted for an embedding's gradient. Left out are what cuDNN's plans and cuBLASLt take, which a device in software does
not have either: figures of convolutional networks leave cuDNN's workspaces out on both sides. Also left out are the
indices that putting gradients into places sorts (five times the indices), temporary storage of scans (a few KiB), and
partial results of sums over more than 2 GiB, which torch makes in several parts.

The model is taken to be where it is moved to: parameters and buffers in the order of `Module.to`, in segments of fixed
size also where segments expand afterwards, and nothing of what the host does before.

`gpt2`, `convnext` and `swin` were added when all rules but four had been written: depthwise convolutions with channels
last are cuDNN's, a roll over several dimensions takes memory for each, a linear layer of any contiguous input is one
product with its bias in it, and the input's gradient of a layer normalization is contiguous. `convnext` and `swin`
showed that these were missing; they follow torch's source, and no figure is fitted.

Every row was measured and predicted with the same rules. A model has at most 18 rows, nine policies at two batches; the
end of the page says for each that is missing why. Where a compressed step does not only grow with the batch (the coded
pieces of some convolutional networks), nothing is said of reserved memory.

The mask of `roberta` is spread over positions by the model's file: whether one for each token is spread at all depends
on its values, and on a device in software every mask holds."""

_HEAD = (
    "| | cases | allocated: median | lowest | highest | reserved: median | lowest | highest |",
    "|---|---|---|---|---|---|---|---|",
)


def _without(cases: Sequence[Case]) -> Iterator[str]:
    """A line for each model and policy that lacks a figure at a batch, with the reason."""
    known = {(case.model, case.policy, case.batch): case.why_not for case in cases}
    for model, policy in itertools.product(dict.fromkeys(case.model for case in cases), POLICIES):
        reasons: dict[str, list[str]] = {}
        for batch in BATCHES:
            if why_not := known.get((model, policy, batch), "not measured"):
                reasons.setdefault(why_not, []).append(str(batch))
        for why_not, batches in reasons.items():
            yield f"- {model}, {policy}, batch {' and '.join(batches)}: {why_not}"


def _groups(cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    keys: tuple[Callable[[Case], str], ...] = (lambda case: case.model, lambda case: case.policy)
    for key in keys:
        for name in dict.fromkeys(map(key, cases)):
            yield name, [case for case in cases if key(case) == name]
    yield "**all**", list(cases)


def errors_of(case: Case, side: str) -> tuple[float, float]:
    """Of allocated and of reserved memory, relative to what was measured."""
    allocated, reserved = getattr(case, side)
    return allocated / case.allocated - 1, reserved / case.reserved - 1


def _cells(errors: Sequence[float]) -> str:
    return f"{statistics.median(map(abs, errors)):.2%} | {min(errors):+.2%} | {max(errors):+.2%}"


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
