"""COUNT: parameters of every size, without giving them memory."""

from pathlib import Path

import pytest

from advisor.trial.outcome import Outcome
from advisor.trial.result import CountResult
from advisor.trial.spec import CountTrial
from advisor.trial.worker.run_trial import run_trial
from advisor.workload.sizes import SizeCounts
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import spec


def count(tmp_path: Path, text: str) -> CountResult:
    path = tmp_path / "model.py"
    path.write_text("import torch\n" + text)
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="model", fingerprint="model")
    return run_trial(spec(kind=CountTrial, workload=source), lambda text: None)[0]


def counted(result: CountResult) -> SizeCounts:
    assert result.outcome is Outcome.OK, result
    assert result.counts is not None
    return result.counts


BATCH = "def make_batch(batch_size):\n    return torch.randn(batch_size, 8)\n"


def test_every_size_is_counted_and_the_own_one_is_that_of_the_defaults() -> None:
    counts = counted(run_trial(spec("sized", kind=CountTrial), lambda text: None)[0])
    assert counts.own.size == {"layers": 2, "width": 16, "length": 8}
    assert counts.own.parameter_count == 2 * (16 * 16 + 16)
    assert len(counts.listed) == 12
    for one in counts.listed:
        width = one.size["width"]
        assert one.parameter_count == one.size["layers"] * (width * width + width)


def test_a_model_larger_than_any_memory_is_counted_all_the_same(tmp_path: Path) -> None:
    result = count(
        tmp_path,
        "SIZES = {'width': [1000000]}\n"
        "def build_model(width=8):\n    return torch.nn.Linear(width, width, bias=False)\n" + BATCH,
    )
    assert [one.parameter_count for one in counted(result).listed] == [10**12]


def test_a_model_that_reads_values_while_it_is_built_is_built_for_real(tmp_path: Path) -> None:
    result = count(
        tmp_path,
        "SIZES = {'width': [8, 16]}\n"
        "def build_model(width=8):\n    return torch.nn.Linear(width, int(torch.ones(3).sum().item()))\n" + BATCH,
    )
    assert [one.parameter_count for one in counted(result).listed] == [8 * 3 + 3, 16 * 3 + 3]


def test_a_size_that_the_model_refuses_says_why_and_the_others_stay(tmp_path: Path) -> None:
    result = count(
        tmp_path,
        "SIZES = {'heads': [1, 3]}\ndef build_model(heads=1):\n    return torch.nn.MultiheadAttention(8, heads)\n"
        + BATCH,
    )
    good, bad = counted(result).listed
    assert good.parameter_count is not None
    assert bad.parameter_count is None
    assert "divisible" in bad.error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def build_model():\n    return torch.nn.Linear(8, 8)\n", "defines no SIZES"),
        ("SIZES = {'depth': [1]}\ndef build_model():\n    return torch.nn.Linear(8, 8)\n", "neither takes 'depth'"),
        (
            "SIZES = {'w': [1]}\ndef build_model(w=1):\n    raise ValueError('no')\n",
            "all failed. The first: ValueError: no",
        ),
    ],
)
def test_sizes_that_cannot_be_used_are_the_users_error(tmp_path: Path, text: str, reason: str) -> None:
    result = count(tmp_path, text + BATCH)
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason


def test_a_trial_builds_the_model_and_the_batches_at_its_size() -> None:
    own = run_trial(spec("sized"), lambda text: None)[0]
    large = run_trial(spec("sized", model_size={"layers": 4, "width": 32, "length": 16}), lambda text: None)[0]
    assert own.measurement is not None
    assert large.measurement is not None
    assert large.measurement.memory.breakdown.parameters == 4 * 4 * (32 * 32 + 32)
    assert own.measurement.memory.breakdown.parameters == 4 * 2 * (16 * 16 + 16)
    assert own.key != large.key


LINEAR = "def build_model(width=8):\n    return torch.nn.Linear(8, {width})\n"


@pytest.mark.parametrize(
    ("text", "used"),
    [
        (f'SIZES = {{"width": [4, 8, 16]}}\n{LINEAR.format(width=8)}{BATCH}', False),
        (f'SIZES = {{"width": [4, 8, 16]}}\n{LINEAR.format(width="width")}{BATCH}', True),
        (
            'SIZES = {"length": [4, 8]}\n' + LINEAR.format(width=8).replace("width=8", "")
            + "def make_batch(batch_size, length=8):\n    return torch.randn(batch_size, 2 * length, 8)\n",
            True,
        ),
        (
            'SIZES = {"length": [4, 8]}\n' + LINEAR.format(width=8).replace("width=8", "")
            + "def make_batch(batch_size, length=8):\n    return torch.randn(batch_size, 8)\n",
            False,
        ),
    ],
    ids=["ignored by the model", "used by the model", "used by the batch", "ignored by the batch"],
)  # fmt: skip
def test_a_size_that_changes_nothing_is_refused(tmp_path: Path, text: str, used: bool) -> None:
    """Trap: the largest of six sizes was recommended, and all were the same model."""
    result = count(tmp_path, text)
    assert (result.outcome is Outcome.OK) is used, result
    if not used:
        assert "SIZES must change the model or its batches" in result.reason
