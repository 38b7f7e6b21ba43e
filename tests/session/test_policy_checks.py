"""What a policy was measured with beside its model is what it is verified and predicted with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.errors import WorkloadError
from advisor.policy.file import PolicyFile
from advisor.policy.policy import Policy
from advisor.session.policy_checks import as_measured, changes_since
from advisor.workload.source import resolve_source, stating
from advisor.workload.workload import Stated
from tests.policy.test_file import FINGERPRINTS
from tests.report.scenario import CPU
from tests.workload.test_source import GOOD

GPT2 = resolve_source("hf:gpt2")
KNOWN = msgspec.structs.replace(FINGERPRINTS, asked={"tokens": 128, "batch_size": 3, "goal": "faster"})


def test_sizes_are_those_that_it_was_measured_at() -> None:
    assert as_measured(GPT2, Stated(), KNOWN) == stating(GPT2, Stated(tokens=128, batch_size=3))


def test_sizes_of_another_model_are_left_alone() -> None:
    assert as_measured(resolve_source("hf:vit"), Stated(), KNOWN).stated == Stated(batch_size=3)


def test_sizes_that_are_stated_now_come_first() -> None:
    assert as_measured(GPT2, Stated(tokens=64), KNOWN).stated == Stated(tokens=64, batch_size=3)


def test_a_file_that_says_nothing_of_them_changes_nothing() -> None:
    assert as_measured(GPT2, Stated(), None) == GPT2
    assert as_measured(GPT2, Stated(tokens=64), FINGERPRINTS).stated == Stated(tokens=64)


def test_a_model_that_makes_its_own_samples_is_asked_for_no_size_but_by_the_user(tmp_path: Path) -> None:
    (tmp_path / "gpt2.py").write_text(GOOD)
    own = resolve_source(tmp_path / "gpt2.py")
    assert as_measured(own, Stated(), KNOWN).stated == Stated(batch_size=3)
    with pytest.raises(WorkloadError, match="--tokens is for models of transformers"):
        as_measured(own, Stated(tokens=64), None)


def test_what_was_stated_then_is_no_change_of_the_model() -> None:
    """The trap: what is stated is a part of the fingerprint."""
    then = as_measured(GPT2, Stated(), KNOWN)
    known = msgspec.structs.replace(
        KNOWN, workload={"name": "gpt2", "fingerprint": then.fingerprint}, hardware={}, versions={}
    )
    file = PolicyFile(policy=Policy(micro_batch=2), fingerprints=known)
    assert changes_since(file, then, CPU) == []
    assert changes_since(file, GPT2, CPU) == ["the model's file has changed since the policy was measured"]
