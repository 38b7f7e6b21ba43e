"""Synchronize tried and pending points with a study that other workers write into as well.

A worker claims a point by a trial in the storage. Optuna's storages cannot check and claim in one step, so each worker
checks again after its claim, and of two at least one sees the other: the larger trial number gives way at once, the
smaller waits a moment for that, and else gives way too. So no point runs twice; at worst both ask again.
"""

from __future__ import annotations

import datetime
import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterable

import psutil
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from advisor.search.propose.history import EXCLUDED, LEARNED, RECORD, TRY_AGAIN, is_of_its_own
from advisor.search.space.explored import Explored, Point
from advisor.search.space.parameters import Parameters

__all__ = ["WORKER", "StudySync", "is_dead", "new_worker"]

_LOOKS = 20
_PAUSE_SECONDS = 0.1

WORKER = "worker"
"""Attribute of a trial under way: who runs it."""

_UNSIGNED_SECONDS = 60
"""A trial that nobody has put a name to for so long was left by a worker that died before it could."""

_CLOCK_SECONDS = 5
"""Two processes may read the beginning of a third differently by a little: it is reckoned from the boot's time."""

_SILENT_SECONDS = 24 * 3600
"""A trial of another machine is taken to be under way for so long: whether its process lives cannot be seen."""

_NAME = re.compile(r"(.*) ([0-9]{1,9}) ([0-9]{1,15}(?:\.[0-9]{1,9})?) [0-9]+", re.ASCII)

_numbers = itertools.count()


class StudySync:
    """Synchronizes :class:`~advisor.search.space.explored.Explored` with a study."""

    def __init__(
        self,
        study: Study,
        parameters: Parameters,
        tried: Explored,
        *,
        shared: bool,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._study = study
        self._parameters = parameters
        self._tried = tried
        self._shared = shared
        self._sleep = sleep
        self._name = new_worker()
        self._finished: set[int] = set()
        self._elsewhere: set[Point] = set()
        self._records: list[str] = []
        self._close_dead()
        self._take_in(earlier=True)

    def refresh(self) -> None:
        """Adopt the trials that other workers began and completed since the last call."""
        if self._shared:
            self._take_in(earlier=False)

    def take_records(self) -> list[str]:
        """Records that other workers wrote for points completed since the last call."""
        self.refresh()
        records, self._records = self._records, []
        return records

    def sign(self, trial: Trial) -> None:
        """Record which worker runs a trial."""
        if self._shared:
            trial.set_user_attr(WORKER, self._name)

    def gives_way(self, trial: Trial, point: Point) -> bool:
        """Whether another worker runs the same point and this trial must be given up."""
        for _ in range(_LOOKS if self._shared else 0):
            rivals = [one for one in self._others(trial.number) if self._point_of(one) == point]
            if not rivals:
                return False
            if any(one.number < trial.number or one.state is TrialState.COMPLETE for one in rivals):
                return True
            self._sleep(_PAUSE_SECONDS)
        return self._shared

    def completed(self, trial: Trial) -> None:
        """Mark a trial of this process as done, so that it is not read back from the storage."""
        self._finished.add(trial.number)

    def _close_dead(self) -> None:
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            worker = trial.user_attrs.get(WORKER)
            if not self._shared or is_dead(worker, trial.datetime_start):
                self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)

    def _take_in(self, *, earlier: bool) -> None:
        trials = self._study.get_trials(deepcopy=False)  # all at one moment: none may end between two looks
        for trial in trials:
            if trial.state is TrialState.COMPLETE and trial.number not in self._finished:
                self._finish(trial, earlier=earlier)
        if self._shared:
            others = [trial for trial in self._alive(trials) if trial.user_attrs.get(WORKER) != self._name]
            now = {self._point_of(trial) for trial in others}
            for point in self._elsewhere - now:
                self._tried.stop(point)
            for point in now:
                self._tried.start(point)
            self._elsewhere = now

    def _finish(self, trial: FrozenTrial, *, earlier: bool) -> None:
        self._finished.add(trial.number)
        if not self._parameters.are_complete(trial.params):
            return
        point = self._point_of(trial)
        # A trial that timed out may do better in another process, but not in the one that watched it.
        may_come_again = earlier and trial.user_attrs.get(TRY_AGAIN)
        if trial.user_attrs.get(EXCLUDED) and not may_come_again:
            self._tried.exclude(point[0])
        if is_of_its_own(trial) and LEARNED not in trial.user_attrs and not may_come_again:
            self._tried.finish(point, trial.number)
        record = trial.user_attrs.get(RECORD)
        if isinstance(record, str):
            self._records.append(record)

    def _others(self, number: int) -> list[FrozenTrial]:
        """Trials of other workers that are running, or were completed since the last check."""
        trials = self._study.get_trials(deepcopy=False)
        completed = [
            trial
            for trial in trials
            if trial.state is TrialState.COMPLETE
            and trial.number not in self._finished
            and self._parameters.are_complete(trial.params)
        ]
        return [trial for trial in (*self._alive(trials), *completed) if trial.number != number]

    def _alive(self, trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Running trials of a point whose worker seems alive."""
        return [
            trial
            for trial in trials
            if trial.state is TrialState.RUNNING
            and self._parameters.are_complete(trial.params)
            and not is_dead(trial.user_attrs.get(WORKER), trial.datetime_start)
        ]

    def _point_of(self, trial: FrozenTrial) -> Point:
        return self._tried.point(*self._parameters.choice_of(trial.params))


def new_worker() -> str:
    """A name that no other worker has or will have, in this process or another."""
    return f"{socket.gethostname()} {os.getpid()} {psutil.Process().create_time()} {next(_numbers)}"


def is_dead(worker: str | None, started: datetime.datetime | None) -> bool:
    """Whether a trial's worker is gone, so that its trial will never end."""
    age = 0.0 if started is None else (datetime.datetime.now() - started).total_seconds()
    if worker is None:
        return age > _UNSIGNED_SECONDS
    name = _NAME.fullmatch(worker) if isinstance(worker, str) else None
    if name is None:  # another program wrote it
        return age > _SILENT_SECONDS
    host, process, created = name.groups()
    if host != socket.gethostname():
        return age > _SILENT_SECONDS
    try:
        return abs(psutil.Process(int(process)).create_time() - float(created)) > _CLOCK_SECONDS
    except psutil.NoSuchProcess:
        return True
