"""Somebody ends a worker that everything rests on: the same command tries that again, and nothing else."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import TrialResult
from advisor.trial.spec import ConfirmTrial, LookTrial, TimeTrial, Trial, TrialSpec
from tests.session.command import run_here
from tests.trial.specs import my_children

WORKLOADS = Path(__file__).parent / "workloads"
QUICK = ("--search-space", "smoke", "--trials", "1", "--time-limit", "60s", "--device", "cpu", "--json")
FASTER = (WORKLOADS / "tiny.py", "--memory-limit", "10MiB", *QUICK)
BIGGER = (
    WORKLOADS / "growing.py", "--goal", "bigger", "--min-throughput", "0.001x", "--memory-limit", "24MiB", *QUICK
)  # fmt: skip

pytestmark = pytest.mark.slow


class Killer:
    """Ends every process of the first trial of a kind that is waited for; counts those that run."""

    def __init__(self, kind: type[Trial[Any]], monkeypatch: pytest.MonkeyPatch, *, with_methods: bool = False) -> None:
        self.waiting_for: type[Trial[Any]] | None = kind
        self.key = ""
        self.ran: list[type[Trial[Any]]] = []
        wait = Runner._wait

        def waited(runner: Runner, spec: TrialSpec, *more: Any) -> tuple[TrialResult, bool]:
            self.ran.append(type(spec))
            if type(spec) is self.waiting_for and (spec.policy.methods or not with_methods):
                self.waiting_for = None
                self.key = spec.key
                for process in my_children():
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            return wait(runner, spec, *more)

        monkeypatch.setattr(Runner, "_wait", waited)


def answer(text: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(text)
    return document


def test_a_confirmation_that_was_killed_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = Killer(ConfirmTrial, monkeypatch)
    killed = run_here(*FASTER, "--output", tmp_path / "out", cwd=tmp_path)
    assert killed.returncode == 0, killed.stderr
    assert answer(killed.stdout)["recommendation"]["confirmation"]["outcome"] == "lost"
    killer.ran.clear()
    again = run_here(*FASTER, "--output", tmp_path / "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert answer(again.stdout)["recommendation"]["confirmation"]["outcome"] == "ok"
    assert ConfirmTrial in killer.ran
    killer.ran.clear()
    assert run_here(*FASTER, "--output", tmp_path / "out", cwd=tmp_path).returncode == 0
    assert ConfirmTrial not in killer.ran, "now it is answered"


@pytest.mark.parametrize("command", [FASTER, BIGGER], ids=["baseline", "floor"])
def test_a_baseline_that_was_killed_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[Any, ...]
) -> None:
    killer = Killer(TimeTrial, monkeypatch)
    run_here(*command, "--output", tmp_path / "out", cwd=tmp_path)
    assert killer.waiting_for is None
    again = run_here(*command, "--output", tmp_path / "out", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    baseline = answer(again.stdout)["recommendation"]["baseline"]
    assert baseline["outcome"] == "ok"


def test_a_combination_that_was_killed_is_tried_again_though_the_trials_are_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = Killer(TimeTrial, monkeypatch, with_methods=True)
    command = (*FASTER, "--trials", "4", "--output", tmp_path / "out")
    assert run_here(*command, cwd=tmp_path).returncode == 0
    folder = StudyFolder(tmp_path / "out").trial(killer.key)
    asked = folder.read_spec()
    assert asked is not None
    lost, again = folder.read_result(asked), run_here(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert lost is not None
    assert lost.outcome is Outcome.LOST
    found = folder.read_result(asked)
    assert found is not None
    compared = [one for one in answer(again.stdout)["recommendation"]["not_measured"] if one["outcome"] == "compared"]
    assert found.outcome is Outcome.OK or compared, "by its short steps it may not lead any more"
    killer.ran.clear()
    assert run_here(*command, cwd=tmp_path).returncode == 0
    assert set(killer.ran) <= {LookTrial}, "now all of it is answered"
