"""What is tried and what is under way, kept in line with a study that other workers write into as well.

A worker claims a point by a trial whose parameters are in the storage. Two may do so at the same moment, and Optuna's
storages have no way to do both in one step. So each looks once more after it has claimed, and then at least one of them
sees the other: whoever has the larger number gives way at once; whoever has the smaller waits a moment for that, and
gives way too if it does not come to pass, because the other has not seen it. What was even completed meanwhile is not
repeated either. A point is so never run twice; at worst both give way, and ask again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState

from advisor.search.propose.history import EXCLUDED, LEARNED, RECORD, TRY_AGAIN, is_of_its_own
from advisor.search.space.explored import Explored, Point
from advisor.search.space.parameters import Parameters
from advisor.search.study.claim import WORKER, is_dead, new_worker

__all__ = ["StudySync"]

_LOOKS = 20
_PAUSE_SECONDS = 0.1


class StudySync:
    """Keeps :class:`~advisor.search.space.explored.Explored` in line with a study.

    Args:
        study: The study.
        parameters: Its space as Optuna's parameters.
        tried: What to keep in line.
        shared: Whether other workers may write into the study; if not, what is open in it was left by dead ones.
        sleep: Pauses so many seconds.
    """

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
        """Take in what other workers began and completed since the last time."""
        if self._shared:
            self._take_in(earlier=False)

    def take_records(self) -> list[str]:
        """What other workers wrote about the points that they completed since the last time."""
        self.refresh()
        records, self._records = self._records, []
        return records

    def sign(self, trial: Trial) -> None:
        """Say who runs a trial."""
        if self._shared:
            trial.set_user_attr(WORKER, self._name)

    def gives_way(self, trial: Trial, point: Point) -> bool:
        """Whether another worker has the same point under way and this trial must be given up."""
        for _ in range(_LOOKS if self._shared else 0):
            rivals = [one for one in self._others(trial.number) if self._point_of(one) == point]
            if not rivals:
                return False
            if any(one.number < trial.number or one.state is TrialState.COMPLETE for one in rivals):
                return True
            self._sleep(_PAUSE_SECONDS)
        return self._shared

    def completed(self, trial: Trial) -> None:
        """A trial of this process is done: nothing is to be learned of it from the storage."""
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
        if trial.user_attrs.get(EXCLUDED):
            self._tried.exclude(point[0])
        # What ran out of time may do better in another process; in the one that watched it did not.
        if (
            is_of_its_own(trial)
            and LEARNED not in trial.user_attrs
            and not (earlier and trial.user_attrs.get(TRY_AGAIN))
        ):
            self._tried.finish(point, trial.number)
        record = trial.user_attrs.get(RECORD)
        if isinstance(record, str):
            self._records.append(record)

    def _others(self, number: int) -> list[FrozenTrial]:
        """Trials of other workers that are under way, or were completed since this one looked last."""
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
        """Trials that are under way at a point, and whose worker lives as far as can be seen."""
        return [
            trial
            for trial in trials
            if trial.state is TrialState.RUNNING
            and self._parameters.are_complete(trial.params)
            and not is_dead(trial.user_attrs.get(WORKER), trial.datetime_start)
        ]

    def _point_of(self, trial: FrozenTrial) -> Point:
        return self._tried.point(*self._parameters.choice_of(trial.params))
