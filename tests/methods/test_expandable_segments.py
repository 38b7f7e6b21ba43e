"""The setting of the CUDA allocator, with torch's functions replaced: what is set, in which order, and what returns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.process.expandable_segments import ExpandableSegments
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.methods.tiny import cpu, gpu, training_of

SEGMENTS = use("expandable_segments")
ON = "expandable_segments:True"
OFF = "expandable_segments:False"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to an allocator without settings."""
    done: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("empty the cache"))
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "", raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", done.append, raising=False)
    return done


def on_cuda() -> Training:
    training = training_of("convnet")
    training.device = torch.device("cuda")  # nothing is moved there
    return training


def test_unused_memory_is_given_back_before_and_the_setting_is_undone_after(calls: list[str]) -> None:
    training = on_cuda()
    ExpandableSegments().apply(training)
    assert calls == ["empty the cache", ON]
    training.close()
    assert calls == ["empty the cache", ON, OFF]
    assert training.notes == []


@pytest.mark.parametrize("told", [True, False], ids=["torch tells", "torch does not tell"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first closes first", "second closes first"])
def test_it_stays_on_until_the_last_of_several_trainings_closes(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, order: tuple[int, int], told: bool
) -> None:
    """Trap: closing one of two trainings turned it off for both."""
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: calls[-1] if told and calls else "")
    trainings = [on_cuda(), on_cuda()]
    for training in trainings:
        ExpandableSegments().apply(training)
    assert calls.count("empty the cache") == 1
    trainings[order[0]].close()
    assert calls[-1] == ON
    trainings[order[1]].close()
    assert calls[-1] == OFF
    assert [training.notes for training in trainings] == [[], []]


def test_other_settings_are_kept(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = f"max_split_size_mb:64,{OFF},garbage_collection_threshold:0.8"
    monkeypatch.setattr(torch._C, "_accelerator_getAllocatorSettings", lambda: settings, raising=False)
    training = on_cuda()
    ExpandableSegments().apply(training)
    training.close()
    others = "max_split_size_mb:64,garbage_collection_threshold:0.8"
    assert calls[1:] == [f"{others},{ON}", f"{others},{OFF}"]


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_where_it_is_set_already_nothing_changes_and_a_note_says_so(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings", raising=False)  # a torch that cannot tell
    monkeypatch.setenv(variable, f"max_split_size_mb:64,{ON}")
    training = on_cuda()
    ExpandableSegments().apply(training)
    training.close()
    assert calls == []
    assert ["changed nothing" in note for note in training.notes] == [True]


def test_the_older_name_of_torchs_function_serves_as_well(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    older: list[str] = []
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
    monkeypatch.setattr(torch._C, "_cuda_cudaCachingAllocator_set_allocator_settings", older.append, raising=False)
    ExpandableSegments().apply(on_cuda())
    assert older == [ON]


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda patch: patch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync"), "native"),
        (
            lambda patch: [
                patch.delattr(torch._C, name, raising=False)
                for name in (
                    "_accelerator_setAllocatorSettings",
                    "_cuda_cudaCachingAllocator_set_allocator_settings",
                )
            ],
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ),
    ],
    ids=["another allocator", "no function"],
)
def test_it_is_refused_where_it_cannot_be_set(
    change: Callable[[pytest.MonkeyPatch], object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    with pytest.raises(MethodRefusedError, match=reason):
        ExpandableSegments().apply(on_cuda())


def test_it_is_for_gpus_only() -> None:
    assert "CUDA allocator" in judge([SEGMENTS], facts=None, hardware=cpu()).reason
    assert judge([SEGMENTS], facts=None, hardware=gpu((8, 0))).applicable
    with pytest.raises(MethodRefusedError, match="CUDA allocator"):
        apply_settings(training_of("convnet"), [SEGMENTS])
