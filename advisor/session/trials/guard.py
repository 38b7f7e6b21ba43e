"""Compare candidates with the reference run before they set the pace or are recommended."""

from __future__ import annotations

import msgspec

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import is_measured
from advisor.decide.guard import amplifies_rounding, observed_class
from advisor.measure.fidelity import FidelityMeasurement, compared, diverged, noise_floor
from advisor.methods.catalogue import get_method
from advisor.search.space.space import Combination
from advisor.session.context import StudyContext
from advisor.session.trials.micro_batches import usual_batch
from advisor.session.trials.trials import COMPARED_STEPS, Trials
from advisor.text.units import format_count
from advisor.trial.outcome import Outcome
from advisor.trial.result import FidelityResult
from advisor.workload.sizes import size_words

__all__ = ["Guard"]

_TOO_FEW = "its steps are too slow to make enough of them"
_NO_TIME = "no time was left"
_INTERRUPTED = "the search was interrupted"

_MARGIN = 1.5
"""A method may make steps this much longer than the plain ones that their time is predicted from."""

_IDLE = " changed nothing"
"""Part of the note of every method that had nothing to do: such a comparison proves nothing about it."""


class Guard:
    """Compares policies with the plainest one on the same number of devices, at a small batch, over tens of steps.

    Where a policy seems not to train as it promises, the user's own batch decides, as far as there is time for it.

    It compares methods, not batches: each combination runs once per size, the reference run once for all, and
    comparisons of an earlier run of the study are reused.
    """

    def __init__(self, context: StudyContext, trials: Trials) -> None:
        self._trials = trials
        self._facts = context.facts
        self._budget = context.budget
        self._durations = context.budget.durations
        self._progress = context.progress
        self._known = {_key(one): one.guard for one in context.ledger.candidates if one.guard is not None}
        self._failed: dict[tuple[str, str], str] = {}

    def checked(self, candidate: Candidate) -> Candidate:
        """Return the candidate with its comparison, or the reason why there is none; the plainest needs none."""
        reference = self._trials.reference(candidate.policy.data_degree)
        candidate = self._with_known(candidate)
        if candidate.guard is not None or reference in (None, Combination.of(candidate.policy)):
            return candidate
        assert reference is not None
        failed = self._failed.get(_key(candidate)) or ("" if self._budget.may_compare else _NO_TIME)
        if failed:
            return msgspec.structs.replace(candidate, not_compared=failed)
        words = Combination.of(candidate.policy).words
        self._progress.stage(f"comparing its losses with plain training's: {words}")
        found, reason = self._compare(candidate, reference)
        if found is None:
            self._failed[_key(candidate)] = reason
            return msgspec.structs.replace(candidate, not_compared=reason)
        self._known[_key(candidate)] = found
        return msgspec.structs.replace(candidate, guard=found, not_compared="")

    def remembered(self, candidate: Candidate) -> Candidate:
        """Like :meth:`checked` without running anything: reuse what was found of its methods at another batch."""
        candidate = self._with_known(candidate) if is_measured(candidate) else candidate
        plainest = self._trials.reference(candidate.policy.data_degree) in (None, Combination.of(candidate.policy))
        if candidate.guard is not None or plainest or not is_measured(candidate):
            return candidate
        return msgspec.structs.replace(candidate, not_compared=candidate.not_compared or _INTERRUPTED)

    def _with_known(self, candidate: Candidate) -> Candidate:
        known = self._known.get(_key(candidate))
        if candidate.guard is not None or known is None:
            return candidate
        return msgspec.structs.replace(candidate, guard=known, not_compared="")

    def _compare(self, candidate: Candidate, reference: Combination) -> tuple[FidelityMeasurement | None, str]:
        trials = self._trials.at_size(candidate.model_size) if candidate.model_size else self._trials
        passes = candidate.policy.axes.pipeline  # a pipeline needs as many micro-batches, and so has its reference
        exact, micro_batch = _reference_run(trials, reference, passes)
        if candidate.model_size and exact.outcome is Outcome.OUT_OF_MEMORY:
            # Methods do not depend on the size: compare them where plain training fits.
            trials = self._trials
            exact, micro_batch = _reference_run(trials, reference, passes)
        larger = self._larger_batch(trials, reference, passes)
        if exact.outcome is Outcome.DIVERGED and larger > micro_batch:
            exact, micro_batch = trials.fidelity(reference, larger, passes=passes), larger
        if exact.fidelity is None:
            if exact.outcome is Outcome.OUT_OF_MEMORY:
                return None, "plain training does not fit"
            return None, f"plain training's own run ended as {_end(exact)}"
        size = candidate.model_size if trials is not self._trials else {}
        found, reason = self._beside(exact, candidate, reference, trials, micro_batch, size)
        if found is None and _IDLE not in reason:
            return found, reason
        if _tells(found, candidate) or larger <= micro_batch or not self._budget.may_compare:
            return found, reason
        exact = trials.fidelity(reference, larger, passes=passes)
        if exact.fidelity is None:
            return found, reason
        again, why_not = self._beside(exact, candidate, reference, trials, larger, size)
        if again is None:
            return (None, why_not) if found is None else (found, reason)
        return msgspec.structs.replace(again, noise_of_few=None if found is None else found.noise), ""

    def _larger_batch(self, trials: Trials, reference: Combination, passes: int) -> int:
        """The user's own batch, or the part of it at which there is time for as many steps as at the first.

        Normalization over two samples amplifies what any method rounds, and a method may have nothing to do in them.
        """
        model = trials.model_of(reference)
        if model is None:
            return 0
        step = self._budget.limits.comparison_step_seconds / (COMPARED_STEPS * _MARGIN * passes)
        in_time = model.largest_within_seconds(step)
        return model.layout.fitted(min(usual_batch(self._facts), in_time, model.most_samples or in_time))

    def _beside(
        self,
        reference_run: FidelityResult,
        candidate: Candidate,
        reference: Combination,
        trials: Trials,
        micro_batch: int,
        size: dict[str, int | float],
    ) -> tuple[FidelityMeasurement | None, str]:
        exact = reference_run.fidelity
        assert exact is not None, "it went well"
        passes = candidate.policy.axes.pipeline
        own = trials.fidelity(Combination.of(candidate.policy), micro_batch, exact=reference_run, passes=passes)
        if not any(get_method(setting.name).slow_start for setting in candidate.policy.methods):
            # A compiling method says nothing about other durations; reserving as much would end the search early.
            self._durations.comparison_seconds = max(self._durations.comparison_seconds or 0.0, own.wall_seconds)
        label = reference.label
        if own.outcome is Outcome.DIVERGED:
            if compared(exact, exact, reference=label, micro_batch=micro_batch) is None:
                return None, _TOO_FEW
            return diverged(exact, reference=label, micro_batch=micro_batch, model_size=size), ""
        if own.fidelity is None:
            return None, f"its run ended as {_end(own)}"
        found = compared(own.fidelity, exact, reference=label, micro_batch=micro_batch, model_size=size)
        if found is None:
            return None, _TOO_FEW
        if not any(get_method(setting.name).learns_slower for setting in candidate.policy.methods):
            found = msgspec.structs.replace(found, began=None)
        if observed_class(candidate.fidelity, found) is not candidate.fidelity:
            # Measure the effect of chance only where it may have to excuse something.
            chance = trials.fidelity(reference, micro_batch, exact=reference_run, other_chance=True, passes=passes)
            noise = None if chance.fidelity is None else noise_floor(chance.fidelity, exact)
            return msgspec.structs.replace(found, noise=noise), ""
        idle = [note for note in own.notes if _IDLE in note and note not in candidate.notes]
        # A deviation despite an idle method comes from another method, and stands.
        return (None, f"at {format_count(micro_batch, 'sample')} {idle[0]}") if idle else (found, "")


def _reference_run(trials: Trials, reference: Combination, passes: int) -> tuple[FidelityResult, int]:
    """The reference run and its batch: the first of every sizing, or one sample."""
    result = trials.fidelity(reference, trials.first_batch, passes=passes)
    if result.outcome is not Outcome.OUT_OF_MEMORY or trials.first_batch == 1 or not trials.layout.takes_any:
        return result, trials.first_batch
    return trials.fidelity(reference, 1, passes=passes), 1


def _tells(found: FidelityMeasurement | None, candidate: Candidate) -> bool:
    """Whether a comparison shows that a candidate trains as it promises, in batches where rounding is not amplified."""
    if found is None or observed_class(candidate.fidelity, found) is not candidate.fidelity:
        return False
    return found.noise is None or not amplifies_rounding(found.noise)


def _end(result: FidelityResult) -> str:
    return result.outcome.value + (f": {result.reason.rstrip('.')}" if result.reason else "")


def _key(candidate: Candidate) -> tuple[str, str]:
    return Combination.of(candidate.policy).label, size_words(candidate.model_size) if candidate.model_size else ""
