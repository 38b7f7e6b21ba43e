"""What decides whether a stored result answers a trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from advisor.policy.policy import Policy
from advisor.predict.prediction import CudaDevice
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import TrialResult
from advisor.trial.spec import Trial, TrialSpec
from advisor.trial.worker.run_trial import WORK
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import spec

KINDS = get_args(TrialSpec)

INCIDENTAL = {
    "expected_gains",
    "ladder_seconds",
    "layout",
    "largest_batch",
    "limit_of_timed_bytes",
    "measure_seconds",
    "needs_all_memory",
    "outpaced_below_samples_per_second",
    "outpaced_below_speedup",
    "reference_gradient",
    "sample_seconds_beside",
    "thread_rates",
    "time_limit_seconds",
    "turn_seconds",
    "watched_state",
    "wrapper_text",
    "write_gradient_to",
}
"""However a trial is asked, a stored result answers for every value of these."""

OTHERS: dict[str, Any] = {
    "beside": Policy(micro_batch=3),
    "ladder": (Policy(micro_batch=9),),
    "layout": BatchLayout(dims={"": 0}, counted_by="", is_usual=True),
    "model_size": {"width": 64},
    "policy": Policy(micro_batch=5),
    "smaller": Policy(micro_batch=2),
    "stands_for": CudaDevice(compute_capability=(9, 0), multiprocessors=132),
    "workload": WorkloadSource(kind=WorkloadKind.FILE, location="other.py", name="other", fingerprint="other"),
}


def other_value(name: str, value: Any) -> Any:
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return (value or ()) + ("more",) if isinstance(value, tuple) or name == "watched_state" else f"{value} more"


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in kind.__struct_fields__ if not name.endswith("_bytes")]
)
def test_a_field_is_part_of_the_question_unless_it_is_incidental(kind: type[Trial[Any]], name: str) -> None:
    asked = spec(kind=kind)
    value = getattr(asked, name)
    optional_number = value is None and name in ("compare_at", "largest_batch", *INCIDENTAL) and "below" in name
    changed = 7 if name in ("compare_at", "largest_batch") or optional_number else other_value(name, value)
    other = msgspec.structs.replace(asked, **{name: changed})
    incidental = name in INCIDENTAL or (name == "wrapper_path" and asked.kind == "confirm")
    assert (other.key == asked.key) == incidental


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_limit_counts_where_a_training_is_timed_below_it(kind: type[Trial[Any]]) -> None:
    asked = spec(kind=kind)
    other = msgspec.structs.replace(asked, memory_limit_bytes=2**20)
    assert (other.key != asked.key) == (asked.kind in ("time", "confirm"))


def test_a_workload_is_what_it_says_wherever_it_lies() -> None:
    moved = msgspec.structs.replace(spec().workload, location="/elsewhere/tiny.py")
    assert spec(workload=moved).key == spec().key


def test_kinds_never_share_a_key() -> None:
    assert len({spec(kind=kind).key for kind in KINDS}) == len(KINDS)


def test_every_kind_has_a_result_and_somebody_who_runs_it() -> None:
    assert set(WORK) == set(KINDS)
    assert {spec(kind=kind).result_type for kind in KINDS} == set(get_args(TrialResult))


@pytest.mark.parametrize("kind", KINDS)
def test_a_spec_and_its_result_come_back_as_they_were(kind: type[Trial[Any]], tmp_path: Path) -> None:
    asked = spec(kind=kind)
    assert msgspec.json.decode(msgspec.json.encode(asked), type=TrialSpec) == asked
    folder = StudyFolder(tmp_path).trial(asked.key)
    folder.path.mkdir(parents=True)
    result = asked.ended(Outcome.OUT_OF_MEMORY, "too large")
    folder.write_result(result)
    assert folder.read_result(asked) == result


@pytest.mark.parametrize(
    "text",
    [
        '{"key": "time-1", "outcome": "ok", "measurement": null, "facts": null, "warm": false}',
        '{"kind": "size", "key": "time-1", "outcome": "ok"}',
    ],
    ids=["written before results had kinds", "of another kind"],
)
def test_a_result_of_no_kind_or_another_has_not_finished(text: str, tmp_path: Path) -> None:
    trial = StudyFolder(tmp_path).trial("time-1")
    trial.path.mkdir(parents=True)
    trial.result.write_text(text)
    assert trial.finished(spec()) is None
