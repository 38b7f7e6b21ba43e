"""Where a row is played: a model, a folder beside it, and the command that reads the one and writes the other."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.faults.matrix import Goal, Row, Who

__all__ = ["Again", "Scene", "arguments", "plainly"]

_ROOT = Path(__file__).resolve().parents[2]
_WORKLOADS = _ROOT / "tests" / "session" / "workloads"
_QUICK = ("--time-limit", "60s", "--device", "cpu", "--json", "--output", "out")
_OPTIONS = {
    Goal.FASTER: ("--memory-limit", "10MiB"),
    Goal.BIGGER: ("--goal", "bigger", "--min-throughput", "0.001x", "--memory-limit", "24MiB"),
    Goal.CHEAPEST: ("--goal", "cheapest", "--price", "1", "--memory-limit", "10MiB"),
}

_NOTES = "notes.txt"

Again = Callable[..., subprocess.CompletedProcess[str]]
"""``(*arguments, cwd, environment)``: runs the command undisturbed."""


class Scene(msgspec.Struct, frozen=True):
    """Everything of a row, in one folder.

    Attributes:
        folder: New.
    """

    folder: Path

    @property
    def study(self) -> Path:
        """What the command writes into."""
        return self.folder / "out"

    @property
    def gate(self) -> Path:
        """For the gate alone."""
        return self.folder / "gate"

    @property
    def temporary(self) -> Path:
        """For temporary files."""
        return self.folder / "temporary"

    @property
    def cache(self) -> Path:
        """For what is kept between studies."""
        return self.folder / "cache"

    def build(self, goal: Goal) -> None:
        """The user's model, and folders."""
        for one in (self.folder, self.temporary, self.cache):
            one.mkdir(parents=True, exist_ok=True)
        shutil.copy(_WORKLOADS / ("growing.py" if goal is Goal.BIGGER else "tiny.py"), self.folder / "model.py")

    def write_notes(self) -> None:
        """The user keeps a file of their own in the study's folder; before it is one, that would not be taken."""
        if (self.study / "study.json").exists():
            (self.study / _NOTES).write_text("mine\n")

    def users_files(self) -> dict[str, str]:
        """The user's files -> digests of what is in them."""
        found = [one for one in (self.folder / "model.py", self.study / _NOTES) if one.exists()]
        return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in found}

    def environment(self) -> dict[str, str]:
        """Of the command, besides what a user has."""
        return {
            "TMPDIR": str(self.temporary),
            "MOMADVISE_CACHE": str(self.cache),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(_ROOT),
        }


def arguments(row: Row) -> tuple[str, ...]:
    """Of the command."""
    space = ["--search-space", "smoke", "--trials", "2"]
    if row.who is Who.RANK:
        space = ["--search-space", str(Path(__file__).with_name("ranks.yaml")), "--gpus", "2", "--trials", "1"]
    return ("model.py", *_OPTIONS[row.goal], *space, *_QUICK)


def plainly(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without what a launcher or another run has set, and with these."""
    taken = ("RANK", "WORLD_SIZE", "PYTEST_CURRENT_TEST")
    return {**{name: value for name, value in os.environ.items() if name not in taken}, "COLUMNS": "120", **environment}
