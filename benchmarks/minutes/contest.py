"""One workload: every arm in turn with the untouched file, and in the end the advice with the best of the set."""

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
from benchmarks.minutes.turns import Beside, Pacing, Stepping, in_turn

__all__ = ["Contest", "Found", "Starter", "starter_of"]

_READY_SECONDS = 180.0
"""What an arm may take until it is ready: it loads libraries, compiles where it is told to, and warms up."""

_SLOW_READY_SECONDS = 600.0
"""The same of the advice, which may compile for as long as its answer thought right, and of 128 samples at a time."""

_TURN_SECONDS = 240.0

_LEADERS = 2
"""The advice is compared with so many at most, where it is not known which of them is the best of the set."""


class Starter(Protocol):
    """Starts the process of an arm, which ends with the block."""

    def __call__(self, setting: Setting) -> AbstractContextManager[Stepping]:
        """Start it.

        Raises:
            ArmLostError: It cannot train.
        """


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a contest found.

    Attributes:
        arms: Every arm beside the untouched file, in the order of the reference set, the advice first.
        best: Name of the best of the set, of several that may be the best that which the advice did worse beside;
            ``None`` without any figure.
        advice_beside_best: The advice beside it.
        reason: Why that is missing.
    """

    arms: tuple[ArmRow, ...]
    best: str | None = None
    advice_beside_best: Beside | None = None
    reason: str = ""


class Contest:
    """Measures the arms of one workload; never more than two of them live at a time.

    Args:
        start: Starts an arm.
        settings: The reference settings; of the advice it is known how it trains.
        pacing: Of every comparison.
        seed: Of the order of the arms.
        tell: Is told what is known as soon as it is.
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
        """All comparisons.

        Args:
            advised: Whether there is an advice to measure.
        """
        known = {one.name: one for one in ((Setting(name=ADVICE),) if advised else ()) + self._settings}
        # In the same order every time a setting would always have the machine as the one before left it.
        order = random.Random(self._seed).sample(list(known.values()), len(known))
        rows = {setting.name: self._beside(setting, UNTOUCHED) for setting in order}
        arms = tuple(rows[name] for name in known)
        if not any(one.beside is not None for one in arms):
            return Found(arms=arms, reason="no arm has a figure")
        leaders = leaders_of_set(arms, _LEADERS)
        advice = rows.get(ADVICE)
        if advice is None or advice.beside is None:
            return Found(arms=arms, best=leaders[0], reason="the advice has no figure")
        # What is ahead of all others is so by chance as well: the advice is held against the leaders themselves.
        last = {name: self._beside(known[ADVICE], known[name]) for name in leaders if name != UNTOUCHED.name}
        if UNTOUCHED.name in leaders:
            last[UNTOUCHED.name] = advice
        ratios = {name: row.beside.ratio for name, row in last.items() if row.beside is not None}
        if not ratios:
            return Found(arms=arms, best=leaders[0], reason=last[leaders[0]].reason)
        best = min(ratios, key=lambda name: ratios[name])
        return Found(arms=arms, best=best, advice_beside_best=last[best].beside)

    def _beside(self, setting: Setting, other: Setting) -> ArmRow:
        """Both in processes of their own that are made anew: where in memory things come to lie is chance as well."""
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
        own_batch: Samples per step of the untouched file.
        wrapper: The emitted ``wrapper.py``.
        wrapper_batch: Samples per step of the advice.
        device: torch's name of it.
        seed: Of weights and batches.
        environment: Of the processes.
        free_bytes: What an arm that starts now may take of the host's memory; ``None`` for no limit.
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
