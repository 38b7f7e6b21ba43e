"""Plays one row: the command until somebody waits at the gate, the hit, what holds then, and the command once more."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from advisor.session.ledger import read_candidates
from advisor.trial.outcome import Outcome
from tests.faults import invariants
from tests.faults.gate import Arrival, argument, arrived, opened
from tests.faults.gated_command import COMMAND
from tests.faults.matrix import Fault, Row, Who
from tests.faults.processes import children_of, end_all, has_stopped, listening_outside, of_run, wait_until
from tests.faults.scene import Again, Scene, arguments, plainly

__all__ = ["Played", "play"]

_ARRIVAL_SECONDS = 120.0
_LONGEST_SECONDS = 200.0
"""After a hit: the time limit, a confirmation that outlasts it, and what is waited for a process that was stopped."""
_GONE_SECONDS = 20.0
_INTERRUPTED = 130
_SAID = {Outcome.LOST: ("lost",), Outcome.CRASHED: ("crashed",), Outcome.TIMEOUT: ("timeout", "must end within")}
"""How a trial ended -> what is said of it."""


class Played(msgspec.Struct, frozen=True):
    """What became of a row.

    Attributes:
        problems: What did not hold, in words; empty if everything did.
        statuses: Of the command that was hit, and of the same once more.
        seconds: For all of it.
    """

    problems: tuple[str, ...]
    statuses: tuple[int | None, int | None]
    seconds: float


class _Hit(msgspec.Struct, frozen=True):
    """A command that was hit, when it has ended."""

    status: int | None
    stdout: str
    stderr: str
    key: str
    finished: dict[str, int]
    users_files: dict[str, str]
    problems: list[str]


def play(row: Row, folder: Path, again: Again) -> Played:
    """Play it.

    Args:
        row: Which one.
        folder: New; everything is written below it.
        again: Runs the command once more, undisturbed.
    """
    begin = time.monotonic()
    scene = Scene(folder)
    scene.build(row.goal)
    hit = _hit(row, scene)
    problems = [*hit.problems, *_after_hit(row, scene, hit)]
    finished = invariants.finished(scene.study)
    lost = sorted(hit.finished.keys() - finished.keys())
    if lost:
        problems.append(f"finished trials were lost: {', '.join(lost)}")
    second = again(*arguments(row), cwd=folder, environment=scene.environment())
    problems += [f"once more: {one}" for one in _after_again(row, scene, hit, finished, second)]
    return Played(tuple(problems), (hit.status, second.returncode), time.monotonic() - begin)


def _hit(row: Row, scene: Scene) -> _Hit:
    problems: list[str] = []
    with (scene.folder / "stdout").open("wb") as stdout, (scene.folder / "stderr").open("wb") as stderr:
        command = subprocess.Popen(
            [*COMMAND, argument(scene.gate, row.place), *arguments(row)],
            cwd=scene.folder,
            env=plainly(scene.environment()),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    arrival = None
    finished: dict[str, int] = {}
    users_files: dict[str, str] = {}
    try:
        wait_until(lambda: arrived(scene.gate) is not None or command.poll() is not None, _ARRIVAL_SECONDS)
        arrival = arrived(scene.gate)
        if arrival is None:
            users_files = scene.users_files()
            problems.append(f"nobody came to {row.place}")
        else:
            problems += [f"it listens at {one}" for one in listening_outside(of_run(scene.folder))]
            finished = invariants.finished(scene.study)
            scene.write_notes()
            users_files = scene.users_files()
            _strike(row, command.pid, arrival)
            opened(scene.gate)
            if row.fault is Fault.STOP_CONT:
                os.kill(_target(row, command.pid, arrival), signal.SIGCONT)
        if not wait_until(lambda: command.poll() is not None, _LONGEST_SECONDS):
            problems.append(f"it did not end within {_LONGEST_SECONDS:g} s")
        if not wait_until(lambda: not of_run(scene.folder), _GONE_SECONDS):
            left = [" ".join(one.cmdline()[-4:]) for one in of_run(scene.folder)]
            problems.append(f"left running: {'; '.join(left)}")
    finally:
        end_all(of_run(scene.folder))
        command.wait()
    return _Hit(
        status=command.returncode,
        stdout=(scene.folder / "stdout").read_text(errors="replace"),
        stderr=(scene.folder / "stderr").read_text(errors="replace"),
        key="" if arrival is None else arrival.key,
        finished=finished,
        users_files=users_files,
        problems=problems,
    )


def _strike(row: Row, command: int, arrival: Arrival) -> None:
    """Send the signal; return when it has come to who is hit."""
    target = _target(row, command, arrival)
    os.kill(target, row.fault.signal)
    if row.who is not Who.COMMAND or not row.fault.interrupts:
        wait_until(lambda: has_stopped(target), _GONE_SECONDS)


def _target(row: Row, command: int, arrival: Arrival) -> int:
    match row.who:
        case Who.COMMAND:
            return command
        case Who.SERVER:
            [server] = children_of(command)
            return server
        case _:
            return arrival.process


def _after_hit(row: Row, scene: Scene, hit: _Hit) -> Iterator[str]:
    assert hit.status is not None, "it has ended, or was ended"
    yield from invariants.one_sentence(hit.status, hit.stderr, _allowed(row))
    yield from invariants.unreadable(scene.study)
    yield from invariants.disagreements(scene.study)
    if not _dies(row):
        left = invariants.temporary_files(scene.study, scene.temporary, scene.cache)
        if left:
            yield f"temporary files: {', '.join(left)}"
    if scene.users_files() != hit.users_files:
        yield "a file of the user's is not as it was"
    text = hit.stdout + hit.stderr
    if hit.status == _INTERRUPTED and "interrupted" not in text:
        yield "it does not say that it was interrupted"
    ended = _ended(row, scene, hit)
    if not _dies(row) and ended in _SAID and not any(words in text for words in _SAID[ended]):
        yield f"it does not say that a trial ended as {ended.value}"
    if row.fault is Fault.STOP_CONT and ended not in (None, Outcome.OK):
        yield f"a trial that went on ended as {ended.value}"


def _ended(row: Row, scene: Scene, hit: _Hit) -> Outcome | None:
    """How the trial that was hit has ended by now; nothing rests on a trace, whose sentence is left out then."""
    if not hit.key or row.place.at.what == "predict":
        return None
    return invariants.outcome_of(scene.study, hit.key)


def _was_compared(scene: Scene, hit: _Hit) -> bool:
    """Whether short steps have shown of the policy that was hit that it may not lead: then it is not timed again."""
    candidates = read_candidates(scene.study / "ledger.jsonl")
    policies = {one.policy.key for one in candidates if one.trial_key == hit.key}
    return any(one.outcome is Outcome.COMPARED and one.policy.key in policies for one in candidates)


def _dies(row: Row) -> bool:
    """Whether the command ends at once, and can say nothing."""
    return row.who is Who.COMMAND and not row.fault.interrupts and not row.fault.stops


def _allowed(row: Row) -> dict[int, str]:
    if _dies(row):
        return {-row.fault.signal: ""}
    if row.who is Who.COMMAND and row.fault.interrupts:
        return {_INTERRUPTED: ""}
    if row.fault is Fault.STOP_CONT:
        return {0: ""}
    allowed = {0: "", 1: "momadvise: error: "}
    if row.place.at.what in ("probe", "count") and (row.fault.stops or not row.fault.is_by_chance):
        # Nobody can tell it from a model that waits for ever, or crashes: the sentence says what to look for.
        allowed[2] = "momadvise: error: "
    return allowed


def _after_again(
    row: Row, scene: Scene, hit: _Hit, finished: dict[str, int], second: subprocess.CompletedProcess[str]
) -> Iterator[str]:
    # A crash of plain training is remembered as its own; there may be nothing to recommend then.
    allowed = {0: ""} if row.fault.is_by_chance else {0: "", 1: "momadvise: error: "}
    yield from invariants.one_sentence(second.returncode, second.stderr, allowed)
    yield from invariants.unreadable(scene.study)
    yield from invariants.disagreements(scene.study)
    left = invariants.temporary_files(scene.study, scene.temporary, scene.cache)
    if left:
        yield f"temporary files: {', '.join(left)}"
    if any(hit.users_files.get(name, digest) != digest for name, digest in scene.users_files().items()):
        yield "a file of the user's is not as it was"
    now = invariants.finished(scene.study)
    run_again = [key for key, written in finished.items() if now.get(key) != written]
    if run_again:
        yield f"finished trials were run again: {', '.join(sorted(run_again))}"
    ended = _ended(row, scene, hit)
    if row.fault.is_by_chance and ended not in (None, Outcome.OK) and not _was_compared(scene, hit):
        assert ended is not None
        yield f"the trial that was hit stays {ended.value}"
    if second.returncode == 0:
        yield from invariants.unconfirmed(second.stdout)
