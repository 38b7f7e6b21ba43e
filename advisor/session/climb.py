"""The search of ``bigger``: each combination of methods climbs to the largest size that it keeps the floor at.

The baseline, plain training or the user's own settings, is first measured at the model's own size, which a floor such
as 0.5x refers to, and climbs completely. Every other combination must beat the largest size so far: it is tried one
size above, and climbs on if it keeps the floor there. ``Climb`` of ladder.py decides where the next measurement is
worth most.
"""

from __future__ import annotations

from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import is_faithful, is_measured
from advisor.decide.floor import floor_rate, largest_so_far
from advisor.search.sizing.ladder import Climb
from advisor.search.sizing.size_ladder import worth
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposal, Proposer
from advisor.session.context import StudyContext
from advisor.session.trials.sized_trials import OutOfBudgetError, SizedTrials
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import size_words

__all__ = ["SHARE_OF_CLIMBING_TRIAL", "SizeSearch"]

SHARE_OF_CLIMBING_TRIAL = 1 / 24
"""Share of the time limit for one trial: half that of other goals, as a climb takes several for each combination."""

_FAULTS = frozenset({Outcome.FAILED, Outcome.CRASHED, Outcome.REFUSED, Outcome.DIVERGED})
"""Outcomes of which a method is suspected, at any size."""


class SizeSearch:
    """One search over combinations and sizes."""

    def __init__(self, context: StudyContext, proposer: Proposer, sized: SizedTrials) -> None:
        self._proposer = proposer
        self._sized = sized
        self._budget = context.budget
        self._goal = context.goal

    def run(self) -> str:
        """Search until there is a reason to stop; return it, as the user reads it."""
        self._baseline()
        floor = floor_rate(self._sized.candidates, self._goal)
        if floor is None:
            trained = "training with your own settings" if self._goal.own_settings else "plain training"
            return f"{trained} at the model's own size has no measurement that a floor could be a share of"
        try:
            while True:
                self._sized.check_budget()
                record = largest_so_far(self._sized.candidates, self._goal)
                if record is not None and self._sized.place_of(record) == len(self._sized.rungs) - 1:
                    return (
                        "the largest of the model's sizes keeps the floor already (list larger values in SIZES to go "
                        "on)"
                    )
                proposal = self._proposer.ask()
                if proposal is None:
                    return "every combination of the search space was tried"
                try:
                    climb = self._climb(proposal, floor)
                except BaseException:
                    self._proposer.abandon(proposal)  # unfinished: a continued study resumes it
                    raise
                self._tell(proposal, climb, floor)
        except OutOfBudgetError as reason:
            return str(reason)

    def _baseline(self) -> None:
        """The baseline at the model's own size and batch.

        Where plain training fits on no device, that is the smallest cut; the user's own settings have no other.
        """
        if self._sized.own is None:
            return
        if not self._baselines:
            self._own_baseline(self._sized.own)
        assert self._goal.floor is not None, "the goal 'bigger' has a floor"
        if self._goal.floor.share_of_baseline is None or self._goal.own_settings:
            return
        for cut in self._sized.cuts:
            tried = self._baselines
            if any(map(is_measured, tried)) or not self._sized.has_budget:
                return
            if cut not in map(Combination.of, (one.policy for one in tried)):
                self._measure_baseline(cut, self._sized.own)

    @property
    def _baselines(self) -> list[Candidate]:
        return [one for one in self._sized.candidates if one.role is Role.BASELINE]

    def _measure_baseline(self, combination: Combination, own: int) -> None:
        """A combination at the model's own size and its largest batch."""
        begin = self._budget.elapsed_seconds
        evaluation = self._sized.evaluator(own).evaluate(combination, 1.0, Role.BASELINE, best=None)
        for candidate in (*evaluation.before, evaluation.candidate):
            self._sized.record(candidate, own)
        self._budget.durations.trial_seconds.append(self._budget.elapsed_seconds - begin)

    def _own_baseline(self, own: int) -> None:
        begin = self._budget.elapsed_seconds
        evaluator = self._sized.evaluator(own)
        baseline = evaluator.baseline()
        assert baseline is not None, "a usual batch is taken where none is stated"
        self._sized.record(baseline, own)
        evaluator.explain_baseline(baseline)
        self._budget.durations.trial_seconds.append(self._budget.elapsed_seconds - begin)

    def _climb(self, proposal: Proposal, floor: float) -> Climb:
        """Climb with a combination to the largest size that keeps the floor."""
        combination = proposal.combination
        is_baseline = combination == self._sized.baseline
        others = [one for one in self._sized.candidates if Combination.of(one.policy) != combination]
        record = largest_so_far(others, self._goal)
        above = -1 if record is None or is_baseline else self._sized.place_of(record)
        limit = self._goal.limit_on(combination.gpu_count)
        climb = Climb(self._sized.rungs, floor=floor, limit_bytes=limit, above=above)
        if is_baseline and self._sized.own is not None:
            baseline = self._sized.reached(combination, self._sized.own, floor)
            if baseline.kept:  # at the user's own batch; below the floor another one may still keep it
                climb.tell(self._sized.own, baseline)
        role = Role.HAND_TUNED if proposal.hand_tuned and not is_baseline else Role.SEARCHED
        while (place := climb.next()) is not None:
            self._sized.evaluate(combination, place, role, floor)
            climb.tell(place, self._sized.reached(combination, place, floor))
        if climb.screened is not None:
            self._sized.screen(combination, *climb.screened, role)
        return climb

    def _tell(self, proposal: Proposal, climb: Climb, floor: float) -> None:
        """Translate a climb for the sampler: how large it came, and by how much it fell short where it did not."""
        tried = [one for one in self._sized.candidates if Combination.of(one.policy) == proposal.combination]
        place, share = climb.best, None
        constraints = {"floor": 0.0}
        if place is None:
            last = tried[-1] if tried else None
            place = 0 if last is None else self._sized.place_of(last)
            share = self._share_of_floor(last, floor)
            constraints["floor"] = 1 / share - 1 if share < 1 else 1.0
            constraints |= {} if last is None else self._why_it_may_not_win(last)
        rung = self._sized.rungs[place]
        attributes: dict[str, str | int | float | bool | None] = {
            "policy": proposal.combination.label,
            "size": size_words(rung.size),
            "parameter_count": rung.parameter_count,
            "outcome": tried[-1].outcome.value if tried else Outcome.SCREENED.value,
            "reason": tried[-1].reason if tried else "no size is above the largest so far",
        }
        value = worth(self._sized.rungs, place, share)
        by_chance = any(one.outcome.is_by_chance for one in tried)
        self._proposer.tell(
            proposal, None if "outcome" in constraints else value, constraints, attributes, try_again=by_chance
        )

    def _why_it_may_not_win(self, candidate: Candidate) -> dict[str, float]:
        """What rules a combination out at a size, whatever its throughput."""
        if candidate.outcome in _FAULTS:
            return {"outcome": 1.0}
        if not is_measured(candidate):
            return {}
        limit = self._goal.limit_on(candidate.policy.gpu_count)
        beyond = {"memory": candidate.measured.memory.peak_bytes / limit - 1}
        return beyond if is_faithful(candidate, self._goal) else beyond | {"fidelity": 1.0}

    def _share_of_floor(self, candidate: Candidate | None, floor: float) -> float:
        """How near a combination came to the floor; to the memory limit where it did not fit."""
        if candidate is None or candidate.outcome in _FAULTS:
            return 0.01
        if candidate.measurement is not None:
            return candidate.measurement.samples_per_second / floor
        if candidate.predicted_peak_bytes:
            limit = self._goal.limit_on(candidate.policy.gpu_count)
            return min(0.99, limit / candidate.predicted_peak_bytes)
        return 0.25
