"""One workload: every arm in turn with the unmodified file, then the advice in turn with the best of the set."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.minutes.arms import Arm, ArmLostError
from benchmarks.minutes.protocol import ArmRequest
from benchmarks.minutes.rows import ArmRow, leaders_of_set
from benchmarks.minutes.settings import ADVICE, UNTOUCHED, Setting
from benchmarks.minutes.turns import Pacing, SpeedRatio, Stepping, in_turn

__all__ = ["Contest", "Found", "Starter", "starter_of"]

_READY_SECONDS = 180.0
"""Time limit until an arm is ready: it loads libraries, may compile, and warms up."""

_SLOW_READY_SECONDS = 600.0
"""The same for the advice, which may compile for as long as its answer allows, and for 128 samples per step."""

_TURN_SECONDS = 240.0

_LEADERS = 2
"""Most leaders to compare the advice with, when several may be the best of the set."""


class Starter(Protocol):
    """Starts the process of an arm, which ends with the block."""

    def __call__(self, setting: Setting) -> AbstractContextManager[Stepping]:
        """Start it.

        Raises:
            ArmLostError: It cannot train.
        """


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a contest.

    Attributes:
        arms: Every arm compared with the unmodified file, in the order of the reference set, the advice first.
        best: Name of the best of the set; of several that may be the best, the one with the less favourable result for
            the advice; ``None`` without any measurement.
        advice_beside_best: The advice compared with it.
        reason: Why that is missing.
    """

    arms: tuple[ArmRow, ...]
    best: str | None = None
    advice_beside_best: SpeedRatio | None = None
    reason: str = ""


class Contest:
    """Measures the arms of one workload; never more than two are alive at a time.

    Args:
        start: Starts an arm.
        settings: The reference settings; the advice is known to the starter.
        pacing: Length of every comparison.
        seed: Seed of the order of the arms.
        tell: Called with each result as soon as it is known.
    """

    def __init__(
        self,
        start: Starter,
        settings: Sequence[Setting],
        pacing: Pacing,
        *,
        seed: int = 0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._start = start
        self._settings = tuple(settings)
        self._pacing = pacing
        self._seed = seed
        self._tell = tell

    def measured(self, *, advised: bool) -> Found:
        """Make all comparisons.

        Args:
            advised: Whether there is advice to measure.
        """
        known = {one.name: one for one in ((Setting(name=ADVICE),) if advised else ()) + self._settings}
        # In a fixed order, each setting would always find the machine as its predecessor left it.
        order = random.Random(self._seed).sample(list(known.values()), len(known))
        rows = {setting.name: self._compare(setting, UNTOUCHED) for setting in order}
        arms = tuple(rows[name] for name in known)
        if not any(one.beside is not None for one in arms):
            return Found(arms=arms, reason="no arm has a figure")
        leaders = leaders_of_set(arms, _LEADERS)
        advice = rows.get(ADVICE)
        if advice is None or advice.beside is None:
            return Found(arms=arms, best=leaders[0], reason="the advice has no figure")
        # The setting ahead of all others is there partly by chance: compare the advice with the leaders themselves.
        last = {name: self._compare(known[ADVICE], known[name]) for name in leaders if name != UNTOUCHED.name}
        if UNTOUCHED.name in leaders:
            last[UNTOUCHED.name] = advice
        ratios = {name: row.beside.ratio for name, row in last.items() if row.beside is not None}
        if not ratios:
            return Found(arms=arms, best=leaders[0], reason=last[leaders[0]].reason)
        best = min(ratios, key=lambda name: ratios[name])
        return Found(arms=arms, best=best, advice_beside_best=last[best].beside)

    def _compare(self, setting: Setting, other: Setting) -> ArmRow:
        """Each pair gets new processes: memory placement is random too."""
        try:
            with self._start(setting) as arm, self._start(other) as beside:
                row = ArmRow(name=setting.name, batch=arm.batch, beside=in_turn(arm, beside, self._pacing))
        except ArmLostError as lost:
            row = ArmRow(name=setting.name, reason=str(lost))
        self._tell(f"  {setting.name} / {other.name}: {_words(row)}")
        return row


def starter_of(
    workload: Path,
    *,
    own_batch: int,
    wrapper: Path | None,
    wrapper_batch: int | None,
    device: str,
    seed: int,
    environment: Mapping[str, str],
    free_bytes: Callable[[], int | None],
) -> Starter:
    """What starts the arms of a workload as processes.

    Args:
        workload: The user's file.
        own_batch: Samples per step of the unmodified file.
        wrapper: The generated ``wrapper.py``.
        wrapper_batch: Samples per step of the advice.
        device: torch's name of it.
        seed: Seed of weights and batches.
        environment: Environment of the processes.
        free_bytes: The host memory that an arm started now may use; ``None`` for no limit.
    """

    @contextmanager
    def start(setting: Setting) -> Iterator[Stepping]:
        advised = setting.name == ADVICE
        assert not advised or (wrapper is not None and wrapper_batch is not None)
        request = ArmRequest(
            workload=str(workload),
            setting=setting,
            batch=wrapper_batch if advised and wrapper_batch is not None else setting.factor * own_batch,
            wrapper=str(wrapper) if advised else None,
            device=device,
            memory_bytes=free_bytes(),
            seed=seed,
        )
        slow = advised or setting.executable
        ready_seconds = _SLOW_READY_SECONDS if slow else _READY_SECONDS
        with Arm(request, environment=environment, ready_seconds=ready_seconds, turn_seconds=_TURN_SECONDS) as arm:
            yield arm

    return start


def _words(row: ArmRow) -> str:
    if row.beside is None:
        return row.reason
    found = row.beside
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}) in {found.rounds} rounds, batch {row.batch}"
