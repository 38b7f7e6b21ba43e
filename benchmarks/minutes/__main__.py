"""What a few minutes of momadvise buy, measured independently of it.

    python -m benchmarks.minutes
    python -m benchmarks.minutes --busy

For each of ten workloads the command runs as a user would run it. Then its wrapper, the unmodified file and a reference
set of settings that a person might try alternate, each in its own process; see the other modules of this package. A
workload's row is written as soon as it is done, and repeating the command continues with the missing ones. Further runs
of a workload (``--repeat``) measure the advice and the best of the set of the first run.
"""

from __future__ import annotations

import argparse
import datetime
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from advisor.errors import UserError
from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.session.setup.versions import versions
from benchmarks.json_lines import append, file_of
from benchmarks.minutes.busy import one_core_busy
from benchmarks.minutes.contest import Contest, starter_of
from benchmarks.minutes.momadvise_run import run_momadvise
from benchmarks.minutes.page import page, write_page
from benchmarks.minutes.rows import Row, read, read_runs
from benchmarks.minutes.settings import REFERENCE_SET, Setting
from benchmarks.minutes.turns import Pacing
from benchmarks.minutes.workloads import SIZES, Size, Workload

__all__ = ["Options", "main"]

_KEPT_BYTES = 2**30
"""Host memory that is left free for everything else that runs."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command.

    Attributes:
        size: Name of the size.
        workloads: The workloads of that size to measure.
        hardware: The device.
        output: File of rows.
        again: Whether to measure rows again that are already in the file.
        busy: Whether to keep one core busy.
        time_limit: momadvise's ``--time-limit``; ``None`` for its default.
        repeats: Runs of every workload.
        seed: Seed of the arms.
        most_rounds: Most rounds of a comparison.
        pair_seconds: Longest time of a comparison; ``None`` for the size's own.
        keep: Folder to keep studies in; ``None`` to keep none.
    """

    size: str
    workloads: tuple[Workload, ...]
    hardware: Hardware
    output: Path
    again: bool
    busy: bool
    time_limit: str | None
    repeats: int
    seed: int
    most_rounds: int
    pair_seconds: float | None
    keep: Path | None

    @property
    def sized(self) -> Size:
        """The size's settings."""
        return SIZES[self.size]


def run(options: Options) -> None:
    """Measure what is missing, and rewrite the page after every workload."""
    for repeat in range(1, options.repeats + 1):
        for workload in options.workloads:
            known = {row.place: row for row in read(options.output)}
            place = (workload.name, options.size, options.busy, repeat, options.time_limit, options.hardware.name)
            if place in known and not options.again:
                continue
            print(f"{workload.name}, run {repeat} of {options.repeats}{', one core busy' * options.busy}", flush=True)
            first = known.get((*place[:3], 1, *place[4:])) if repeat > 1 else None
            with one_core_busy(options.busy):
                row = _measured(options, workload, repeat, _settings(options.sized, first))
            append(options.output, row)
            write_page(options.output)
    print("\n" + page([row for row in read_runs(options.output) if row.size == options.size]))


def _settings(size: Size, first: Row | None) -> tuple[Setting, ...]:
    """The reference settings of a run: all of them in the first run, then only its best, if any of them was."""
    if first is not None and first.best is not None:
        return tuple(one for one in REFERENCE_SET if one.name == first.best)
    return tuple(one for one in REFERENCE_SET if not size.settings or one.name in size.settings)


def _measured(options: Options, workload: Workload, repeat: int, settings: Sequence[Setting]) -> Row:
    size, hardware = options.sized, options.hardware
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Code compiled in an earlier run would be reused, but every run should be like a first one.
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "compiled")}
        arguments = [*size.arguments, "--device", hardware.device]
        if options.time_limit is not None:
            arguments += ["--time-limit", options.time_limit]
        study = _study(options, Path(folder), f"{workload.name}-{repeat}{'-busy' * options.busy}")
        advice = run_momadvise(workload.path, study, arguments=arguments, environment=environment)
        _tell(f"  momadvise: {advice.reason or f'{advice.winner}, batch {advice.batch}'}, {advice.wall_seconds:.0f} s")
        own_batch = workload.own_batch or advice.baseline_batch
        row = Row(
            workload=workload.name,
            size=options.size,
            busy=options.busy,
            repeat=repeat,
            time_limit=options.time_limit,
            seed=options.seed,
            device=hardware.name,
            cores=hardware.host_cores,
            versions=versions(),
            date=datetime.date.today().isoformat(),
            advice=advice,
            untouched_batch=own_batch,
            arms=(),
            best=None,
            advice_beside_best=None,
        )
        if own_batch is None:
            return msgspec.structs.replace(
                row, reason="the file states no batch, and there is no answer to take it from"
            )
        start = starter_of(
            workload.path,
            own_batch=own_batch,
            wrapper=study / "wrapper.py",
            wrapper_batch=advice.batch,
            device=hardware.device,
            seed=options.seed,
            environment=environment,
            free_bytes=lambda: _free_bytes(hardware),
        )
        pacing = Pacing(
            turn_seconds=size.turn_seconds,
            least_rounds=size.least_rounds,
            most_rounds=options.most_rounds,
            seconds=options.pair_seconds or size.pair_seconds,
        )
        found = Contest(start, settings, pacing, seed=options.seed + repeat, tell=_tell).measured(
            advised=advice.batch is not None
        )
    return msgspec.structs.replace(
        row, arms=found.arms, best=found.best, advice_beside_best=found.advice_beside_best, reason=found.reason
    )


def _study(options: Options, temporary: Path, name: str) -> Path:
    """A new folder: an earlier answer in it would be reused instead of measured."""
    if options.keep is None:
        return temporary / "study"
    options.keep.mkdir(parents=True, exist_ok=True)
    return options.keep.resolve() / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def _free_bytes(hardware: Hardware) -> int | None:
    if hardware.kind is not DeviceKind.CPU:
        return None
    return max(_KEPT_BYTES, detect_hardware(hardware.device).host_free_bytes - _KEPT_BYTES)


def _tell(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; a user error ends it with its reason."""
    run(_options(arguments))


def _options(arguments: Sequence[str] | None) -> Options:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.minutes", description=description)
    parser.add_argument("--size", choices=tuple(SIZES), default="full", help="smoke: a tiny model, one minute")
    parser.add_argument("--only", metavar="NAME[,NAME]", help="these workloads (default: all of the size)")
    parser.add_argument("--busy", action="store_true", help="keep one core busy with another process throughout")
    parser.add_argument("--repeat", type=_count, default=1, help="runs of every workload (default: 1)")
    parser.add_argument("--again", action="store_true", help="repeat rows that have a result")
    parser.add_argument("--time-limit", help="time limit of momadvise (default: its own)")
    parser.add_argument("--rounds", type=_count, default=Pacing().most_rounds, help="most rounds of a comparison")
    parser.add_argument("--seconds", type=_count, help="time limit of a comparison (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, batches and the order of the arms")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: what momadvise would choose)")
    parser.add_argument(
        "--output",
        type=Path,
        help="file of rows (default: minutes-DEVICE.jsonl in docs/results; smoke: in build/results)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the study folders there (default: none)")
    parsed = parser.parse_args(arguments)
    try:
        hardware = detect_hardware(parsed.device)
    except UserError as error:
        parser.error(str(error))
    workloads = {one.name: one for one in SIZES[parsed.size].workloads}
    names = parsed.only.split(",") if parsed.only else list(workloads)
    if unknown := [name for name in names if name not in workloads]:
        parser.error(f"--only must name workloads of {', '.join(workloads)}, but got {', '.join(unknown)}")
    return Options(
        size=parsed.size,
        workloads=tuple(workloads[name] for name in names),
        hardware=hardware,
        output=parsed.output or file_of(f"minutes-{hardware.kind.value}", parsed.size),
        again=parsed.again,
        busy=parsed.busy,
        time_limit=parsed.time_limit,
        repeats=parsed.repeat,
        seed=parsed.seed,
        most_rounds=parsed.rounds,
        pair_seconds=parsed.seconds,
        keep=parsed.keep,
    )


def _count(text: str) -> int:
    """A positive integer of the command line."""
    value = int(text)
    if value < 1:
        raise ValueError(text)  # argparse names the option and the value
    return value


if __name__ == "__main__":
    main()
