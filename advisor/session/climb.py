"""The search of ``bigger``: each combination of methods climbs to the largest size that it keeps the floor at.

Plain training is measured at the model's own size first, which is what a floor such as 0.5x refers to, and climbs
completely. Every other combination must beat the largest size so far: it is tried one size above it, and climbs on if
it keeps the floor there. Where the next measurement is worth most is decided by :class:`advisor.search.ladder.Climb`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import is_measured
from advisor.decide.floor import floor_rate, keeps, largest_so_far
from advisor.policy.policy import Policy
from advisor.problem.facts import Facts
from advisor.problem.goal import Goal
from advisor.problem.hardware import Hardware
from advisor.problem.sizes import SizeCounts, size_words
from advisor.problem.units import format_count
from advisor.report.progress import Progress
from advisor.search.batching import does_not_fit
from advisor.search.ladder import Climb, Reached, Rung, chain_of, worth
from advisor.search.resolved import Combination
from advisor.search.sampler import Proposal, Proposer
from advisor.session.budget import TimeBudget
from advisor.session.evaluate import Evaluator
from advisor.session.trials import Trials
from advisor.trial.outcome import Outcome

__all__ = ["SHARE_OF_CLIMBING_TRIAL", "SizeSearch"]

SHARE_OF_CLIMBING_TRIAL = 1 / 24
"""Share of the time limit for one trial: half of what other goals have, because a climb takes several trials for each
combination and asks of most of them only whether they are above or below the floor."""

_NEAR = 0.7
"""Share of the floor from which on a second, smaller batch is tried: it is faster sometimes, but not by more."""

_SECOND_FRACTION = 0.5


class _OutOfBudgetError(Exception):
    """The reason why no further trial may start."""


class SizeSearch:
    """One search over combinations and sizes.

    Args:
        proposer: Proposes combinations and learns from how far they came.
        trials: Runs the trials.
        counts: The sizes with their parameters.
        facts: What the probe learned.
        hardware: The device.
        budget: The session's clock.
        goal: The goal with its floor.
        trial_budget: Most policies to measure, those of earlier runs of the same study included.
        progress: Told of everything that happens.
        candidates: Those of earlier runs of the same study; grows.
        keep: Called with every new candidate, to write it down before anything else happens.
    """

    def __init__(
        self,
        *,
        proposer: Proposer,
        trials: Trials,
        counts: SizeCounts,
        facts: Facts,
        hardware: Hardware,
        budget: TimeBudget,
        goal: Goal,
        trial_budget: int,
        progress: Progress,
        candidates: list[Candidate],
        keep: Callable[[Candidate], None],
    ) -> None:
        self._proposer = proposer
        self._trials = trials
        self._facts = facts
        self._hardware = hardware
        self._budget = budget
        self._goal = goal
        self._trial_budget = trial_budget
        self._progress = progress
        self._keep = keep
        self.candidates = candidates
        self._rungs = chain_of(counts)
        self._own = next((i for i, rung in enumerate(self._rungs) if rung.size == counts.own.size), None)
        plainest = trials.reference(goal.gpu_counts[0])
        assert plainest is not None, "a space in which plain training cannot be distributed is refused before"
        self._plainest = plainest
        self._at: dict[int, tuple[Trials, Evaluator]] = {}
        self._failed = [one for one in counts.listed if one.parameter_count is None]

    @property
    def notes(self) -> list[str]:
        """What the user should know about sizes and batches, each said once."""
        notes = []
        if self._failed:
            first = self._failed[0]
            notes.append(
                f"{format_count(len(self._failed), 'size')} could not be built and were left out; the first, "
                f"{size_words(first.size)}: {first.error}"
            )
        return notes + list(dict.fromkeys(note for _, evaluator in self._at.values() for note in evaluator.notes))

    def run(self) -> str:
        """Search until there is a reason to stop.

        Returns:
            The reason, as the user reads it.
        """
        self._baseline()
        floor = floor_rate(self.candidates, self._goal)
        if floor is None:
            return "plain training at the model's own size has no figure that a floor could be a share of"
        while True:
            try:
                self._check_budget()
            except _OutOfBudgetError as reason:
                return str(reason)
            proposal = self._proposer.ask()
            if proposal is None:
                return "every combination of the search space was tried"
            try:
                climb = self._climb(proposal, floor)
            except _OutOfBudgetError as reason:
                self._proposer.abandon(proposal)  # unfinished: a continued study goes on with it
                return str(reason)
            except BaseException:
                self._proposer.abandon(proposal)
                raise
            self._tell(proposal, climb, floor)

    # -- one combination ----------------------------------------------------------------------------------------

    def _baseline(self) -> None:
        """Plain training at the model's own size and batch."""
        if self._own is None or any(candidate.role is Role.BASELINE for candidate in self.candidates):
            return
        begin = self._budget.elapsed_seconds
        evaluator = self._evaluator(self._own)
        baseline = evaluator.baseline()
        before: tuple[Candidate, ...] = ()
        if baseline is None:  # the workload states no batch of its own
            evaluation = evaluator.evaluate(self._plainest, 1.0, Role.BASELINE, best=None)
            before, baseline = evaluation.before, evaluation.candidate
        for candidate in (*before, baseline):
            self._record(candidate, self._own)
        self._budget.learn_trial_seconds(self._budget.elapsed_seconds - begin)

    def _climb(self, proposal: Proposal, floor: float) -> Climb:
        """Take a combination to the largest size that it keeps the floor at.

        Raises:
            _OutOfBudgetError: Trials or time ran out on the way.
        """
        combination = proposal.combination
        plainest = combination == self._plainest
        others = [one for one in self.candidates if Combination.of(one.policy) != combination]
        record = largest_so_far(others, self._goal)
        above = -1 if record is None or plainest else self._place_of(record)
        limit = self._trials.limit_on(combination.gpu_count)
        climb = Climb(self._rungs, floor=floor, limit_bytes=limit, above=above)
        if plainest and self._own is not None:
            baseline = self._reached(combination, self._own, floor)
            if baseline.kept:  # at the user's own batch; below the floor another one may still keep it
                climb.tell(self._own, baseline)
        role = Role.HAND_TUNED if proposal.hand_tuned and not plainest else Role.SEARCHED
        while (place := climb.next()) is not None:
            self._evaluate(combination, place, role, floor)
            climb.tell(place, self._reached(combination, place, floor))
        if climb.screened is not None:
            self._screen(combination, *climb.screened, role)
        return climb

    def _evaluate(self, combination: Combination, place: int, role: Role, floor: float) -> None:
        """Measure a combination at a size, at two batches at most; nothing if an earlier run of the study did."""
        if any(one.role is not Role.BASELINE for one in self._tried(combination, place)):
            return
        self._check_budget()
        begin = self._budget.elapsed_seconds
        evaluation = self._evaluator(place).evaluate(combination, 1.0, role, best=floor)
        for candidate in (*evaluation.before, evaluation.candidate):
            self._record(candidate, place)
        deserving = self._deserves_smaller_batch(evaluation.candidate, floor) and not evaluation.before
        if deserving and self._budget.may_start_trial:
            smaller = self._evaluator(place).evaluate(combination, _SECOND_FRACTION, role, best=floor).candidate
            if smaller.policy != evaluation.candidate.policy:
                self._record(smaller, place)
        if any(is_measured(candidate) for candidate in self._tried(combination, place)):
            self._budget.learn_trial_seconds(self._budget.elapsed_seconds - begin)

    def _deserves_smaller_batch(self, candidate: Candidate, floor: float) -> bool:
        if candidate.policy.micro_batch == 1 or keeps(candidate, self._goal, floor):
            return False
        if candidate.outcome in (Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT):
            return candidate.trial_key is not None  # it was timed: short runs had promised that it fits, and in time
        return candidate.measurement is not None and candidate.measurement.samples_per_second >= _NEAR * floor

    def _reached(self, combination: Combination, place: int, floor: float) -> Reached:
        """What is known of a combination at a size."""
        tried = self._tried(combination, place)
        rates = [one.measurement.samples_per_second for one in tried if one.measurement is not None]
        needs = [one.one_sample_bytes for one in tried if one.one_sample_bytes is not None]
        fixed = [
            kept.parameters + kept.gradients + kept.optimizer_state
            for one in tried
            if one.measurement is not None and (kept := one.measurement.memory.breakdown)
        ]
        return Reached(
            kept=any(keeps(one, self._goal, floor) for one in tried),
            samples_per_second=max(rates, default=None),
            need_bytes=needs[-1] if needs else None,
            fixed_bytes=min(fixed, default=None),
        )

    def _screen(self, combination: Combination, place: int, need_bytes: int, role: Role) -> None:
        """Write down the size that memory is predicted to be too small for."""
        if self._tried(combination, place):
            return
        alike = (one for one in reversed(self.candidates) if Combination.of(one.policy) == combination)
        fidelity = next(alike).fidelity
        limit = self._trials.limit_on(combination.gpu_count)
        candidate = Candidate(
            policy=Policy(methods=combination.uses, micro_batch=1, gpu_count=combination.gpu_count),
            role=role,
            outcome=Outcome.SCREENED,
            reason=does_not_fit(need_bytes=need_bytes, limit_bytes=limit),
            predicted_peak_bytes=need_bytes,
            fidelity=fidelity,
        )
        self._record(candidate, place)

    # -- what the rest needs ------------------------------------------------------------------------------------

    def _evaluator(self, place: int) -> Evaluator:
        """The evaluator of one size; numbered on for the display."""
        if place not in self._at:
            rung = self._rungs[place]
            trials = self._trials.at_size(rung.size)
            evaluator = Evaluator(
                trials=trials,
                budget=self._budget,
                goal=self._goal,
                facts=self._facts,
                hardware=self._hardware,
                progress=self._progress,
                pace="the floor is",
                where=f" at {size_words(rung.size)}",
            )
            self._at[place] = trials, evaluator
        evaluator = self._at[place][1]
        evaluator.number = len(self.candidates) + 1
        return evaluator

    def _record(self, candidate: Candidate, place: int) -> None:
        rung = self._rungs[place]
        combination = Combination.of(candidate.policy)
        model = self._at[place][0].model_of(combination) if place in self._at else None
        candidate = msgspec.structs.replace(
            candidate,
            model_size=rung.size,
            parameter_count=rung.parameter_count,
            one_sample_bytes=None if model is None else model.predict(1),
        )
        if combination != self._plainest and is_measured(candidate) and candidate.loss_drift is None:
            candidate = msgspec.structs.replace(candidate, loss_drift=self._drift_at_own_size(combination))
        number = len(self.candidates) + 1
        self.candidates.append(candidate)
        self._keep(candidate)
        baseline = next((one for one in self.candidates if one.role is Role.BASELINE), None)
        best = largest_so_far(self.candidates, self._goal)
        self._progress.trial_ended(number, candidate, best=best, baseline=baseline)

    def _drift_at_own_size(self, combination: Combination) -> float | None:
        """Where plain training does not fit there is nothing to compare losses with: the model's own size has it."""
        if self._own is None:
            return None
        self._evaluator(self._own)
        trials = self._at[self._own][0]
        reference = trials.reference(combination.gpu_count)
        if reference is None or reference == combination:
            return None
        batch = self._goal.global_batch
        largest = None if batch is None else batch // combination.gpu_count
        for one in (reference, combination):
            if trials.sizing_of(one) is None:
                trials.size(one, largest)
        return trials.drift(combination)

    def _tried(self, combination: Combination, place: int) -> list[Candidate]:
        size = self._rungs[place].size
        return [one for one in self.candidates if Combination.of(one.policy) == combination and one.model_size == size]

    def _place_of(self, candidate: Candidate) -> int:
        return next(place for place, rung in enumerate(self._rungs) if rung.size == candidate.model_size)

    def _check_budget(self) -> None:
        measured = {(one.policy.key, size_words(one.model_size)) for one in self.candidates if is_measured(one)}
        if len(measured) >= self._trial_budget:
            raise _OutOfBudgetError(f"the limit of {self._trial_budget} trials was reached")
        if self.candidates and not self._budget.may_start_trial:
            raise _OutOfBudgetError(
                f"the time limit of {self._budget.limit_seconds:g} s leaves no room for another trial"
            )

    def _tell(self, proposal: Proposal, climb: Climb, floor: float) -> None:
        """Translate a climb for the sampler: how large it came, and by how much it fell short where it did not."""
        tried = [one for one in self.candidates if Combination.of(one.policy) == proposal.combination]
        rungs: dict[int, Rung] = dict(enumerate(self._rungs))
        place = climb.best
        constraints: dict[str, float] = {}
        share: float | None = None
        if place is None:
            last = tried[-1] if tried else None
            place = 0 if last is None else self._place_of(last)
            share = self._share_of_floor(last, floor)
            constraints["floor"] = 1 / share - 1 if share < 1 else 1.0
        else:
            constraints["floor"] = 0.0
        attributes: dict[str, str | int | float | bool | None] = {
            "policy": proposal.combination.label,
            "size": size_words(rungs[place].size),
            "parameter_count": rungs[place].parameter_count,
            "outcome": tried[-1].outcome.value if tried else Outcome.SCREENED.value,
            "reason": tried[-1].reason if tried else "no size is above the largest so far",
        }
        value = worth(self._rungs, place, share)
        self._proposer.tell(proposal, value, constraints, attributes)

    def _share_of_floor(self, candidate: Candidate | None, floor: float) -> float:
        """How near a combination came to the floor; to the memory limit where it did not fit."""
        if candidate is None or candidate.outcome in (Outcome.FAILED, Outcome.CRASHED, Outcome.REFUSED):
            return 0.01
        if candidate.measurement is not None:
            return candidate.measurement.samples_per_second / floor
        if candidate.predicted_peak_bytes:
            return min(0.99, self._goal.memory_limit_bytes / candidate.predicted_peak_bytes)
        return 0.25
