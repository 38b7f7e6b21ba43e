"""Studies that somebody, or a disk, has damaged, as data: rows of the same matrix, played by the command alone."""

from __future__ import annotations

import enum
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.faults import invariants
from tests.faults.gate import At, Place
from tests.faults.matrix import Fault, Goal, Row, Who
from tests.faults.play import Played
from tests.faults.scene import Again, Scene, arguments

__all__ = ["DAMAGE_SAMPLE", "Damage", "How", "damages", "play_damage", "undamaged"]


class How(enum.Enum):
    """What is done to a file."""

    CUT = "cut in mid line"
    EMPTY = "empty"
    FLIPPED = "a flipped bit"
    FOLDER = "a folder in its place"
    """Or a file in that of a folder."""
    UNREADABLE = "reading fails"
    GONE = "gone"


class Damage(msgspec.Struct, frozen=True):
    """One damaged study, and the command that made it.

    Attributes:
        file: Of the study; ``trials/KIND/NAME`` is that of the first trial of a kind.
        how: What was done to it.
        answered: Whether the study still has its answer; else it is as after a kill.
        seed: Of the place in the file.
    """

    file: str
    how: How
    answered: bool
    seed: int = 0

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.file}: {self.how.value}" + ("" if self.answered else ", no answer")


_ANSWERED = ("answer.json", "policy.yaml", "wrapper.py", "study.json", "identity.json")
_UNANSWERED = (
    "ledger.jsonl",
    "study.db",
    *(f"trials/{kind}/result.json" for kind in ("probe", "size", "time", "confirm")),
    "trials/time/spec.json",
    "identity.json",
    "trials",
)


def _makes_sense(file: str, how: How) -> bool:
    return file != "trials" or how in (How.FOLDER, How.GONE)


def damages(seed: int) -> Iterator[Damage]:
    """Each damage to each file.

    Args:
        seed: Draws where.
    """
    for answered, files in ((True, _ANSWERED), (False, _UNANSWERED)):
        for file in files:
            for how in How:
                if _makes_sense(file, how):
                    yield Damage(file, how, answered, seed)


DAMAGE_SAMPLE = (
    Damage("ledger.jsonl", How.CUT, answered=False),
    Damage("ledger.jsonl", How.FOLDER, answered=False),
    Damage("trials/time/result.json", How.EMPTY, answered=False),
    Damage("trials/size/result.json", How.FLIPPED, answered=False),
    Damage("answer.json", How.CUT, answered=True),
    Damage("identity.json", How.CUT, answered=True),
)
"""What every run of the tests plays."""

_ROW = Row(Who.COMMAND, Fault.KILL, Goal.FASTER, Place(At("answer.json", "written")))
"""Whose command makes the study, undisturbed."""


def undamaged(folder: Path, run: Again) -> Scene:
    """A study with its answer.

    Args:
        folder: New.
        run: Runs the command.
    """
    scene = Scene(folder)
    scene.build(_ROW.goal)
    made = run(*arguments(_ROW), cwd=folder, environment=scene.environment())
    assert made.returncode == 0, made.stderr
    scene.write_notes()
    return scene


def play_damage(damage: Damage, whole: Scene, folder: Path, again: Again) -> Played:
    """Damage a copy of a study, and run its command.

    Args:
        damage: What to do.
        whole: The study.
        folder: New, for the copy.
        again: Runs the command.
    """
    begin = time.monotonic()
    shutil.copytree(whole.folder, folder)
    scene = Scene(folder)
    if not damage.answered:
        for name in ("answer.json", "policy.yaml", "wrapper.py"):
            (scene.study / name).unlink()
    before, users_files = invariants.finished(scene.study), scene.users_files()
    path = _path(damage, scene.study)
    _do(damage, path)
    intact = {key: written for key, written in before.items() if key in invariants.finished(scene.study)}
    intact.pop(path.parent.name, None)
    second = again(*arguments(_ROW), cwd=folder, environment=scene.environment())
    problems = list(_after(damage, path, scene, intact, second))
    if scene.users_files() != users_files:
        problems.append("a file of the user's is not as it was")
    return Played(tuple(problems), (None, second.returncode), time.monotonic() - begin)


def _path(damage: Damage, study: Path) -> Path:
    kind, slash, name = damage.file.removeprefix("trials/").partition("/")
    if not slash:
        return study / damage.file
    return min((one for one in study.glob(f"trials/{kind}-*/{name}")), key=lambda one: one.stat().st_mtime_ns)


def _do(damage: Damage, path: Path) -> None:
    match damage.how:
        case How.CUT:
            data = path.read_bytes()
            path.write_bytes(data[: len(data) - len(data.splitlines()[-1]) // 2 - 2])
        case How.EMPTY:
            path.write_bytes(b"")
        case How.FLIPPED:
            flipped = bytearray(path.read_bytes())
            drawn = random.Random(f"{damage.file} {damage.seed}")
            flipped[drawn.randrange(len(flipped))] ^= 1 << drawn.randrange(8)
            path.write_bytes(flipped)
        case How.FOLDER if path.is_dir():
            path.rename(path.with_name("moved"))
            path.write_text("a file in its place\n")
        case How.FOLDER:
            path.unlink()
            path.mkdir()
            (path / "mine.txt").write_text("mine\n")
        case How.UNREADABLE:
            path.unlink()
            path.symlink_to("/proc/self/mem")  # as of a disk that fails; nobody is kept out, who may be root
        case How.GONE if path.is_dir():
            shutil.rmtree(path)
        case How.GONE:
            path.unlink()


def _after(
    damage: Damage, path: Path, scene: Scene, finished: dict[str, int], second: subprocess.CompletedProcess[str]
) -> Iterator[str]:
    """A study is used for what it is still worth, or refused in one sentence with everything in it as it was."""
    yield from invariants.one_sentence(second.returncode, second.stderr, {0: "", 2: "momadvise: error: "})
    if second.returncode == 0:
        yield from invariants.unconfirmed(second.stdout)
        # A damaged line or trial may stay where it is, and be passed over; so does a folder that is not the study's.
        kept = damage.file.startswith(("ledger", "trials")) or path.is_dir()
        itself = f"{path.relative_to(scene.study)} "
        yield from (one for one in invariants.unreadable(scene.study) if not (kept and one.startswith(itself)))
        yield from invariants.disagreements(scene.study)
    run_again = [key for key, written in finished.items() if invariants.finished(scene.study).get(key) != written]
    if run_again:
        yield f"finished trials were run again: {', '.join(sorted(run_again))}"
    if damage.how is How.FOLDER and damage.file != "trials" and not (path / "mine.txt").exists():
        yield "a folder that is not its own was emptied"
    left = invariants.temporary_files(scene.study, scene.temporary, scene.cache)
    if left:
        yield f"temporary files: {', '.join(left)}"
