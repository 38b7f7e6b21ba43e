"""Evaluate combinations at model sizes, and keep their results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import is_measured, worth_checking
from advisor.decide.floor import keeps, largest_so_far, would_be_largest
from advisor.hardware.mesh import DATA_ONLY
from advisor.methods.compose import draws_other_masks
from advisor.search.sizing.batching import does_not_fit, pipeline_passes
from advisor.search.sizing.ladder import Reached
from advisor.search.sizing.size_ladder import chain_of
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.session.trials.micro_batches import largest_of_global_batch
from advisor.session.trials.trials import Trials
from advisor.text.units import format_count, format_duration
from advisor.trial.outcome import Outcome
from advisor.workload.sizes import SizeCounts, size_words

__all__ = ["OutOfBudgetError", "SizedTrials"]

_NEAR = 0.7
"""From this share of the floor on, a second, smaller batch is tried: it is sometimes faster, but not by more."""

_SECOND_FRACTION = 0.5


class OutOfBudgetError(Exception):
    """The reason why no further trial may start."""


class SizedTrials:
    """Evaluates combinations at the sizes of a chain and keeps their results.

    Attributes:
        own: Index of the model's own size in the chain; ``None`` if it cannot be built.
        plainest: Plain training, on the fewest devices.
        baseline: The combination that a floor is a share of: the user's own settings, or plain training.
    """

    def __init__(self, context: StudyContext, trials: Trials, guard: Guard, counts: SizeCounts) -> None:
        self._context = context
        self._trials = trials
        self._budget = context.budget
        self._goal = context.goal
        self._guard = guard
        self._ledger = context.ledger
        self.rungs = chain_of(counts)
        self.own = next((i for i, rung in enumerate(self.rungs) if rung.size == counts.own.size), None)
        plainest = context.plainest(context.goal.gpu_counts[0])
        assert plainest is not None, "a space in which plain training cannot be distributed is refused before"
        self.plainest = plainest
        settings = context.request.baseline
        self.baseline = plainest if settings is None else Combination.of(settings.policy)
        self._at: dict[int, tuple[Trials, Evaluator]] = {}
        self._failed = [one for one in counts.listed if one.parameter_count is None]

    @property
    def notes(self) -> list[str]:
        """Distinct notes for the user about sizes and batches."""
        notes = []
        if self._failed:
            first = self._failed[0]
            notes.append(
                f"{format_count(len(self._failed), 'size')} could not be built and were left out; the first, "
                f"{size_words(first.size)}: {first.error}"
            )
        return notes + list(dict.fromkeys(note for _, evaluator in self._at.values() for note in evaluator.notes))

    @property
    def candidates(self) -> Sequence[Candidate]:
        """Everything that was tried at any size."""
        return self._ledger.candidates

    def evaluate(self, combination: Combination, place: int, role: Role, floor: float) -> None:
        """Measure a combination at a size, at up to two batches, unless an earlier run of the study did."""
        if any(one.role is not Role.BASELINE for one in self.tried(combination, place)):
            return
        self.check_budget()
        begin = self._budget.elapsed_seconds
        evaluation = self.evaluator(place).evaluate(combination, 1.0, role, best=floor)
        for candidate in (*evaluation.before, evaluation.candidate):
            self.record(candidate, place)
        deserving = self._deserves_smaller_batch(evaluation.candidate, floor) and not evaluation.before
        if deserving and self._budget.may_start_trial:
            smaller = self.evaluator(place).evaluate(combination, _SECOND_FRACTION, role, best=floor).candidate
            if smaller.policy != evaluation.candidate.policy:
                self.record(smaller, place)
        if any(is_measured(candidate) for candidate in self.tried(combination, place)):
            self._budget.durations.trial_seconds.append(self._budget.elapsed_seconds - begin)

    def _deserves_smaller_batch(self, candidate: Candidate, floor: float) -> bool:
        if candidate.policy.micro_batch == 1 or keeps(candidate, self._goal, floor):
            return False
        if candidate.outcome in (Outcome.OUT_OF_MEMORY, Outcome.TIMEOUT):
            return candidate.trial_key is not None  # it was timed: profiling runs predicted that it fits, in time
        return candidate.measurement is not None and candidate.measurement.samples_per_second >= _NEAR * floor

    def reached(self, combination: Combination, place: int, floor: float) -> Reached:
        """How far a combination got at a size."""
        tried = self.tried(combination, place)
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

    def screen(self, combination: Combination, place: int, need_bytes: int, role: Role) -> None:
        """Record that a combination is predicted not to fit at a size."""
        if self.tried(combination, place):
            return
        alike = (one for one in reversed(self.candidates) if Combination.of(one.policy) == combination)
        candidate = Candidate(
            policy=combination.policy(1, pipeline_passes(combination.mesh)),
            role=role,
            outcome=Outcome.SCREENED,
            reason=does_not_fit(need_bytes=need_bytes, limit_bytes=self._goal.limit_on(combination.gpu_count)),
            predicted_peak_bytes=need_bytes,
            fidelity=next(alike).fidelity,
        )
        self.record(candidate, place)

    def evaluator(self, place: int) -> Evaluator:
        """The evaluator of one size."""
        if place not in self._at:
            rung = self.rungs[place]
            trials = self._trials.at_size(rung.size)
            where = f" at {size_words(rung.size)}"
            self._at[place] = trials, Evaluator(self._context, trials, pace="the floor is", where=where)
        return self._at[place][1]

    def record(self, candidate: Candidate, place: int) -> None:
        """Record a candidate with its size, before anything else happens."""
        rung = self.rungs[place]
        combination = Combination.of(candidate.policy)
        model = self._at[place][0].model_of(combination) if place in self._at else None
        candidate = msgspec.structs.replace(
            candidate,
            model_size=rung.size,
            parameter_count=rung.parameter_count,
            one_sample_bytes=None if model is None else model.predict(1),
        )
        if combination != self.plainest and is_measured(candidate) and candidate.loss_drift is None:
            candidate = msgspec.structs.replace(candidate, loss_drift=self._drift_at_own_size(combination))
        if would_be_largest(candidate, self.candidates, self._goal) and worth_checking(
            candidate, self.candidates, self._goal
        ):
            try:
                candidate = self._guard.checked(candidate)
            except BaseException:
                self._write_down(candidate)  # keep the measurement even if the comparison fails
                raise
        self._write_down(candidate)

    def _write_down(self, candidate: Candidate) -> None:
        number = self._ledger.next_number
        self._ledger.add(candidate)
        best = largest_so_far(self.candidates, self._goal)
        self._context.progress.trial_ended(number, candidate, best=best, baseline=self._ledger.baseline)

    def _drift_at_own_size(self, combination: Combination) -> float | None:
        """Loss drift at the model's own size, for sizes where plain training does not fit."""
        if self.own is None or draws_other_masks(combination.settings, self._context.facts):
            return None
        self.evaluator(self.own)
        trials = self._at[self.own][0]
        reference = trials.reference(combination.data_degree)
        if reference is None or reference == combination:
            return None
        for one in (reference, combination):
            if trials.sizing_of(one) is None:
                trials.size(one, largest_of_global_batch(one, self._goal))
        return trials.drift(combination)

    def tried(self, combination: Combination, place: int) -> list[Candidate]:
        """Candidates of a combination at a size."""
        size = self.rungs[place].size
        return [one for one in self.candidates if Combination.of(one.policy) == combination and one.model_size == size]

    def place_of(self, candidate: Candidate) -> int:
        """The place of a candidate's size in the chain."""
        return next(place for place, rung in enumerate(self.rungs) if rung.size == candidate.model_size)

    @property
    def cuts(self) -> list[Combination]:
        """Where devices may divide the model: the plainest of each mesh that does, on few devices first."""
        space = self._context.space
        found = (space.on_devices((), count, mesh) for count, mesh in space.places if mesh != DATA_ONLY)
        return [one for one in found if one is not None]

    @property
    def has_budget(self) -> bool:
        """Whether another trial may start."""
        try:
            self.check_budget()
        except OutOfBudgetError:
            return False
        return True

    def check_budget(self) -> None:
        """Check that another trial may start.

        Raises:
            OutOfBudgetError: Trials or time have run out.
        """
        measured = {(one.policy.key, size_words(one.model_size)) for one in self.candidates if is_measured(one)}
        if len(measured) >= self._context.request.trials + self._ledger.tried_again:
            raise OutOfBudgetError(f"the limit of {format_count(self._context.request.trials, 'trial')} was reached")
        if self.candidates and not self._budget.may_start_trial:
            raise OutOfBudgetError(
                f"the time limit of {format_duration(self._budget.limit_seconds)} leaves no room for another trial"
            )
