"""Record an exhaustive table: every valid combination of a search space on one workload, at two batches each.

    python -m benchmarks.search.record --model gpt2 --device cpu --output benchmarks/tables/gpt2-cpu.jsonl

Every combination is sized by profiling runs, as in a session, and timed at the largest batch that they predict to fit
the memory limit and at the other fractions of it that the space lists. Lines are appended as they are measured and
never measured again, so an interrupted recording continues. The order of the combinations is shuffled, and plain
training is measured again after every few of them, so that the drift of a shared machine affects all methods alike and
can be divided out. A complete table is written in compressed form next to the file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from advisor.hardware.detect import detect_hardware
from advisor.trial.process.runner import Runner
from advisor.workload.source import resolve_source
from benchmarks.json_lines import append, file_of
from benchmarks.search.recorder import Recorder
from benchmarks.search.recordings import RECORDINGS, SMOKE
from benchmarks.search.table_lines import Header, Line, Sized, Timed, compress, read

__all__ = ["main"]

_TABLES = Path(__file__).resolve().parents[1] / "tables"
_MEASURE_SECONDS = {"smoke": 0.2, "full": 0.6}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.record", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(RECORDINGS), default="gpt2")
    parser.add_argument("--size", choices=("smoke", "full"), default="full", help="smoke: a tiny model, in seconds")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: what momadvise would choose)")
    parser.add_argument("--combinations", type=int, help="most combinations to record (default: all)")
    parser.add_argument(
        "--output",
        type=Path,
        help="file of JSON lines (default: MODEL-DEVICE.jsonl in benchmarks/tables; smoke: in build/results)",
    )
    options = parser.parse_args(arguments)
    # With several threads, small steps would mostly measure the machine's other work.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    hardware = detect_hardware(options.device)
    recording = SMOKE if options.size == "smoke" else RECORDINGS[options.model]
    output = options.output or file_of(f"{recording.name}-{hardware.kind.value}", options.size, _TABLES)
    with tempfile.TemporaryDirectory() as folder, Runner(Path(folder)) as runner:
        recorder = Recorder(
            recording,
            resolve_source(recording.workload),
            hardware,
            runner,
            measure_seconds=_MEASURE_SECONDS[options.size],
            known=read(output),
        )
        for line in recorder.lines(options.combinations):
            append(output, line)
            print(_shown(line), flush=True)
    if options.combinations is None:
        print(f"complete: {compress(output)}")


def _shown(line: Line) -> str:
    if isinstance(line, Header):
        return f"{line.workload}: {line.space.count} combinations below {line.limit_bytes / 2**20:.0f} MiB"
    if isinstance(line, Sized):
        batches = ", ".join(str(point.micro_batch) for point in line.points)
        runs = f"profiling runs at {batches or 'no batch'}"
        return f"{line.combination.label}: {runs} ({line.outcome}{_because(line.reason)})"
    assert isinstance(line, Timed), "pairs are timed by refine alone"
    if line.step_seconds is None or line.peak_bytes is None:
        return f"    batch {line.batch}: {line.outcome}{_because(line.reason)}"
    what = "plain training again, " if line.reference else "    "
    ratio = "" if line.ratio is None else f"  x{line.ratio:.2f}"
    return f"{what}batch {line.batch}: {line.step_seconds * 1e3:.1f} ms, {line.peak_bytes / 2**20:.1f} MiB{ratio}"


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


if __name__ == "__main__":
    main()
