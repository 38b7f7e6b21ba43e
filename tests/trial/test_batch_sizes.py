"""Workloads that do not take any number of samples: what a probe finds, and which batches trials then make."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.spec import PredictTrial, ProbeTrial, SizeTrial, Trial
from advisor.trial.worker.run_trial import run_trial
from advisor.workload.workload import WorkloadKind, WorkloadSource

from .specs import trial_of

_MODEL = """
import torch

BATCH_SIZE = 24

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))

def make_batch(batch_size):
    return torch.randn(batch_size, 16)

def compute_loss(model, batch):
    features = model(batch)
"""

_MEAN = "    return features.square().mean()\n"

_NEIGHBORS = _MODEL + "    return torch.cdist(features, features).topk(6, largest=False).values.mean()\n"
_GROUPS = _MODEL + "    return features.view(-1, 6, 8).var(1).mean()\n"
_VIEWS = _MODEL.replace("batch_size, 16)", "batch_size // 12, 12, 16).view(batch_size, 16)") + _MEAN
_DEAD = _MODEL + "    return (features / (len(features) > 2)).square().mean()\n"
_MISTAKE = _MODEL + "    return features.missing()\n"


def run(folder: Path, text: str, kind: type[Trial[Any]], micro_batch: int = 2, **changes: Any) -> Any:
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / f"workload_{digest}.py"
    path.write_text(text)
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="sizes", fingerprint=digest)
    fields: dict[str, Any] = {"workload": source, "policy": Policy(micro_batch=micro_batch), "device": "cpu"}
    fields |= {"memory_limit_bytes": 2**30, "measure_seconds": 30.0, "time_limit_seconds": 120.0}
    result, _ = run_trial(trial_of(kind, fields, **changes), lambda words: None)
    return result


@pytest.mark.parametrize(
    ("text", "least", "multiple", "note"),
    [
        (_NEIGHBORS, 6, 1, "index k out of range): only batches of 6 samples or more were tried"),
        (_GROUPS, 6, 6, "): only batches of a multiple of 6 samples were tried"),
        (_VIEWS, 12, 12, "make_batch fails for other sizes: only batches of a multiple of 12 samples were tried"),
        (_DEAD, 3, 1, "the first loss must be finite, but it is inf): only batches of 3 samples or more were tried"),
    ],
    ids=["neighbors", "groups", "views", "not finite"],
)
def test_a_probe_finds_how_many_samples_a_batch_may_have(
    tmp_path: Path, text: str, least: int, multiple: int, note: str
) -> None:
    """Trap: each of them trains at the user's own batch, and at two samples ended the tuning with its error."""
    result = run(tmp_path, text, ProbeTrial)
    assert result.outcome is Outcome.OK, result
    layout = result.facts.batch_layout
    assert (layout.least_samples, layout.multiple) == (least, multiple)
    assert result.facts.first_loss is not None
    assert any(one.endswith(note) for one in result.notes), result.notes


def test_groups_of_samples_are_split_between_groups(tmp_path: Path) -> None:
    """The loss of a batch is the mean of those of its parts where each part has whole groups."""
    layout = run(tmp_path, _GROUPS, ProbeTrial).facts.batch_layout
    assert layout.changes_when_split == ""


def test_what_fails_at_any_size_is_told_as_it_first_failed(tmp_path: Path) -> None:
    result = run(tmp_path, _MISTAKE, ProbeTrial)
    assert result.outcome is Outcome.FAILED
    assert "no attribute 'missing'" in result.reason
    assert result.reason.endswith("(at batch 2)")


def test_where_any_number_will_do_none_is_ruled_out(tmp_path: Path) -> None:
    assert run(tmp_path, _MODEL + _MEAN, ProbeTrial).facts.batch_layout.takes_any


@pytest.mark.parametrize(("text", "least"), [(_GROUPS, 6), (_VIEWS, 12)], ids=["groups", "views"])
def test_profiling_runs_have_such_batches_alone(tmp_path: Path, text: str, least: int) -> None:
    layout = run(tmp_path, text, ProbeTrial).facts.batch_layout
    result = run(tmp_path, text, SizeTrial, least, layout=layout, largest_batch=100)
    assert result.outcome is Outcome.OK, result
    batches = [point.micro_batch for point in result.sizing.points]
    assert len(batches) >= 2
    assert all(layout.fitted(batch) == batch <= 100 for batch in batches)


@pytest.mark.parametrize("own", [24, 6])
def test_a_prediction_without_a_probe_traces_batches_that_can_be_traced(tmp_path: Path, own: int) -> None:
    """Half of the user's own batch may be none that works; then its double does."""
    text = _GROUPS.replace("BATCH_SIZE = 24", f"BATCH_SIZE = {own}")
    result = run(tmp_path, text, PredictTrial, 1, at_own_batch=True)
    assert result.prediction is not None, result
    assert result.prediction.own_batch == own
