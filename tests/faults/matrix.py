"""The matrix of faults, as data: who is hit, by what, when, and while which goal is searched for."""

from __future__ import annotations

import enum
import random
import signal
from collections.abc import Iterator

import msgspec

from tests.faults.gate import At, Place

__all__ = ["SAMPLE", "Fault", "Goal", "Row", "Who", "rows"]


class Who(enum.Enum):
    """Whose process is hit."""

    COMMAND = "command"
    SERVER = "fork server"
    WORKER = "worker of a trial"
    PLAIN = "worker of plain training"
    CONFIRMATION = "worker of the confirmation"
    PROBE = "worker of the probe"
    RANK = "rank of two"


class Fault(enum.Enum):
    """What hits it."""

    KILL = "KILL"
    TERM = "TERM"
    INT = "INT"
    HUP = "HUP"
    SEGV = "SEGV"
    ABRT = "ABRT"
    STOP = "STOP"
    STOP_CONT = "STOP, CONT"

    @property
    def signal(self) -> signal.Signals:
        """The first signal."""
        return signal.Signals["SIG" + self.value.partition(",")[0]]

    @property
    def stops(self) -> bool:
        """Whether the process is there afterwards, and does nothing until it is told to go on."""
        return self.signal is signal.SIGSTOP

    @property
    def is_by_chance(self) -> bool:
        """Whether it says nothing of a trial that it hits: what is left are signals that a process causes itself."""
        return self.signal not in (signal.SIGSEGV, signal.SIGABRT)

    @property
    def interrupts(self) -> bool:
        """Whether it asks the command to conclude."""
        return self.signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Goal(enum.Enum):
    """What is searched for."""

    FASTER = "faster"
    BIGGER = "bigger"
    CHEAPEST = "cheapest"


class Row(msgspec.Struct, frozen=True):
    """One run with one fault, and the same command once more without.

    Attributes:
        who: Is hit.
        fault: Hits it.
        goal: Of the run.
        place: When.
        seed: From which the place was drawn; ``None`` where it was chosen.
    """

    who: Who
    fault: Fault
    goal: Goal
    place: Place
    seed: int | None = None

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.fault.value} to the {self.who.value}, {self.goal.value}, at {self.place}"


def _trials(*kinds: str, points: tuple[str, ...] = ("begin", "told", "end", "written"), **more: int) -> list[Place]:
    return [Place(At(kind, point, **more)) for kind in kinds for point in points]


_LATER = [Place(At("time", "begin"), 1), Place(At("time", "end"), 1)]
"""Not the first of their kind, which is the baseline."""

_OF_GOAL = {
    Goal.FASTER: [*_trials("size", "predict"), *_LATER],
    Goal.BIGGER: [*_trials("count", "size"), Place(At("size", "begin"), 1), *_LATER],
    Goal.CHEAPEST: [*_trials("size", "predict"), Place(At("size", "begin"), 1), *_LATER],
}
"""Trials that every run of the goal has."""

_FILES = [
    *(Place(At(name, "writing")) for name in ("study.json", "identity.json", "wrapper.py", "policy.yaml")),
    *(Place(At("result.json", "writing"), nth) for nth in (0, 2)),
    *(Place(At("spec.json", "written"), nth) for nth in (0, 2)),
    Place(At("ledger.jsonl", "written")),
    Place(At("ledger.jsonl", "written"), 1),
    *(Place(At(name, "written")) for name in ("wrapper.py", "policy.yaml")),
    Place(At("policy.yaml", "writing"), 1),
    Place(At("answer.json", "writing")),
    Place(At("answer.json", "written")),
]
"""Of what the command writes itself."""

_LOADING = Place(At("server", "loading"))


def _places(who: Who, goal: Goal) -> list[Place]:
    """When it may be hit."""
    match who:
        case Who.COMMAND:
            return [*_FILES, _LOADING, *_trials("probe", "size", "time", "confirm", points=("told", "written"))]
        case Who.SERVER:
            return [_LOADING, *_trials("probe", "size", "time", "confirm", points=("begin", "end"))]
        case Who.WORKER:
            return _OF_GOAL[goal]
        case Who.PLAIN:
            return [*_trials("time"), Place(At("time", "told"), 1)]
        case Who.CONFIRMATION:
            return [*_trials("confirm"), Place(At("confirm", "told"), 1)]
        case Who.PROBE:
            return _trials("probe")
        case Who.RANK:
            points = ("begin", "told", "end")
            return [
                *(_trials("size", "time", "confirm", points=points, rank=0)),
                *(_trials("size", "time", "confirm", points=points, rank=1)),
            ]


def _has(who: Who, fault: Fault, goal: Goal) -> bool:
    """Whether there is something to see: who is stopped itself does nothing, and a size is trained on one device."""
    return (who, fault) != (Who.COMMAND, Fault.STOP) and (who, goal) != (Who.RANK, Goal.BIGGER)


def rows(seed: int) -> Iterator[Row]:
    """Each fault to each process, goals in turn, at a place that is drawn; and a kill wherever the command writes.

    Args:
        seed: Draws the places, and turns the goals.
    """
    goals = list(Goal)
    for turn, who in enumerate(Who):
        for number, fault in enumerate(Fault):
            drawn = random.Random(f"{seed} {who.value} {fault.value}")
            goal = goals[(turn + number + seed) % len(goals)]
            if not _has(who, fault, goal):
                goal = goals[(turn + number + seed + 1) % len(goals)]
            if _has(who, fault, goal):
                yield Row(who, fault, goal, drawn.choice(_places(who, goal)), seed)
    if seed == 0:
        for number, place in enumerate(_FILES):
            yield Row(Who.COMMAND, Fault.KILL, goals[number % len(goals)], place)


SAMPLE = (
    Row(Who.COMMAND, Fault.KILL, Goal.CHEAPEST, Place(At("ledger.jsonl", "written"))),
    Row(Who.COMMAND, Fault.HUP, Goal.FASTER, Place(At("confirm", "told"))),
    Row(Who.SERVER, Fault.KILL, Goal.BIGGER, Place(At("time", "begin"))),
    Row(Who.WORKER, Fault.STOP_CONT, Goal.BIGGER, Place(At("size", "told"), 1)),
    Row(Who.PLAIN, Fault.TERM, Goal.CHEAPEST, Place(At("time", "told"))),
    Row(Who.CONFIRMATION, Fault.ABRT, Goal.FASTER, Place(At("confirm", "end"))),
    Row(Who.PROBE, Fault.INT, Goal.CHEAPEST, Place(At("probe", "told"))),
    Row(Who.RANK, Fault.SEGV, Goal.FASTER, Place(At("time", "begin", 1))),
)
"""What every run of the tests plays: each who, each signal, each goal."""
