"""How long the ranks of a pipeline are idle, by schedule: measured on stages that sleep.

    python -m benchmarks.pipeline_bubble                   # 4 ranks, 4 to 16 micro-batches, about five minutes

Every rank has two blocks. A block sleeps for half a pass in its forward pass, in the backward pass of its input and in
that of its weight: a rank that is not idle works three passes for each micro-batch. Sleeping takes no processor, so the
schedule is measured and not the machine: what is beyond the formula is what sending and starting costs. Prints a
Markdown page and writes it next to its lines.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from advisor.hardware.detect import detect_hardware
from advisor.methods.pipeline._pipeline_parallel import PipelineParallel
from advisor.methods.pipeline.schedule_rules import SCHEDULES, in_flight, stages_per_rank
from advisor.session.setup.versions import versions
from benchmarks.markdown import days, packages

__all__ = ["Row", "formula", "main", "measured_rows", "page"]

_RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps of one schedule.

    Attributes:
        schedule: Its name.
        ranks: Ranks of the pipeline.
        micro_batches: Micro-batches of a step.
        pass_seconds: How long a rank works in each of the three passes of a micro-batch.
        step_seconds: Duration of every step, until the last rank has ended it.
        device: Where it was measured.
        date: ISO date.
        versions: Package -> version.
    """

    schedule: str
    ranks: int
    micro_batches: int
    pass_seconds: float
    step_seconds: tuple[float, ...]
    device: str
    date: str
    versions: dict[str, str]

    @property
    def idle(self) -> tuple[float, ...]:
        """Idle time of every step, relative to the time that a rank works."""
        work = 3 * self.micro_batches * self.pass_seconds
        return tuple(seconds / work - 1 for seconds in self.step_seconds)


def formula(schedule: str, ranks: int, micro_batches: int) -> float:
    """Idle time relative to work, if three passes take equally long and sending takes none.

    Sources: Huang et al. 2019 (GPipe), Narayanan et al. 2021 (interleaved), Qi et al. 2024 (zero bubble; of the V
    schedule only the way of the first micro-batch down the ranks is left, a sixth of (p - 1) / m).
    """
    share = 1 / 6 if schedule == "zero_bubble" else 1 / stages_per_rank(schedule)
    return (ranks - 1) * share / micro_batches


class _Sleep(torch.autograd.Function):
    """Hands a tensor on; sleeps in its forward and its backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.backward_seconds = backward
        time.sleep(forward)
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        time.sleep(ctx.backward_seconds)
        return gradients[0], None, None


class _Block(torch.nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.weight = torch.nn.Parameter(torch.zeros(8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        weight = _Sleep.apply(self.weight, 0.0, self.seconds)  # type: ignore[no-untyped-call]
        slept = _Sleep.apply(hidden, self.seconds, self.seconds)  # type: ignore[no-untyped-call]
        total: torch.Tensor = slept + weight
        return total


class _Model(torch.nn.Module):
    def __init__(self, blocks: int, seconds: float) -> None:
        super().__init__()
        self.start = torch.nn.Parameter(torch.zeros(8))
        self.blocks = torch.nn.ModuleList(_Block(seconds) for _ in range(blocks))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs + self.start
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.square().mean()


def _share(model: torch.nn.Module, count: int, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch)
    return loss / count


def _rank(
    rank: int, size: int, folder: str, schedules: Sequence[str], counts: Sequence[int], seconds: float, steps: int
) -> None:
    """Measure all cases; the first rank writes down what was measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    found: dict[str, list[float]] = {}
    try:
        for schedule in schedules:
            model = _Model(2 * size, seconds / 2)
            group = dist.group.WORLD
            assert group is not None, "it was initialized"
            pipeline = PipelineParallel(model, list(model.blocks), group, schedule=schedule)
            for count in counts:
                batches = [torch.zeros(1, 8) for _ in range(count)]
                durations = []
                for _ in range(steps + 1):
                    dist.barrier()
                    started = time.perf_counter()
                    pipeline.step(batches, functools.partial(_share, model, count))
                    dist.barrier()
                    durations.append(time.perf_counter() - started)
                found[f"{schedule}/{count}"] = durations[1:]  # The first sets the pipeline up.
        if rank == 0:
            (Path(folder) / "found.json").write_bytes(msgspec.json.encode(found))
    finally:
        dist.destroy_process_group()


def measured_rows(
    *, ranks: int = 4, counts: Sequence[int] = (4, 8, 16), seconds: float = 0.15, steps: int = 3
) -> list[Row]:
    """Every schedule with every number of micro-batches.

    Args:
        ranks: Ranks of the pipeline.
        counts: Micro-batches of a step.
        seconds: How long a rank works in each pass of a micro-batch.
        steps: Steps to measure.
    """
    hardware = detect_hardware("cpu")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (ranks, folder, SCHEDULES, counts, seconds, steps), nprocs=ranks)  # type: ignore[no-untyped-call]
        found = msgspec.json.decode((Path(folder) / "found.json").read_bytes(), type=dict[str, tuple[float, ...]])
    return [
        Row(
            schedule=schedule,
            ranks=ranks,
            micro_batches=count,
            pass_seconds=seconds,
            step_seconds=found[f"{schedule}/{count}"],
            device=hardware.name,
            date=datetime.date.today().isoformat(),
            versions=versions(),
        )
        for schedule in SCHEDULES
        for count in counts
    ]


_HEAD = """# Idle time of pipelines

`python -m benchmarks.pipeline_bubble` trains a model whose blocks sleep, in stages on several ranks, by each schedule
of `pipeline`. A rank that is not idle works for three passes of each micro-batch (forward, backward of its inputs,
backward of its weights), which take equally long here. *Idle* is the rest of a step relative to that work, the median
of the steps and their range; the *formula* is what remains if sending and starting cost nothing: (p - 1) / m for
`gpipe` and `1f1b`, (p - 1) / 2m for `interleaved` and (p - 1) / 6m for `zero_bubble`, with p ranks and m micro-batches.
As many micro-batches as ranks are too few for `zero_bubble`'s formula, which needs about twice as many: until the first
backward pass there is nothing to fill the gaps with.
*In flight* is the bound of the micro-batches whose activations a stage keeps at once, on the stage that keeps most.
Sleeping takes no processor, so more ranks than cores do no harm; what is beyond the formula is Python, gloo and the
scheduler of a shared machine. Times on GPUs were not measured.
"""


def page(rows: Sequence[Row]) -> str:
    """The page of the measured rows."""
    lines = [
        _HEAD,
        f"Measured on {rows[0].device}, {days(row.date for row in rows)}, with "
        f"{packages(row.versions for row in rows)}.",
        "",
        "| schedule | ranks | micro-batches | idle, measured | formula | difference | in flight |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        wanted, found = formula(row.schedule, row.ranks, row.micro_batches), statistics.median(row.idle)
        alive = max(
            in_flight(row.schedule, stage, micro_batches=row.micro_batches, size=row.ranks)
            for stage in range(row.ranks * stages_per_rank(row.schedule))
        )
        lines.append(
            f"| {row.schedule} | {row.ranks} | {row.micro_batches} | "
            f"{found:.1%} ({min(row.idle):.1%} to {max(row.idle):.1%}) | {wanted:.1%} | {found - wanted:+.1%} | "
            f"{alive} |"
        )
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_bubble", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4, help="ranks of the pipeline (default: 4)")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[4, 8, 16], help="per step (default: 4 8 16)")
    parser.add_argument("--seconds", type=float, default=0.15, help="work of a rank in a pass (default: 0.15)")
    parser.add_argument("--steps", type=int, default=3, help="steps to measure (default: 3)")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder (default: docs/results)")
    options = parser.parse_args(arguments)
    rows = measured_rows(
        ranks=options.ranks, counts=options.micro_batches, seconds=options.seconds, steps=options.steps
    )
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "pipeline-bubble.jsonl").write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in rows))
    text = page(rows)
    (options.output / "pipeline-bubble.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
