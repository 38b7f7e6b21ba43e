"""The table of ``python -m benchmarks.allocator_prediction`` in a quick form: one process for all rows of some models.

    python -m tests.cuda_device.prediction_table MODEL...    # in a process that sees a GPU

Plain training and other policies of each model, every policy with at least four models that take it, are measured
and predicted on the device and by profile at the larger batch, by the functions that trials call.
The models are those of the benchmark with fewer blocks: two, and one in the largest stage of a convolutional network.
Widths stay, so that the same kernels run, and one segment is less than 3 % of the memory. Two models have rows at both
batches.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import traceback
from collections.abc import Iterator, Sequence
from subprocess import CompletedProcess

import msgspec
import torch

from advisor.errors import MethodRefusedError
from advisor.hardware.detect import detect_hardware
from advisor.policy.policy import Policy
from advisor.predict.prediction import MemoryPrediction
from advisor.trial.spec import PredictTrial, TimeTrial
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.failure import AllocatorRefusals
from advisor.trial.worker.predicting import predict
from advisor.trial.worker.timed_steps import Limits, measured
from benchmarks.allocator_page import AIMS, BATCHES, POLICIES, Case, errors_of
from benchmarks.allocator_prediction import predicted, source_of, specs_of
from tests.cuda_device.machine import Machine

__all__ = ["MODELS", "check", "rows_of"]

_BLOCKS = {"mobilenet": {}, "convnext": {"blocks": 1}, "regnet": {"blocks": 1}}
"""The blocks of a MobileNet are all different."""

_SEQUENCES = {
    "bart": ("checkpoint", "selective"),
    "by_hand": ("fused", "bf16, 8-bit", "expandable"),
    "gpt2": ("chunked loss", "bf16, 8-bit", "compression"),
    "llama": ("checkpoint", "chunked loss", "expandable"),
    "mamba": ("compression",),
    "mixtral": ("bf16", "selective", "chunked loss"),
    "opt": ("bf16", "selective", "chunked loss", "fused"),
    "roberta": ("checkpoint", "bf16, 8-bit", "compression"),
    "t5": ("bf16", "selective", "expandable"),
}
_IMAGES = {
    "convnext": ("fused", "bf16, 8-bit"),
    "mobilenet": ("bf16, 8-bit", "expandable"),
    "regnet": ("fused", "expandable", "selective"),
    "swin": ("selective", "compression"),
    "vit": ("bf16", "checkpoint", "chunked loss"),
    "whisper": ("fused", "compression"),
}
_POLICIES = _SEQUENCES | _IMAGES
"""Model -> policies beside plain training."""

_REFUSED = {"regnet": {"selective"}, "vit": {"chunked loss"}}
"""Those that have no figure, as on the page of the whole models."""

MODELS = {"sequences": tuple(_SEQUENCES), "images": tuple(_IMAGES)}
_BOTH_BATCHES = ("gpt2", "regnet")


def rows_of(models: Sequence[str]) -> CompletedProcess[str]:
    """The process that made all rows of these models, one a line; one process, as it imports for seconds."""
    command = [sys.executable, "-m", "tests.cuda_device.prediction_table", *models]
    return Machine(time=0.05).run(command, capture_output=True)


def check(model: str, ended: CompletedProcess[str]) -> None:
    """Assert that all rows of a model are there, and that they meet the aims of the whole table."""
    of_all = (msgspec.json.decode(line, type=Case) for line in ended.stdout.splitlines())
    cases = [case for case in of_all if case.model == model]
    expected = {(policy, batch) for policy in _policies_of(model) for batch in _batches(model)}
    assert {(case.policy, case.batch) for case in cases} == expected, ended.stderr
    for side, of_side in (("on_device", cases), ("by_profile", [case for case in cases if case.batch == BATCHES[-1]])):
        known = {f"{case.policy} {case.batch}": errors_of(case, side) for case in of_side if getattr(case, side)}
        assert {case.policy for case in of_side if not getattr(case, side)} == _REFUSED.get(model, set()), side
        for place, (kind, (median, worst)) in enumerate(AIMS.items()):
            errors = {row: error[place] for row, error in known.items()}
            assert {row: error for row, error in errors.items() if abs(error) > worst} == {}, (side, kind)
            assert statistics.median(map(abs, errors.values())) <= median, (side, kind, errors)


def _rows(model: str) -> Iterator[Case]:
    hardware = detect_hardware("cuda")
    source = source_of(model)
    known: dict[bytes, MemoryPrediction] = {}
    for name in _policies_of(model):
        for batch in _batches(model):
            policy = Policy(methods=POLICIES[name], micro_batch=batch)
            specs = specs_of(hardware, source, policy, **_BLOCKS.get(model, {"blocks": 2}))
            case = Case(model=model, policy=name, batch=batch, device=hardware.name, versions={})
            try:
                allocated, reserved = _measured(specs.timed)
            except MethodRefusedError as refused:
                yield msgspec.structs.replace(case, why_not=str(refused))
                continue
            case = msgspec.structs.replace(case, allocated=allocated, reserved=reserved)
            case = msgspec.structs.replace(case, on_device=predicted(_prediction(specs.on_device), policy))
            if batch == BATCHES[-1]:
                # By profile, one prediction is for both kinds of segments.
                spec = msgspec.json.encode(specs.by_profile)
                if spec not in known:
                    known[spec] = _prediction(specs.by_profile)
                case = msgspec.structs.replace(case, by_profile=predicted(known[spec], policy))
            yield case


def _policies_of(model: str) -> tuple[str, ...]:
    return ("plain", *_POLICIES[model])


def _batches(model: str) -> tuple[int, ...]:
    return BATCHES if model in _BOTH_BATCHES else BATCHES[-1:]


def _measured(spec: TimeTrial) -> tuple[int, int]:
    """Peaks of allocated and reserved bytes; nothing of an earlier row is on the device."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    bench = Bench(spec, lambda _: None, _refusals(spec))
    with bench.meter() as meter, bench.training(spec.policy) as training:
        memory = measured(bench, meter, training, spec.policy, Limits(seconds=0.01)).measurement.memory
    assert memory.peak_reserved_bytes is not None
    return memory.peak_allocated_bytes, memory.peak_reserved_bytes


def _prediction(spec: PredictTrial) -> MemoryPrediction:
    result = predict(Bench(spec, lambda _: None, _refusals(spec)))
    assert result.prediction is not None, result.reason
    return result.prediction


def _refusals(spec: TimeTrial | PredictTrial) -> AllocatorRefusals:
    return AllocatorRefusals(torch.device(spec.device))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for of_model in sys.argv[1:]:
        try:
            for row in _rows(of_model):
                print(msgspec.json.encode(row).decode(), flush=True)
        except Exception:  # one model must not hide the others
            traceback.print_exc()
    # A thread of autograd may still let go of its last objects, and abort while the interpreter is taken down.
    os._exit(0)
