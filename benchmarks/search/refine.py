"""Time the possible winners of a recorded table again, until the best is known.

    python -m benchmarks.search.refine --model gpt2 --minutes 20

On a shared machine one measurement is off by a tenth, and the best of four hundred is mostly the luckiest: no search
could find it again. So everything that may be the best, given its measurement and standard error, is timed in turn with
plain training (``benchmarks.search.in_turn``), twice as long in every round, until the standard error of all that
remain is one percent. Lines are appended as they are measured and weighted by their precision; repeat the command to
continue.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from advisor.methods.setting import MethodSetting
from advisor.search.space.space_file import load_space
from advisor.trial.worker.optional_libraries import imported
from benchmarks.json_lines import append
from benchmarks.search.in_turn import time_in_turn
from benchmarks.search.recordings import RECORDINGS, SMOKE, Recording
from benchmarks.search.table import Estimate, Table
from benchmarks.search.table_lines import Paired, Sized, compress, read

__all__ = ["contenders", "main"]

_TABLES = Path(__file__).resolve().parents[1] / "tables"
_SURE = 0.01
"""Standard error at which a measurement is precise enough."""

_ERRORS = 2.0
"""Standard errors by which the true value may exceed the measurement."""

_FIRST_SECONDS = 1.5
_LONGEST_SECONDS = 24.0
_PATIENCE_SECONDS = 60.0


def contenders(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Combinations that may be the best and are not precise enough; the most promising first.

    Args:
        estimates: Of every policy that ran.
    """
    bar = max(one.rate * math.exp(-_ERRORS * one.error) for one in estimates)
    able = [one for one in estimates if one.error > _SURE and one.rate * math.exp(_ERRORS * one.error) >= bar]
    return sorted(able, key=lambda one: -one.rate * math.exp(_ERRORS * one.error))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.refine", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=[*sorted(RECORDINGS), SMOKE.name], default="gpt2")
    parser.add_argument("--table", type=Path, help="file of JSON lines (default: MODEL-cpu.jsonl in benchmarks/tables)")
    parser.add_argument("--minutes", type=float, default=30.0, help="time limit (default: 30)")
    options = parser.parse_args(arguments)
    recording = SMOKE if options.model == SMOKE.name else RECORDINGS[options.model]
    path = options.table or _TABLES / f"{recording.name}-cpu.jsonl"
    imported(load_space(str(recording.space)).libraries)  # Imported once: it would take seconds in every fork.
    end = time.monotonic() + 60 * options.minutes
    for line in _refined(path, recording, end):
        append(path, line)
        print(f"{line.combination.label}, batch {line.batch}: x{line.ratio:.3f} ±{line.error:.1%}", flush=True)
    table = Table(read(path))
    best = max(table.estimates.values(), key=lambda one: one.rate)
    left = len(contenders(list(table.estimates.values())))
    print(
        f"best: {best.combination.label}, batch {best.batch}, standard error {best.error:.1%}; {left} not sure enough"
    )
    print(f"written: {compress(path)}")


def _refined(path: Path, recording: Recording, end: float) -> Iterator[Paired]:
    settled = {line.combination.label: line.settled for line in read(path) if isinstance(line, Sized)}
    spent: dict[tuple[str, int], float] = {}
    failed: set[str] = set()
    while left := [
        one for one in contenders(list(Table(read(path)).estimates.values())) if one.combination.label not in failed
    ]:
        combinations = {one.combination.label: one.combination for one in left}
        for label, combination in combinations.items():
            if time.monotonic() > end:
                return
            settings, batches = combination.settings, [one.batch for one in left if one.combination.label == label]
            keys = [(label, batch) for batch in batches]
            seconds = min(_LONGEST_SECONDS, max(_FIRST_SECONDS, *(2 * spent.get(key, 0.0) for key in keys)))
            spent |= dict.fromkeys(keys, seconds)
            lines = _in_fork(recording, settings, batches, seconds, settled[label])
            if not lines:
                failed.add(label)
            yield from lines


def _in_fork(
    recording: Recording,
    settings: tuple[MethodSetting, ...],
    batches: list[int],
    seconds: float,
    settled: dict[str, str],
) -> list[Paired]:
    """Time them in a process of their own; nothing if it fails."""
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, recording, settings, batches, seconds, settled))
    process.start()
    sender.close()
    try:
        if receiver.poll(_PATIENCE_SECONDS + 3 * seconds * len(batches)):
            lines: list[Paired] = receiver.recv()
            return lines
        print(f"{settings}: not within {_PATIENCE_SECONDS:.0f} s", flush=True)
    except EOFError:
        print(f"{settings}: failed", flush=True)
    finally:
        process.kill()
        process.join()
        receiver.close()
    return []


def _serve(
    sender: Connection,
    recording: Recording,
    settings: tuple[MethodSetting, ...],
    batches: list[int],
    seconds: float,
    settled: dict[str, str],
) -> None:
    lines = time_in_turn(
        recording.workload,
        settings,
        batches,
        reference_batch=recording.reference_batch,
        seconds=seconds,
        settled=settled,
    )
    sender.send(lines)


if __name__ == "__main__":
    main()
