"""Study folders as runs leave them, with made-up figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from advisor.decide.answer import Answer, store_answer
from advisor.decide.candidate import Candidate, Recommendation
from advisor.goal import Fidelity, Goal
from advisor.measure.fidelity import FidelityMeasurement, FidelityRecord, GradientError
from advisor.measure.measurement import SizePoint, Sizing
from advisor.phase import Phase
from advisor.policy.policy import Policy
from advisor.predict.prediction import Category
from advisor.predict.step_timeline import StepTimeline
from advisor.text.records import encode_record
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import Result
from advisor.trial.spec import FidelityTrial, PredictTrial, SizeTrial, TimeTrial, Trial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.decide.examples import GIB, goal, measured, memory, policy
from tests.predict.rates import group, rates, work_of
from tests.report.scenario import BF16, CANDIDATES, answered, recommendation
from tests.search.test_build_space import FACTS

__all__ = ["TIMELINE", "faster_study", "stored_trial", "write_study"]

SOURCE = WorkloadSource(kind=WorkloadKind.FILE, location="/m.py", name="gpt2", fingerprint="f")
TIMELINE = StepTimeline(
    micro_batch=8,
    passes=1,
    phases=((0, "forward"), (2, "backward"), (3, "optimizer")),
    live={Category.PARAMETERS: (100, 100, 100, 100), Category.ACTIVATIONS: (10, 50, 20, 0)},
    operator="addmm",
)
LOSSES = (4.0, 3.5, 3.0, 2.8, 2.6)


def write_study(
    path: Path,
    found: Recommendation,
    aim: Goal,
    *,
    tried: Sequence[Candidate] = (),
    trials: Sequence[tuple[Trial[Any], Result]] = (),
    model: str = "gpt2.py",
    **changes: Any,
) -> Path:
    """A study folder with an answer; ``changes`` are fields of the answer."""
    folder = StudyFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    marker = {"schema": 2, "workload": {"name": "gpt2", "model": model}, "versions": {"momadvise": "0.1.0"}}
    folder.marker.write_bytes(encode_record({**marker, "asked": {"goal": aim.kind.value, "batch_size": 8}}))
    answer: Answer = msgspec.structs.replace(answered(found, aim), folder=str(path), **changes)
    store_answer(answer, folder)
    folder.ledger.write_bytes(b"".join(encode_record(one) + b"\n" for one in tried))
    for spec, result in trials:
        trial = folder.trial(result.key)
        trial.path.mkdir(parents=True)
        trial.spec.write_bytes(encode_record(spec))
        trial.write_result(result)
    return path


def stored_trial(kind: Any, of: Policy, *, ended_at: float, **found: Any) -> tuple[Trial[Any], Any]:
    """A trial of a kind that took two seconds, with what it found and what it was asked."""
    names = {field.name for field in msgspec.structs.fields(kind)}
    asked = {name: found.pop(name) for name in list(found) if name in names}
    spec = kind(
        workload=SOURCE,
        policy=of,
        device="cpu",
        memory_limit_bytes=8 * GIB,
        measure_seconds=1.0,
        time_limit_seconds=10.0,
        **asked,
    )
    result = spec.ended(Outcome.OK, wall_seconds=2.0, ended_at=ended_at, **found)
    return spec, result


def faster_study(path: Path, **changes: Any) -> Path:
    """A study with every kind of record that a page shows."""
    plain, size = policy(), Sizing(points=(_point(2, 0.025), _point(4, 0.045)), out_of_memory_at=None, loss_trace=())
    bf16 = policy(BF16, micro_batch=2)
    work = work_of(group(Phase.FORWARD, flops=(0, 1000)), group(Phase.OPTIMIZER, read_bytes=200.0))
    profiled = stored_trial(SizeTrial, policy(micro_batch=2), ended_at=2.0, sizing=size)
    timed = stored_trial(TimeTrial, plain, ended_at=4.0, measurement=CANDIDATES[0].measurement)
    exact = stored_trial(
        FidelityTrial,
        policy(micro_batch=2),
        ended_at=6.0,
        fidelity=FidelityRecord(losses=LOSSES, distinct_batches=4),
    )
    error = GradientError(error=0.03, cosine=0.999, norm_ratio=1.0)
    compared = stored_trial(
        FidelityTrial,
        bf16,
        ended_at=8.0,
        reference_gradient=f"/elsewhere/trials/{exact[1].key}/gradient.pt",
        fidelity=FidelityRecord(losses=tuple(one + 0.01 for one in LOSSES), distinct_batches=4, gradient=error),
    )
    traced = stored_trial(PredictTrial, plain, ended_at=10.0, counts_work=True, work=work, timeline=TIMELINE)
    found = recommendation()
    earlier = msgspec.structs.replace(found.ranking[0], notes=("an earlier line",))
    tried = [earlier, *found.ranking, *found.not_measured]
    key = timed[1].key
    tried = [msgspec.structs.replace(one, trial_key=key) if one == CANDIDATES[0] else one for one in tried]
    facts = msgspec.structs.replace(FACTS, device_rates=rates())
    trials = [traced, compared, exact, timed, profiled]
    return write_study(path, found, goal(), tried=tried, trials=trials, **{"facts": facts, **changes})


def guarded() -> FidelityMeasurement:
    """A comparison beyond what its class allows."""
    return FidelityMeasurement(
        steps=30, loss_drift=0.04, final_loss=2.6, exact_final_loss=2.5, learned=1.5, reference="plain", micro_batch=2
    )


def many(count: int) -> Recommendation:
    """An answer from so many timed policies."""
    from advisor.decide.choose import choose
    from tests.decide.examples import baseline

    rows = [
        measured(60 + number / 7, BF16, micro_batch=4 + number, fidelity=Fidelity.PRECISION, drift=0.00123456789)
        for number in range(count - 1)
    ]
    return choose([baseline(61.3), *rows], goal(), refused_settings={}, untried=9, stopped_because="it was told to")


def _point(micro_batch: int, seconds: float) -> SizePoint:
    return SizePoint(micro_batch=micro_batch, memory=memory(GIB + micro_batch * GIB // 8), step_seconds=seconds)
