"""The search of a study: what proposes, and which loop tries what is proposed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import msgspec

from advisor.decide.score import directions
from advisor.search.propose.standing import Standing
from advisor.search.space.space import ResolvedSpace
from advisor.search.study.sampler import Proposer
from advisor.session.climb import SizeSearch
from advisor.session.context import StudyContext
from advisor.session.loop import SearchLoop
from advisor.session.trials.compare import ComparingEvaluator
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.session.trials.sized_trials import SizedTrials
from advisor.session.trials.trials import Trials
from advisor.workload.sizes import SizeCounts

__all__ = ["Search"]


@dataclass
class Search:
    """One search, and what it says besides the candidates that it writes into the ledger."""

    context: StudyContext
    trials: Trials
    guard: Guard
    name: str
    notes: list[str] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)

    def run(self) -> tuple[str, bool]:
        """Search until there is a reason to stop; return it, and whether nothing is left to try."""
        kind = ComparingEvaluator if self.trials.turns.wanted else Evaluator
        times_half = len(self.context.space.batch_fractions) == 1
        evaluator = kind(self.context, self.trials, times_half=times_half)
        with contextlib.closing(self._proposer(self.context.space)) as proposer:
            loop = SearchLoop(self.context, proposer, evaluator, self.guard)
            try:
                return loop.run(), proposer.untried == 0
            finally:
                self.notes += [
                    f"{first} and {second} failed in each of {count} combinations that had both, while each went well "
                    "without the other: they do not go together here"
                    for (first, second), count in proposer.failing_pairs.items()
                ]
                self.notes += evaluator.notes
                self.standings.update(proposer.standings())

    def run_over_sizes(self, counts: SizeCounts) -> tuple[str, bool]:
        """Find the largest size for each combination; the same."""
        # A combination is proposed once: which batches it is tried at is the climb's affair.
        space = msgspec.structs.replace(self.context.space, batch_fractions=(1.0,))
        sized = SizedTrials(self.context, self.trials, self.guard, counts)
        with contextlib.closing(self._proposer(space)) as proposer:
            try:
                return SizeSearch(self.context, proposer, sized).run(), proposer.untried == 0
            finally:
                self.notes += sized.notes

    def _proposer(self, space: ResolvedSpace) -> Proposer:
        request = self.context.request
        return Proposer(
            space,
            storage=self.context.folder.database if request.storage is None else request.storage,
            # What a folder holds is checked by its marker; in a shared storage the name tells studies apart.
            study_name="momadvise" if request.storage is None else self.name,
            maximize=directions(request.goal),
            seed=request.seed,
            sampler=request.sampler,
        )
