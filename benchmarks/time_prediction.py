"""Predicted and measured step times: the roofline alone, with one measured batch, and with two.

    python -m benchmarks.time_prediction --size smoke      # a minute or two, on any CPU
    python -m benchmarks.time_prediction                   # the models of examples/

Each setting is trained at three batches. The roofline is compared with all three. Calibrated at the smallest, and by a
line through the smaller two, it is compared with the largest, which neither has seen. "Plain's factor" uses no
measurement of the setting itself: it is the ratio of measured to predicted time of plain training at the smallest
batch. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.measure.memory.meter import listening
from advisor.measure.speed.device_rates import device_rates
from advisor.measure.timing import TimingPlan, time_steps
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.predict.step_work import StepWork, work_through
from advisor.predict.trace.work_counter import WorkCounter
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.source import resolve_source
from benchmarks.calibration import TimePrediction

__all__ = ["Row", "main", "rows_of", "table"]

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    "smoke": {
        name: ROOT / "benchmarks" / "workloads" / f"{name}.py" for name in ("tiny_gpt2", "tiny_bert", "tiny_cnn")
    },
    "full": {name: ROOT / "examples" / f"{name}.py" for name in ("gpt2", "bert_classifier", "resnet50")},
}
_BATCHES = {"smoke": (4, 8, 24), "full": (2, 4, 8)}
_SETTINGS: dict[str, tuple[MethodSetting, ...]] = {"plain": (), "checkpoint every=1": (use("checkpoint", every=1),)}


Clock = Callable[[], float]
_CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of one model at one batch; times are per step.

    Attributes:
        model: Name of the model.
        setting: Name of the setting.
        batch: Samples.
        measured: Median of the timed steps.
        roofline: Predicted from the rates of the device alone.
        bound: The limiting resource of the prediction, by phase.
        plain_factor: Predicted with the factor of plain training at the smallest batch.
        one_batch: Predicted with this setting's own factor there; ``None`` if that would be its own measurement.
        two_batches: Predicted by a line through the smaller two batches; ``None`` if it is one of them.
    """

    model: str
    setting: str
    batch: int
    measured: float
    roofline: float
    bound: str
    plain_factor: float | None
    one_batch: float | None
    two_batches: float | None


def rows_of(
    name: str, workload: Workload, batches: tuple[int, int, int], device: torch.device, clock: Clock, seconds: float
) -> Iterator[Row]:
    """Measure and predict every setting of one model.

    Args:
        name: Name of the model.
        workload: The model.
        batches: Growing batches.
        device: The device.
        clock: Times the steps.
        seconds: Seconds of timed steps at each batch.
    """
    rates = device_rates(device)
    plain: TimePrediction | None = None
    for setting, settings in _SETTINGS.items():
        prediction = TimePrediction(work=_counted(workload, settings, (batches[0], batches[-1]), device), rates=rates)
        measured = {batch: _measured(workload, settings, batch, device, clock, seconds) for batch in batches}
        first, second, last = batches
        one = prediction.calibrated({first: measured[first]})
        two = one.calibrated({second: measured[second]})
        plain = plain or one
        factor = plain.at(first).predicted_seconds / predicted(plain, first)
        for batch in batches:
            step = prediction.at(batch)
            unseen = batch == last
            yield Row(
                model=name,
                setting=setting,
                batch=batch,
                measured=measured[batch],
                roofline=step.predicted_seconds,
                bound=", ".join(f"{part.phase.value}: {part.bound.value}" for part in step.phases),
                plain_factor=factor * step.predicted_seconds if settings or batch != first else None,
                one_batch=one.at(batch).predicted_seconds if batch != first else None,
                two_batches=two.at(batch).predicted_seconds if unseen else None,
            )


def predicted(prediction: TimePrediction, batch: int) -> float:
    """The roofline alone, regardless of measurements."""
    return msgspec.structs.replace(prediction, measured_seconds={}).at(batch).predicted_seconds


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, with the mean errors below."""
    lines = [
        "| model | setting | batch | measured | roofline | plain's factor | one batch | two batches | bound by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [_cell(row, name) for name in _PREDICTED]
        known = [row.model, row.setting, f"{row.batch}", f"{row.measured * 1e3:.1f} ms"]
        lines.append(f"| {' | '.join([*known, *cells, row.bound])} |")
    means = [
        f"{name.replace('_', ' ')} {statistics.mean(errors):.1%} (largest {max(errors):.1%})"
        for name in _PREDICTED
        if (errors := [abs(error) for row in rows if (error := _error(row, name)) is not None])
    ]
    return "\n".join([*lines, "", "Mean error: " + ", ".join(means) + "."])


_PREDICTED = ("roofline", "plain_factor", "one_batch", "two_batches")


def _error(row: Row, name: str) -> float | None:
    seconds = getattr(row, name)
    return None if seconds is None else seconds / row.measured - 1


def _cell(row: Row, name: str) -> str:
    error = _error(row, name)
    return "" if error is None else f"{getattr(row, name) * 1e3:.1f} ms ({error:+.0%})"


def _counted(
    workload: Workload, settings: tuple[MethodSetting, ...], batches: tuple[int, int], device: torch.device
) -> StepWork:
    with FakeTensorMode():
        training = apply_policy(
            Policy(methods=settings, micro_batch=2**20), workload.build_model(), device=device, **_options(workload)
        )
        try:
            training.step(workload.make_batch(batches[0]))  # makes the optimizer's state
            counted = []
            for batch in batches:
                counter = WorkCounter()
                with counter, listening(training, functools.partial(setattr, counter, "phase")):
                    training.step(workload.make_batch(batch))
                counted.append((batch, counter.works))
            return work_through(*counted)
        finally:
            training.close()


def _measured(
    workload: Workload,
    settings: tuple[MethodSetting, ...],
    batch_size: int,
    device: torch.device,
    clock: Clock,
    seconds: float,
) -> float:
    policy = Policy(methods=settings, micro_batch=batch_size)
    training = apply_policy(policy, workload.build_model(), device=device, **_options(workload))
    batch = workload.make_batch(batch_size)
    plan = TimingPlan(
        warmup_steps=2, min_timed_steps=5, max_timed_steps=50, target_spread=0.03, measure_seconds=seconds
    )

    def step() -> None:
        float(training.step(batch))  # waits for the device

    try:
        return time_steps(step, plan, clock).typical_seconds
    finally:
        training.close()


def _options(workload: Workload) -> dict[str, Any]:
    names = ("compute_loss", "build_optimizer", "count_targets", "linear_head", "max_grad_norm", "blocks")
    return {name: value for name in names if (value := getattr(workload, name))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.time_prediction", description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=tuple(SIZES), default="full")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of timed steps of each case (default: 3)")
    parser.add_argument(
        "--clock",
        choices=tuple(_CLOCKS),
        default="wall",
        help="processor: CPU time of one thread, for shared machines (default: wall)",
    )
    options = parser.parse_args(arguments)
    device, clock = torch.device(options.device), _CLOCKS[options.clock]
    rows: list[Row] = []
    for name, path in SIZES[options.size].items():
        workload = load_workload(resolve_source(path))
        rows += rows_of(name, workload, _BATCHES[options.size], device, clock, options.seconds)
    print(table(rows))


if __name__ == "__main__":
    main()
