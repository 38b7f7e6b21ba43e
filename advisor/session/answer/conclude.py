"""Choose among the candidates of a study, and say why."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.choose import choose
from advisor.report.why import explain
from advisor.search.propose.standing import Standing
from advisor.search.space.space import Count
from advisor.session.answer.emit import Emission

__all__ = ["Conclusion"]


class Conclusion(Emission, frozen=True, kw_only=True):
    """Everything that choosing needs besides the candidates.

    Attributes:
        refused_settings: Setting -> why no policy could use it.
        untried: Number of combinations that were not tried; a bound for a space too large to count.
        standings: Label of a combination -> the search model's estimate of it; empty without a model.
    """

    refused_settings: dict[str, str]
    untried: Count
    stopped_because: str
    standings: dict[str, Standing] = msgspec.field(default_factory=dict)

    def choose(self, candidates: Sequence[Candidate]) -> Recommendation:
        """The recommendation from these candidates, explained.

        Raises:
            TrialError: Nothing fits, or nothing was measured.
        """
        recommendation = choose(
            candidates,
            self.goal,
            refused_settings=self.refused_settings,
            untried=self.untried.number,
            stopped_because=self.stopped_because,
        )
        recommendation = msgspec.structs.replace(recommendation, untried_is_bound=not self.untried.exact)
        return msgspec.structs.replace(recommendation, why=tuple(explain(recommendation, self.goal)))
