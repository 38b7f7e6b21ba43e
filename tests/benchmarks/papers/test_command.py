"""A command ends when its minutes are over, keeps its results and says how to continue."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from advisor.trial.folder import StudyFolder
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial, TimeTrial
from benchmarks.papers.child import ask
from benchmarks.papers.command import Options, TimeIsUpError, options_of, report
from benchmarks.papers.figures import Figure, read
from benchmarks.papers.loop_messages import Lost
from benchmarks.papers.runs import WORKLOADS, completed, figure, settled
from benchmarks.papers.specs import policy_of, spec_of


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return options_of("test", "A test.", ["--device", "cpu", "--output", str(tmp_path / "papers.jsonl")])


def test_no_run_starts_after_the_minutes_and_results_are_kept(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    over = msgspec.structs.replace(options, minutes=1.0, begin=options.begin - 61)

    def figures() -> Iterator[list[Figure]]:
        yield [figure(over, "one", "Table", "row", "column", 1.0)]
        over.check_time()
        raise AssertionError("time is up")

    report("one", over, figures())
    assert [one.ours for one in read(over.output)] == [1.0]
    printed = capsys.readouterr().out
    assert "1 minutes are over; the same command continues with the missing ones." in printed
    assert "## Table" in printed
    over.from_now().check_time()  # each paper has its own


def test_if_no_run_finished_the_advice_is_a_larger_time_limit(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    over = msgspec.structs.replace(options, minutes=0.5, begin=options.begin - 61)

    def figures() -> Iterator[list[Figure]]:
        over.check_time()
        raise AssertionError("time is up")
        yield

    report("one", over, figures())
    assert "0.5 minutes are over; no run finished: set a larger --minutes." in capsys.readouterr().out


def test_a_call_ends_within_its_minutes_with_time_reserved_for_cleanup(options: Options) -> None:
    paper = msgspec.structs.replace(options, minutes=8.0)
    assert paper.begin + 450 < paper.end < paper.begin + 480
    short = msgspec.structs.replace(options, minutes=0.1)
    assert short.begin + 5 < short.end < short.begin + 6
    assert options.end == math.inf


def test_a_run_that_must_not_be_cut_short_only_starts_if_its_time_is_left(options: Options) -> None:
    paper = msgspec.structs.replace(options, minutes=8.0)
    paper.check_time(needed_seconds=400.0)
    with pytest.raises(TimeIsUpError):
        paper.check_time(needed_seconds=480.0)


@pytest.mark.slow
def test_a_trial_cut_short_by_the_end_of_the_call_is_not_a_result(options: Options, tmp_path: Path) -> None:
    tiny = WORKLOADS / "tiny_transformer.py"
    endless = spec_of(FidelityTrial, options, tiny, policy_of((), 2), seconds=600.0, steps=10**9)
    with Runner(tmp_path) as runner:
        completed(runner, options, spec_of(TimeTrial, options, tiny, policy_of((), 2), seconds=0.05))
        soon = msgspec.structs.replace(options, minutes=0.03, begin=time.monotonic())
        with pytest.raises(TimeIsUpError):
            completed(runner, soon, endless)
    assert StudyFolder(tmp_path).trial(endless.key).log.exists(), "it started"
    assert endless.time_limit_seconds == 120.0, "its own limit decides what a trial makes of its time"
    assert StudyFolder(tmp_path).trial(endless.key).read_result(endless) is None


def test_a_program_cut_short_by_the_end_of_the_call_is_not_an_answer() -> None:
    with pytest.raises(TimeIsUpError):
        ask("timeit", Lost(reason=""), Lost, time_limit_seconds=20.0, until=time.monotonic() + 0.01)


def test_only_the_paper_size_has_a_time_limit_by_default() -> None:
    assert options_of("test", "A test.", ["--device", "cpu"]).minutes is None
    assert options_of("test", "A test.", ["--device", "cpu", "--size", "paper"]).minutes == 8.0
    assert options_of("test", "A test.", ["--device", "cpu", "--minutes", "2"]).minutes == 2.0
    patient = ["--device", "cpu", "--size", "paper", "--patience", "20"]
    assert options_of("test", "A test.", patient).minutes == 160.0


def test_a_missing_device_is_an_error_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options_of("test", "A test.", ["--device", "cuda:77"])
    assert ended.value.code == 2
    assert "cuda:77" in capsys.readouterr().err


def test_outcomes_that_may_change_are_retried(options: Options) -> None:
    reasons = {
        "refused: no": True,
        "out of memory: too large": True,
        "timeout: 120 s": False,
        "host out of memory": False,
    }
    for reason, once in reasons.items():
        assert settled(figure(options, "one", "Table", "row", "column", None, reason=reason)) == once
    assert settled(figure(options, "one", "Table", "row", "column", 1.0))


def test_patience_lets_a_slow_device_take_longer_for_one_run(options: Options) -> None:
    patient = options_of("test", "A test.", ["--device", "cpu", "--patience", "20"])
    limits = [
        spec_of(TimeTrial, one, WORKLOADS / "tiny_transformer.py", policy_of((), 2), time_limit_seconds=7.0)
        for one in (options, patient)
    ]
    assert [one.time_limit_seconds for one in limits] == [7.0, 140.0]
    assert limits[0].measure_seconds == limits[1].measure_seconds, "what is measured is the same"


@pytest.mark.parametrize("number", ["0", "-1", "inf", "nan", "much"])
def test_patience_must_be_a_positive_number(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options_of("test", "A test.", ["--device", "cpu", "--patience", number])
    assert ended.value.code == 2
    assert f"'{number}'" in capsys.readouterr().err
