"""Methods that make this training slower, everything else equal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.decide.candidate import Candidate
from advisor.decide.eligible import is_measured
from advisor.decide.noise import won_in_short_steps
from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome

__all__ = ["costly_methods"]


def costly_methods(candidates: Sequence[Candidate]) -> set[str]:
    """Names of the methods without which a combination was clearly faster in alternating steps.

    A number format in which matrix products are fast may still lose in a training that has few of them.
    """
    tried = [one for one in candidates if is_measured(one) or one.outcome is Outcome.COMPARED]
    known = {Combination.of(one.policy).label: one for one in tried}
    found = set()
    for one in known.values():
        combination = Combination.of(one.policy)
        for setting in combination.settings:
            rest = tuple(other for other in combination.settings if other != setting)
            without = known.get(msgspec.structs.replace(combination, settings=rest).label)
            if without is not None and won_in_short_steps(without, one, candidates) is not None:
                found.add(setting.name)
    return found
