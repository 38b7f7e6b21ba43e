"""What a promise comes to over a baseline that is not slowed down by what may be otherwise in the next training.

Plain training may be slow because of other processes, or because of where its blocks happen to lie in its heap. A
baseline with those methods of the winner that get around this is as fast in both cases, so the speedup over it stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from advisor.decide.candidate import Recommendation
from advisor.decide.confirmation import Confirmation
from advisor.decide.promise import promised
from advisor.decide.uneven import are_uneven
from advisor.measure.in_turn import Speedup
from advisor.methods.base import Method
from advisor.methods.catalogue import get_method
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.search.space.space import ResolvedSpace
from advisor.session.context import StudyContext
from advisor.session.trials.stalls import speedup_between
from advisor.session.trials.trials import Trials

__all__ = ["SteadierBaseline", "lowered", "steadying"]


def steadying(recommendation: Recommendation, space: ResolvedSpace) -> tuple[MethodSetting, ...]:
    """A setting of the space with which steps take no pages from the system; none if the baseline has such a one."""
    if recommendation.baseline is None:
        return ()
    if any(get_method(one.name).avoids_page_faults for one in recommendation.baseline.policy.methods):
        return ()
    return tuple(axis.settings[0] for axis in space.axes if get_method(axis.method).avoids_page_faults)[:1]


def lowered(confirmation: Confirmation, over_steady: Speedup, around: Sequence[MethodSetting]) -> Confirmation:
    """Promise no more than what is left over a baseline with these methods, which nothing slows down."""
    assert confirmation.promise is not None, "there is a promise to lower"
    least = promised([over_steady], ())
    promise = msgspec.structs.replace(confirmation.promise, low=min(confirmation.promise.low, least.low))
    return msgspec.structs.replace(confirmation, promise=promise, without_stalls=least, around_stalls=_names(around))


@dataclass
class SteadierBaseline:
    """Compares the wrapper of a winner with it.

    Attributes:
        path: The wrapper's file.
    """

    context: StudyContext
    trials: Trials
    path: str

    def without_stalls(self, confirmation: Confirmation, recommendation: Recommendation, load: str) -> Confirmation:
        """Lower a promise to what is left of it when other processes no longer slow the baseline down.

        Threads that wait for each other beside them stall in one minute and not in the next, so that plain training is
        now 100 times slower and now twice.

        Args:
            confirmation: The winner's, with a promise.
            recommendation: The recommendation.
            load: What keeps the machine busy; empty if nothing does.
        """
        around = _added(recommendation, lambda method: bool(method.rests_on))
        if not around or recommendation.winner.model_size or not load:
            return confirmation
        steady = _steadied(recommendation, around)
        if steady.key == recommendation.winner.policy.key:
            return msgspec.structs.replace(_without_gain(confirmation), around_stalls=_names(around))
        self.context.progress.stage(f"comparing with a baseline that other processes slow down less: {_names(around)}")
        result = self.trials.time(
            steady, outpaced_below=None, repeat=1, measure_seconds=self.context.budget.limits.turn_seconds
        )
        if result.measurement is None or confirmation.measurement is None:
            return confirmation
        if result.speedup is not None and confirmation.speedup is not None:
            # Both took turns with the baseline: its speed in the search says nothing about now.
            return lowered(confirmation, confirmation.speedup.times(result.speedup.inverse), around)
        return lowered(confirmation, speedup_between(confirmation.measurement, result.measurement), around)

    def without_page_faults(
        self, confirmation: Confirmation, recommendation: Recommendation, *, asked: dict[str, Any]
    ) -> Confirmation:
        """Let a promise begin with what is left of it over a baseline whose blocks happen to lie well in its heap.

        No process of the baseline is faster than one that takes no pages. So where the winner takes none either, this
        is the lower end, however much the processes that were seen differ.

        Args:
            confirmation: The winner's, with a promise.
            recommendation: The recommendation.
            asked: What the confirmation asked for beside the wrapper where the search took no turns.
        """
        winner, baseline = recommendation.winner, recommendation.baseline
        around = steadying(recommendation, self.context.space)
        if baseline is None or not around or winner.model_size or not self.context.budget.may_confirm_another:
            return confirmation
        readings = self.trials.turns.page_faults_of(baseline.policy)
        if not are_uneven(readings):
            return confirmation
        steady = _steadied(recommendation, around)
        if steady.key == winner.policy.key:
            return msgspec.structs.replace(
                _without_gain(confirmation), around_stalls=_names(around), page_faults=readings
            )
        self.context.progress.stage(f"comparing with a baseline that takes no pages in a step: {_names(around)}")
        result = self.trials.confirm(
            winner.policy, self.path, repeat=0, around_stalls=False, **(asked | {"beside": steady})
        )
        if result.speedup is None:
            return confirmation
        least, promise = promised([result.speedup], ()), confirmation.promise
        assert promise is not None, "there is one"
        keeps = any(get_method(one.name).avoids_page_faults for one in winner.policy.methods)
        promise = msgspec.structs.replace(promise, low=min(promise.value if keeps else promise.low, least.low))
        return msgspec.structs.replace(
            confirmation,
            promise=promise,
            without_stalls=least,
            around_stalls=_names(around),
            page_faults=readings,
            # Whatever lies between its ends is as promised: it depends on the process.
            noise=max(confirmation.noise, promise.relative_spread),
        )


def _added(recommendation: Recommendation, wanted: Callable[[Method], bool]) -> tuple[MethodSetting, ...]:
    """Those methods of the winner that the baseline lacks."""
    if recommendation.baseline is None:
        return ()
    has = {one.name for one in recommendation.baseline.policy.methods}
    methods = recommendation.winner.policy.methods
    return tuple(one for one in methods if one.name not in has and wanted(get_method(one.name)))


def _steadied(recommendation: Recommendation, around: Sequence[MethodSetting]) -> Policy:
    assert recommendation.baseline is not None, "there is something to steady"
    policy = recommendation.baseline.policy
    return msgspec.structs.replace(policy, methods=tuple(sorted((*policy.methods, *around), key=lambda one: one.name)))


def _without_gain(confirmation: Confirmation) -> Confirmation:
    """The steadier baseline is the winner itself."""
    assert confirmation.promise is not None, "there is a promise to lower"
    promise = msgspec.structs.replace(confirmation.promise, low=min(confirmation.promise.low, 1.0))
    return msgspec.structs.replace(confirmation, promise=promise)


def _names(settings: Sequence[MethodSetting]) -> str:
    return " + ".join(one.words for one in settings)
