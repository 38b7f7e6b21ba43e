"""One search for the least cost with everything that can happen in it."""

from __future__ import annotations

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.choose import choose
from advisor.goal import Fidelity, Goal, Preference
from advisor.measure.measurement import StopReason
from advisor.methods.setting import use
from advisor.report.why import explained
from advisor.trial.outcome import Outcome
from tests.decide.costs import cheapest, timed
from tests.decide.examples import GIB, lost

from .scenario import ADAM, BF16, CHECKPOINT, CHUNKED, REFUSED

SWAP = use("swap")


def cost_candidates(*, energy: bool = False) -> list[Candidate]:
    def joules(watts: float, seconds: float) -> float | None:
        return watts * seconds if energy else None

    return [
        timed(1.92, role=Role.BASELINE, accumulation_steps=4, joules=joules(300, 1.92)),
        timed(1.03, BF16, role=Role.HAND_TUNED, fidelity=Fidelity.PRECISION, drift=0.004, joules=joules(320, 1.03)),
        timed(0.912, BF16, CHUNKED, fidelity=Fidelity.PRECISION, drift=0.0042, joules=joules(310, 0.912)),
        timed(0.498, BF16, CHUNKED, gpu_count=2, fidelity=Fidelity.PRECISION, drift=0.0042, joules=joules(640, 0.498)),
        timed(0.301, BF16, gpu_count=4, fidelity=Fidelity.PRECISION, drift=0.0041, joules=joules(1200, 0.301)),
        timed(0.62, BF16, CHECKPOINT, gpu_count=2, fidelity=Fidelity.PRECISION, drift=0.0042, peak=2 * GIB),
        timed(0.372, BF16, CHECKPOINT, gpu_count=4, fidelity=Fidelity.PRECISION, drift=0.0042, peak=2 * GIB),
        timed(1.31, SWAP, gpu_count=2, stop_reason=StopReason.OUTPACED),
        timed(0.45, ADAM, BF16, CHUNKED, gpu_count=2, fidelity=Fidelity.LOSSY, drift=0.093),
        lost(Outcome.OUT_OF_MEMORY, reason="the allocator asked for 1.2 GiB more", micro_batch=32),
    ]


def cost_goal(preference: Preference | None = None, *, usd_per_kilowatt_hour: float | None = None) -> Goal:
    return cheapest(preference or Preference(), usd_per_kilowatt_hour=usd_per_kilowatt_hour)


def cost_recommendation(goal: Goal | None = None, *, energy: bool = False) -> Recommendation:
    aim = goal or cost_goal()
    answer = choose(
        cost_candidates(energy=energy),
        aim,
        refused_settings=REFUSED,
        untried=41,
        stopped_because="the limit of 40 trials was reached",
    )
    return explained(answer, aim)
