"""The search of a study: what proposes, and which loop tries what is proposed."""

from __future__ import annotations

import contextlib

import msgspec

from advisor.decide.score import directions
from advisor.search.propose.standing import Standing
from advisor.search.space.space import ResolvedSpace
from advisor.search.study.sampler import Proposer
from advisor.session.climb import SizeSearch
from advisor.session.compare_leaders import compare_leaders
from advisor.session.context import StudyContext
from advisor.session.loop import SearchLoop
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.session.trials.sized_trials import SizedTrials
from advisor.session.trials.trials import Trials
from advisor.workload.sizes import SizeCounts

__all__ = ["Search"]

_COMPARED = (
    "the leaders also took turns in one group of processes: their speeds are what the search's model expects from this "
    "and everything else that was measured"
)


class Search:
    """One search, and what it says besides the candidates that it writes into the ledger.

    Args:
        context: The study.
        trials: Runs the trials.
        guard: Holds what would lead against the reference run, before it leads.
        name: Of the study in a storage that several workers share.
    """

    def __init__(self, context: StudyContext, trials: Trials, guard: Guard, name: str) -> None:
        self._context = context
        self._trials = trials
        self._guard = guard
        self._name = name
        self.notes: list[str] = []
        self.standings: dict[str, Standing] = {}

    def run(self) -> tuple[str, bool]:
        """Search until there is a reason to stop.

        Returns:
            The reason, and whether nothing is left to try.
        """
        kind = ComparingEvaluator if self._trials.turns.wanted else Evaluator
        times_half = len(self._context.space.batch_fractions) == 1
        evaluator = kind(self._context, self._trials, times_half=times_half)
        with contextlib.closing(self._proposer(self._context.space)) as proposer:
            loop = SearchLoop(self._context, proposer, evaluator, self._guard)
            compared: dict[str, Standing] = {}
            try:
                reason = loop.run()
                compared = compare_leaders(self._context, self._trials, proposer)
                self.notes += [_COMPARED] if compared else []
                return reason, proposer.untried == 0
            finally:
                self.notes += [*_notes_on_pairs(proposer), *evaluator.notes]
                self.standings.update(proposer.standings() | compared)

    def run_over_sizes(self, counts: SizeCounts) -> tuple[str, bool]:
        """Find the largest size for each combination; the same.

        Args:
            counts: The sizes with their parameters.
        """
        # A combination is proposed once: which batches it is tried at is the climb's affair.
        space = msgspec.structs.replace(self._context.space, batch_fractions=(1.0,))
        sized = SizedTrials(self._context, self._trials, self._guard, counts)
        with contextlib.closing(self._proposer(space)) as proposer:
            try:
                return SizeSearch(self._context, proposer, sized).run(), proposer.untried == 0
            finally:
                self.notes += sized.notes

    def _proposer(self, space: ResolvedSpace) -> Proposer:
        request = self._context.request
        return Proposer(
            space,
            storage=self._context.folder.database if request.storage is None else request.storage,
            # What a folder holds is checked by its marker; in a shared storage the name tells studies apart.
            study_name="momadvise" if request.storage is None else self._name,
            maximize=directions(request.goal),
            seed=request.seed,
            sampler=request.sampler,
        )


def _notes_on_pairs(proposer: Proposer) -> list[str]:
    """Say which settings do not go together here, as far as the search has seen."""
    return [
        f"{first} and {second} failed in each of {count} combinations that had both, while each went well without the "
        "other: they do not go together here"
        for (first, second), count in proposer.failing_pairs.items()
    ]
