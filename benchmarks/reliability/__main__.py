"""Inject faults into runs, damage studies, and record whether momadvise copes.

    python -m benchmarks.reliability

Runs all scenarios of `tests/faults` and records what passed and what failed; see the page. A scenario's line is written
as soon as it has run, and repeating the command continues with the missing ones. It takes half an hour.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from advisor.hardware.detect import detect_hardware
from advisor.session.setup.versions import versions
from benchmarks.json_lines import append
from benchmarks.reliability.lines import Line, read
from benchmarks.reliability.page import LINES, write_page
from tests.faults.damage import damages, play_damage, undamaged
from tests.faults.matrix import rows
from tests.faults.play import Played, play
from tests.faults.scene import plainly

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parents[2]
_SHORT_TURNS = (
    "import sys; from advisor.trial.process import fork_client; from tests import quick_workers; "
    "fork_client._COMMAND = quick_workers.COMMAND; from advisor.cli import main; sys.exit(main())"
)
"""The command, with trials of short turns."""


class _Results:
    """Records the results of scenarios.

    Args:
        path: File of lines.
        again: Whether to run scenarios again that have a result.
    """

    def __init__(self, path: Path, *, again: bool) -> None:
        self._path = path
        self._again = again
        hardware = detect_hardware("cpu")
        self._device, self._cores = hardware.name, hardware.host_cores

    def is_missing(self, table: str, name: str, seed: int | None) -> bool:
        """Whether it has yet to be run, by this process or by another one that shares the file."""
        return self._again or (table, name, seed) not in {line.place for line in read(self._path)}

    def write(
        self, table: str, name: str, group: str, fault: str, seed: int | None, played: Played, folder: Path
    ) -> None:
        """Write one line, and rewrite the page."""
        line = Line(
            table=table,
            name=name,
            group=group,
            fault=fault,
            seed=seed,
            problems=tuple(_portable(one, folder) for one in played.problems),
            statuses=played.statuses,
            seconds=round(played.seconds, 1),
            device=self._device,
            cores=self._cores,
            versions={name: one for name, one in versions().items() if name in ("momadvise", "python", "torch")},
            date=datetime.date.today().isoformat(),
        )
        append(self._path, line)
        write_page(self._path)
        print(f"{'passed' if not played.problems else 'FAILED'} {name}, {played.seconds:.0f} s", flush=True)
        for problem in line.problems:
            print(f"    {problem}", flush=True)


def _portable(problem: str, folder: Path) -> str:
    """The problem without paths of this machine or process ids."""
    for path, name in ((folder, "FOLDER"), (_ROOT, "."), (Path(sys.prefix), "ENVIRONMENT"), (Path.home(), "HOME")):
        problem = problem.replace(str(path), name)
    return " ".join(re.sub(r"(\.json|\.yaml|\.py)\.\d+", r"\1.PROCESS", problem).split())


def _run_command(*arguments: str, cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _SHORT_TURNS, *arguments],
        cwd=cwd,
        env=plainly(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=description)
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0 (default: 1)")
    parser.add_argument("--again", action="store_true", help="repeat scenarios that have a result")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--output", type=Path, default=LINES, help="file of lines; the page goes next to it")
    parsed = parser.parse_args(arguments)
    results = _Results(parsed.output, again=parsed.again)
    for seed in range(parsed.seeds):
        for row in rows(seed):
            if parsed.only in row.name and results.is_missing("hit", row.name, row.seed):
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                    played = play(row, Path(folder) / "row", _run_command)
                    results.write(
                        "hit", row.name, row.who.value, row.fault.value, row.seed, played, Path(folder) / "row"
                    )
    _run_damaged(results, parsed.seeds, parsed.only)


def _run_damaged(results: _Results, seeds: int, only: str) -> None:
    missing = [
        damage
        for seed in range(seeds)
        for damage in damages(seed)
        if only in damage.name and results.is_missing("damaged", damage.name, damage.seed)
    ]
    if not missing:
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        whole = undamaged(folder / "whole", _run_command)
        for number, damage in enumerate(missing):
            copy = folder / f"copy-{number}"
            played = play_damage(damage, whole, copy, _run_command)
            results.write("damaged", damage.name, damage.file, damage.how.value, damage.seed, played, copy)


if __name__ == "__main__":
    main()
