"""Trials on several ranks: real processes that train together, on gloo."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialKind, TrialSpec
from tests.trial.specs import is_running, my_children, read_number, spec, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One runner, so that trials that end well share warm ranks."""
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where every rank notes its process number, if it was started in this test."""
    monkeypatch.setenv("PROCESS_FOLDER", str(tmp_path))
    return tmp_path


def ranks(count: int, **changes: Any) -> TrialSpec:
    policy = Policy(micro_batch=4, gpu_count=count)
    return msgspec.structs.replace(spec("misbehaving", **changes), policy=policy)


def test_four_ranks_are_timed_together(runner: Runner) -> None:
    result = runner.run(ranks(4))
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(ranks(4).key))
    assert result.measurement is not None
    assert result.measurement.samples_per_second == pytest.approx(16 / result.measurement.step_seconds)
