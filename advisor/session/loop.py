"""The search loop: ask for a combination, evaluate it, tell the sampler the result, until there is a reason to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from advisor.decide.candidate import Candidate, Role
from advisor.decide.eligible import (
    best_so_far,
    is_faithful,
    is_measured,
    pace,
    why_not_eligible,
    why_not_faithful,
    worth_checking,
)
from advisor.decide.leader import needs_comparison, next_leader
from advisor.decide.no_winner import nothing_to_compare_with
from advisor.decide.score import directions, objectives
from advisor.methods.catalogue import get_method
from advisor.methods.compose import starts_slowly
from advisor.methods.setting import MethodSetting
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Combination
from advisor.search.study.sampler import Proposal, Proposer
from advisor.session.budget import TIMED_LEADERS
from advisor.session.context import StudyContext
from advisor.session.costly_methods import costly_methods
from advisor.session.stopping import StoppingRule
from advisor.session.teaching import Teaching
from advisor.session.trials.candidates import Evaluation
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.text.records import DamagedError, decode_record
from advisor.text.units import format_count, format_duration
from advisor.trial.outcome import Outcome

__all__ = ["SearchLoop"]

_FEWEST_COMPARED = 12
"""On one device this many combinations are compared, at seconds each, before any lead is certain. After that, if there
is time for several trials, each proposal of which a gain is expected is timed: what is left to find is near the leader,
and predictions from short steps are too rough for that."""


class SearchLoop:
    """One search."""

    after_trial: Callable[[int], None] | None = None
    """Called with the number of measured trials after each one but the last, once proposals are timed at once."""

    def __init__(
        self,
        context: StudyContext,
        proposer: Proposer,
        evaluator: Evaluator,
        guard: Guard,
        memory_of: Callable[[Combination], MemoryModel | None],
    ) -> None:
        self._proposer = proposer
        self._teach = Teaching(proposer, context, memory_of)
        self._evaluator = evaluator
        self._comparing = evaluator if isinstance(evaluator, ComparingEvaluator) else None
        self._budget = context.budget
        self._goal = context.goal
        self._trial_budget = context.request.trials
        self._progress = context.progress
        self._guard = guard
        self._ledger = context.ledger
        self._budget.limits.has_answer = any(map(is_measured, self._ledger.candidates))
        self._stopping = StoppingRule(proposer, context.goal.kind)
        # Plain training without a batch of its own is its own baseline, and would lead again.
        self._led: set[str] = set()
        self._put_off: set[str] = set()
        self._number = 1

    @property
    def measured(self) -> int:
        """Number of trials with measurements, of which ``--trials`` allows so many."""
        return self._ledger.measured

    @property
    def _compared_enough(self) -> bool:
        known = (one for one in self._ledger.candidates if is_measured(one) or one.outcome is Outcome.COMPARED)
        return self._comparing is None or len({one.policy.combination_key for one in known}) >= _FEWEST_COMPARED

    @property
    def _compares_first(self) -> bool:
        """Whether a proposal is compared before it is timed."""
        if not self._compared_enough:
            return True
        return self._comparing is not None and (self._stopping.expects_nothing or not self._budget.may_time_several)

    def run(self) -> str:
        """Search until there is a reason to stop; return it, as the user reads it."""
        if self._ledger.baseline is None:
            begin = self._budget.elapsed_seconds
            baseline = self._evaluator.baseline()
            if baseline is not None:
                self._record(baseline)
                self._budget.durations.trial_seconds.append(self._budget.elapsed_seconds - begin)
        baseline = self._ledger.baseline
        if baseline is not None:
            if baseline.outcome is Outcome.DIVERGED and not baseline.policy.methods:
                raise nothing_to_compare_with(baseline)
            self._evaluator.explain_baseline(baseline)
        if self._comparing is None:
            return self._proposed()
        known = {one.policy.key for one in self._ledger.candidates if not one.outcome.is_by_chance}
        for one in self._comparing.baseline_is(baseline, self._ledger.candidates):
            if one.policy.key not in known:
                self._record(one)
        reason = ""
        # With fewer leaders than expected, the time reserved for them goes to further comparisons.
        for leaders in (TIMED_LEADERS, 1):
            reason = self._proposed(leaders)
            self._time_leaders(self._comparing)
        if not self._led and not self._compared_enough:
            reason = self._proposed()  # The time reserved for a leader goes to comparisons if nothing became one.
            self._time_leaders(self._comparing)
        return reason

    def _proposed(self, leaders: int = 0) -> str:
        """Try proposals until there is a reason to stop, which may be that the time left is reserved.

        Args:
            leaders: Leaders to reserve time for while combinations are compared; with 0, a dozen comparisons is enough.
        """
        passed_over: set[str] = set()
        while True:
            self._adopt()
            if self.measured >= self._trial_budget + self._ledger.tried_again:
                limit = format_count(self._trial_budget, "trial")
                return f"the limit of {limit} was reached{self._stopping.what_more()}"
            is_last = self._compares_first and not leaders
            # Try the first policy however little time there is: no answer at all helps nobody.
            if self._ledger.candidates and (not self._has_room(leaders) or (is_last and self._compared_enough)):
                return self._no_room
            reason = self._stopping.reason()
            if reason is not None and self._compared_enough:
                return reason + self._but_for_set_ups
            proposal = self._ask()
            if proposal is None:
                every = f"every policy of the search space was tried{self._but_for_set_ups}"
                return self._no_room if passed_over else every
            sets_up = self._comparing is not None and starts_slowly(proposal.combination.settings)
            if is_last and proposal.hand_tuned:
                self._proposer.abandon(proposal)
                return self._no_room
            if is_last and sets_up and not self._budget.may_set_up:
                self._proposer.abandon(proposal)
                passed_over |= self._stop_proposing(proposal.combination.settings)
                continue
            try:
                if self._comparing and sets_up and (self._compared_enough or not self._budget.may_set_up):
                    self._time_leaders(self._comparing)  # the set-up may take the time that was kept for them
                begin, self._number = self._budget.elapsed_seconds, self._ledger.next_number
                self._budget.limits.confirms_briefly |= is_last
                evaluation = self._evaluated(proposal)
            except BaseException:
                self._proposer.abandon(proposal)
                raise
            seconds = self._budget.elapsed_seconds - begin
            if is_measured(evaluation.candidate):
                self._budget.durations.trial_seconds.append(seconds)
            elif evaluation.candidate.outcome is Outcome.COMPARED and proposal.combination.settings:
                # Plain training was sized before.
                self._budget.durations.compared(seconds, slow_start=starts_slowly(proposal.combination.settings))
            found, before = self._recorded(evaluation)
            if self._comparing is not None:
                found += before  # the other batches of a ladder
                timed = [one for one in found if is_measured(one)]
                if timed and not any(is_faithful(one, self._goal) for one in timed):
                    self._comparing.withdraw(evaluation.candidate)
            self._teach.tell(proposal, evaluation, found, self._better(found))
            timed_out = evaluation.candidate.outcome is Outcome.TIMEOUT and evaluation.candidate.trial_key is None
            if self._comparing is not None and timed_out:
                self._put_off_set_ups(evaluation.candidate)
            if self._comparing is not None and any(map(is_measured, self._ledger.candidates)):
                # Measure a certain leader now, whatever the rest of the time goes to; after the dozen, a likely one.
                short = not self._compared_enough or not self._budget.may_time_several
                self._time_leaders(self._comparing, surely=short and not is_last)
            left = self._trial_budget + self._ledger.tried_again - self.measured
            if self.after_trial is not None and left > 0 and not self._compares_first:
                self.after_trial(self.measured)

    def _ask(self) -> Proposal | None:
        """The next proposal. Recipes that are left go without what makes this training slower."""
        for method in costly_methods(self._ledger.candidates):
            self._proposer.leave_out(method)
        return self._proposer.ask()

    def _has_room(self, leaders: int) -> bool:
        """Whether there is time to try another proposal before the time reserved for as many leaders."""
        best, baseline = self.best(), self._ledger.baseline
        if self._compares_first and leaders:
            return self._budget.may_compare_another(max(1, leaders - len(self._led)))
        if self._compares_first:
            return self._budget.may_compare_last(checked=best is not None and best.guard is not None)
        unrivalled = best is not None and baseline is not None and best.policy == baseline.policy
        return self._budget.may_start_unrivalled if unrivalled else self._budget.may_start_trial

    @property
    def _no_room(self) -> str:
        limit = format_duration(self._budget.limit_seconds)
        return f"the time limit of {limit} leaves no room for another trial{self._stopping.what_more()}"

    @property
    def _but_for_set_ups(self) -> str:
        left = " or ".join(sorted(self._put_off))
        return f", but for those with {left}, which took too long to set up" if left else ""

    def _put_off_set_ups(self, candidate: Candidate) -> None:
        """Stop proposing a method whose set-up took longer than its share of the time."""
        for name in self._stop_proposing(candidate.policy.methods) - self._put_off:
            self._put_off.add(name)
            self._evaluator.notes.append(
                f"no further combination with {name} was tried after {candidate.policy.words}: "
                f"{candidate.reason}. Raise --time-limit to try them"
            )

    def _stop_proposing(self, settings: Iterable[MethodSetting]) -> set[str]:
        """Stop proposing those of the methods that need a set-up; return their names."""
        names = {one.name for one in settings if get_method(one.name).slow_start}
        for name in names:
            self._proposer.put_off(name)
        return names

    def _recorded(self, evaluation: Evaluation) -> tuple[list[Candidate], list[Candidate]]:
        """Record the candidates of an evaluation and those before them, each checked by the guard."""
        # Check the best of a ladder against the reference run first; the others then share its result.
        found = [self._guarded(one) for one in (evaluation.candidate, evaluation.smaller) if one is not None]
        before = []
        for candidate in evaluation.before:
            before.append(self._guarded(candidate))
            self._record(before[-1])
        for candidate in found:
            self._record(candidate)
        return found, before

    def _time_leaders(self, evaluator: ComparingEvaluator, *, surely: bool = False) -> None:
        """Time the likely leaders at length (with ``surely``, only certain ones) until none is left."""
        while True:
            needed = not any(is_measured(one) for one in self._ledger.candidates)
            room = {slow: needed or self._budget.may_time_leader(slow_start=slow) for slow in (False, True)}
            waiting = [
                one
                for one in self._ledger.candidates
                if one.outcome is not Outcome.COMPARED
                or (one.policy.key not in self._led and room[starts_slowly(one.policy.methods)])
            ]
            leader = next_leader(waiting, self._goal, surely=surely)
            if leader is None:
                return
            if needs_comparison(leader, self._ledger.candidates):
                self._compare_more_steps(leader)
                continue
            self._led.add(leader.policy.key)
            begin = self._budget.elapsed_seconds
            self._number = self._ledger.next_number
            evaluation = evaluator.time_leader(
                leader, best=pace(self._ledger.candidates, self._goal, gpu_count=leader.policy.gpu_count)
            )
            self._budget.durations.trial_seconds.append(self._budget.elapsed_seconds - begin)
            found, others = self._recorded(evaluation)
            timed = [one for one in (*others, *found) if is_measured(one) and is_faithful(one, self._goal)]
            self._teach.learn(timed, max((one.policy.micro_batch for one in timed), default=1))
            if not timed:
                self._teach.rule_out(found[0])
                evaluator.withdraw(leader)

    def _compare_more_steps(self, leader: Candidate) -> None:
        """Have the guard tell whether a would-be leader whose first losses drift may lead, and say so if it may not."""
        checked = self._guard.checked(leader)
        if checked.guard is None:
            checked = msgspec.structs.replace(checked, not_compared=checked.not_compared or "nothing to compare with")
        if not is_faithful(checked, self._goal):
            reason = f"{checked.reason}; it may not win: {why_not_faithful(checked, self._goal)}"
            checked = msgspec.structs.replace(checked, reason=reason)
        self._ledger.replace(lambda one: checked if one == leader else one)
        assert checked in self._ledger.candidates, "otherwise it would be chosen again, without end"

    def best(self) -> Candidate | None:
        """The best candidate so far that may win."""
        return best_so_far(self._ledger.candidates, self._goal)

    def _guarded(self, candidate: Candidate) -> Candidate:
        """Compare a would-be leader with the reference run first: only a candidate that may win sets the pace.

        Its measurements are recorded even if the comparison fails.
        """
        if not worth_checking(candidate, self._ledger.candidates, self._goal):
            return candidate
        try:
            return self._guard.checked(candidate)
        except BaseException:
            self._record(candidate)
            raise

    def _adopt(self) -> None:
        """Adopt the candidates of other workers of the same study: the answer is chosen from all of them."""
        for record in self._proposer.take_records():
            try:
                found = decode_record(record.encode(), list[Candidate])
            except DamagedError:
                continue
            for candidate in found:
                if candidate.role is Role.BASELINE and self._ledger.baseline is not None:
                    candidate = msgspec.structs.replace(candidate, role=Role.SEARCHED)
                if candidate not in self._ledger.candidates:
                    self._record(candidate)

    def _evaluated(self, proposal: Proposal) -> Evaluation:
        combination = proposal.combination
        role = Role.HAND_TUNED if proposal.hand_tuned else Role.SEARCHED
        plainest = self._evaluator.is_plainest(combination)
        if proposal.recipe_name is not None and plainest and self._ledger.baseline is None:
            # The workload states no batch: plain training at the largest batch that fits is the baseline.
            role = Role.BASELINE
        if self._comparing is not None:
            if role is Role.HAND_TUNED or not self._compares_first:
                # The answer compares everything with the hand-tuned default, so it is timed in any case; the first
                # batch of a ladder says what short steps would.
                return self._comparing.time_at_once(combination, role)
            return self._comparing.compare(combination, role)
        return self._evaluator.evaluate(
            combination,
            proposal.batch_fraction,
            role,
            best=pace(self._ledger.candidates, self._goal, gpu_count=combination.gpu_count),
        )

    def _better(self, found: list[Candidate]) -> Candidate:
        """The best of those that may win; the first if none may."""
        able = [one for one in found if is_measured(one) and why_not_eligible(one, self._goal) is None]
        sign = 1 if directions(self._goal.kind)[0] else -1
        return max(able, key=lambda one: sign * objectives(one, self._goal)[0], default=found[0])

    def _record(self, candidate: Candidate) -> None:
        self._ledger.add(candidate)
        self._progress.trial_ended(self._number, candidate, best=self.best(), baseline=self._ledger.baseline)
