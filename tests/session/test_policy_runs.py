"""How a policy file is measured beside its baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from advisor.measure.in_turn import Speedup
from advisor.policy.file import PolicyFile
from advisor.policy.policy import Policy
from advisor.session.policy_runs import PolicyRuns
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ConfirmResult, Result
from advisor.trial.spec import ConfirmTrial, TimeTrial, Trial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.decide.examples import GIB, measurement
from tests.report.scenario import CPU

SOURCE = WorkloadSource(kind=WorkloadKind.FILE, location="/m.py", name="m", fingerprint="f")
BASELINE = Policy(micro_batch=4)
SPEEDUP = Speedup(value=1.5, low=1.4, high=1.6, rounds=4)


class RunnerOf(list[Trial[Any]]):
    """Runs nothing; the wrapper fits alone, or also beside the baseline."""

    def __init__(self, *, both_fit: bool, fits: bool = True) -> None:
        super().__init__()
        self.both_fit, self.fits = both_fit, fits

    def run(self, spec: Trial[Any]) -> Result:
        self.append(spec)
        if isinstance(spec, TimeTrial):
            return cast("Result", spec.ended(Outcome.OK, measurement=measurement(61.0, peak=GIB)))
        assert isinstance(spec, ConfirmTrial)
        if not self.fits or (spec.beside is not None and not self.both_fit):
            return ConfirmResult(key="k", outcome=Outcome.OUT_OF_MEMORY, reason="it needs more")
        speedup = None if spec.beside is None else SPEEDUP
        return ConfirmResult(key="k", outcome=Outcome.OK, measurement=measurement(90.0), speedup=speedup)


@pytest.mark.parametrize(
    ("runner", "besides", "outcome", "speedup"),
    [
        (RunnerOf(both_fit=True), [BASELINE], Outcome.OK, SPEEDUP),
        (RunnerOf(both_fit=False), [BASELINE, None], Outcome.OK, None),
        (RunnerOf(both_fit=False, fits=False), [BASELINE, None], Outcome.OUT_OF_MEMORY, None),
    ],
    ids=["both fit", "each fits", "it does not fit"],
)
def test_a_policy_that_does_not_fit_beside_its_baseline_is_measured_alone(
    runner: RunnerOf, besides: list[Policy | None], outcome: Outcome, speedup: Speedup | None, tmp_path: Path
) -> None:
    file = PolicyFile(policy=Policy(micro_batch=64), baseline=BASELINE)
    found = PolicyRuns(file, SOURCE, CPU, 8 * GIB, tmp_path, cast("Runner", runner)).beside_baseline(64)
    assert [spec.beside for spec in runner if isinstance(spec, ConfirmTrial)] == besides
    assert (found.wrapper.outcome, found.wrapper.speedup, found.beside) == (outcome, speedup, BASELINE)
