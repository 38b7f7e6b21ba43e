"""Documents that ``--json`` has printed, to the byte, and what they are made from."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from advisor.decide.candidate import Recommendation
from advisor.decide.verdict import Check, Kept, Verification
from advisor.errors import NothingFitsError
from advisor.goal import Fidelity, Goal
from advisor.measure.fidelity import GradientError
from advisor.measure.step_record import StepRecord
from advisor.report.json_documents import json_answer, json_error, json_outlook, json_verification
from advisor.trial.outcome import Outcome
from tests.decide.examples import goal, measurement
from tests.decide.test_largest import CANDIDATES, HALF, chosen
from tests.report.cost_scenario import cost_goal, cost_recommendation
from tests.report.scenario import answered, recommendation
from tests.report.test_outlook_view import FITS, STEP

FOLDER = Path(__file__).parent
_RECOMMENDATION = re.compile(r'  "recommendation": \{.*?\n  \},\n', re.DOTALL)

KEPT = Verification(
    workload="tiny",
    device="a CPU",
    policy=FITS.policy,
    fidelity=Fidelity.ROUNDING,
    samples=8,
    outcome=Outcome.OK,
    checks=(Check(name="losses", promised="within 0.5%", found="0.1% off", kept=Kept.YES),),
    plain=StepRecord(losses=(3.0, 2.5, 2.25)),
    wrapper=StepRecord(
        losses=(3.0, 2.5, 2.5),
        gradient=GradientError(error=0.001, cosine=1.0, norm_ratio=1.0),
        update_errors=(0.01, 0.02, 0.03),
    ),
    measurement=measurement(120.0),
    plain_measurement=measurement(60.0),
    notes=("a note",),
)
BROKEN = Verification(
    workload="tiny",
    device="a CPU",
    policy=FITS.policy,
    fidelity=Fidelity.EXACT,
    samples=8,
    outcome=Outcome.OUT_OF_MEMORY,
    reason="the limit is 1 MiB",
    checks=(Check(name="run", promised="", found="out of memory", kept=Kept.NO),),
    plain=StepRecord(losses=(3.0, 2.5, 2.25)),
)


def _answer(found: Recommendation, aim: Goal) -> str:
    """Without the recommendation: that is a record as it is, and grows when it gets a field."""
    text, count = _RECOMMENDATION.subn("", json_answer(answered(found, aim)))
    assert count == 1
    return text


DOCUMENTS: dict[str, Callable[[], str]] = {
    "faster": lambda: _answer(recommendation(), goal()),
    "bigger": lambda: _answer(chosen(CANDIDATES), HALF),
    "cheapest": lambda: _answer(cost_recommendation(), cost_goal()),
    "error": lambda: json_error(NothingFitsError("none fits below 1.00 GiB")),
    "predict": lambda: json_outlook(msgspec.structs.replace(FITS, times=(STEP,))),
    "predict_nothing_fits": lambda: json_outlook(msgspec.structs.replace(FITS, fits=False, largest=None, notes=())),
    "verify": lambda: json_verification(KEPT),
    "verify_broken": lambda: json_verification(BROKEN),
}
