from __future__ import annotations

import io
import time

import pytest
from rich.console import Console

from advisor.decide.candidate import Role
from advisor.decide.eligible import best_so_far
from advisor.methods.setting import use
from advisor.report.live import LiveProgress, PlainProgress, open_progress
from advisor.report.progress import Progress
from tests.decide.costs import cheapest, timed
from tests.decide.examples import baseline, goal, measured
from tests.decide.test_largest import sized

from .scenario import BF16, CANDIDATES


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def search(progress: Progress, clock: Clock) -> None:
    """What a session would report."""
    progress.begin(workload="gpt2", device="NVIDIA H100", goal="faster", time_limit_seconds=300, trials=40)
    progress.stage("probing the model")
    clock.now += 8
    progress.note("this process already holds [1.2 GiB]")
    for number, candidate in enumerate(CANDIDATES, 1):
        progress.trial_started(number, candidate.policy, "timing")
        clock.now += 9
        best = best_so_far(CANDIDATES[:number], goal())
        progress.trial_ended(number, candidate, best=best, baseline=CANDIDATES[0])
    progress.trial_started(10, CANDIDATES[2].policy, "finding the largest batch")
    clock.now += 3


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=30, color_system=None)


def frame(progress: LiveProgress, width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(progress._render())
    return stream.getvalue().splitlines()


def test_the_frame_shows_the_trial_the_best_the_time_left_and_recent_outcomes(terminal: Console) -> None:
    clock = Clock()
    with LiveProgress(terminal, clock=clock) as progress:
        search(progress, clock)
        lines = frame(progress)
    assert lines[0] == "gpt2 on NVIDIA H100, goal faster".ljust(len(lines[0]))
    assert "3m28s left, 9 of at most 40 trials" in lines[1]
    assert "trial 10, finding the largest batch (3s): chunked_cross_entropy" in lines[2]
    assert lines[3].startswith("best 132 samples/s (+115% vs baseline at 61.3)  chunked_cross_entropy")
    recent = "\n".join(lines[4:])
    assert [line.split()[0] for line in lines[4:]] == ["9", "8", "7", "6", "5"]
    assert "out of memory" in recent
    assert "~80.0 samples/s" in recent


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_frame_has_one_line_per_thing_at_every_width(terminal: Console, width: int) -> None:
    """A frame whose height changes would jump."""
    clock = Clock()
    with LiveProgress(terminal, clock=clock) as progress:
        search(progress, clock)
        lines = frame(progress, width)
    assert len(lines) == 4 + 5
    assert max(len(line) for line in lines) <= width


def test_before_anything_was_measured_the_frame_says_so(terminal: Console) -> None:
    clock = Clock()
    progress = LiveProgress(terminal, clock=clock)
    progress.begin(workload="gpt2", device="cpu", goal="faster", time_limit_seconds=60, trials=4)
    assert "no measurement yet" in "\n".join(frame(progress))
    clock.now += 1000
    assert "0s left" in "\n".join(frame(progress))


def test_the_cursor_comes_back_when_the_search_ends_by_an_exception(terminal: Console) -> None:
    def interrupted() -> None:
        with LiveProgress(terminal) as progress:
            progress.stage("probing the model")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = terminal.file.getvalue()  # type: ignore[attr-defined]
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_the_display_draws_itself_while_the_session_waits(terminal: Console) -> None:
    with LiveProgress(terminal) as progress:
        progress.stage("waiting for the worker")
        deadline = time.monotonic() + 5
        while "waiting for the worker (1s)" not in terminal.file.getvalue():  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_notes_stay_above_the_display(terminal: Console) -> None:
    with LiveProgress(terminal) as progress:
        progress.note("this process already holds [1.2 GiB]")
    assert "note: this process already holds [1.2 GiB]" in terminal.file.getvalue()  # type: ignore[attr-defined]


def test_plain_lines_tell_the_same_one_line_per_event() -> None:
    clock, stream = Clock(), io.StringIO()
    with PlainProgress(Console(file=stream, width=80), clock=clock) as progress:
        search(progress, clock)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[    0s] gpt2 on NVIDIA H100, goal faster: at most 40 trials in 5m00s"
    assert lines[2] == "[    8s] note: this process already holds [1.2 GiB]"
    assert lines[3] == "[   17s] trial 1: plain, batch 8 [baseline]: 61.3 samples/s, 4.00 GiB, best so far"
    assert "[hand-tuned]: 112 samples/s, 4.00 GiB, best so far (+83% vs baseline at 61.3)" in lines[4]
    assert "best so far" not in lines[7]  # faster, and may not win
    assert lines[-1].endswith("failed (RuntimeError: expected [Half] but found Float)")
    assert len(lines) == 3 + len(CANDIDATES)
    assert "\x1b" not in stream.getvalue()


def test_for_the_least_cost_the_gain_over_the_baseline_is_one_of_cost() -> None:
    stream = io.StringIO()
    candidates = [timed(2.0, role=Role.BASELINE), timed(1.2, BF16, gpu_count=2), timed(1.5, BF16)]
    with PlainProgress(Console(file=stream, width=80), clock=Clock()) as progress:
        progress.begin(workload="gpt2", device="a GPU", goal="cheapest", time_limit_seconds=300, trials=40)
        for number, candidate in enumerate(candidates, 1):
            best = best_so_far(candidates[:number], cheapest())
            progress.trial_ended(number, candidate, best=best, baseline=candidates[0])
    lines = stream.getvalue().splitlines()
    assert lines[2].endswith("precision bf16 on 2 devices, batch 16: 26.7 samples/s, 4.00 GiB")
    assert lines[3].endswith("best so far (cost -25% vs baseline)")


def test_the_trial_under_way_has_its_devices(terminal: Console) -> None:
    progress = LiveProgress(terminal, clock=Clock())
    progress.trial_started(1, timed(1.2, BF16, gpu_count=2).policy, "timing")
    assert "trial 1, timing (0s): precision bf16 on 2 devices, batch 16" in "\n".join(frame(progress))


def test_a_larger_model_is_not_said_to_be_slower_than_the_baseline(terminal: Console) -> None:
    progress = LiveProgress(terminal, clock=Clock())
    progress.begin(workload="gpt2", device="a GPU", goal="bigger", time_limit_seconds=300, trials=40)
    larger = sized(measured(60.0), 3)
    progress.trial_ended(2, larger, best=larger, baseline=sized(baseline(100), 2))
    assert "vs baseline" not in "\n".join(frame(progress))


def test_a_terminal_gets_the_live_display_and_a_pipe_plain_lines(terminal: Console) -> None:
    assert isinstance(open_progress(terminal), LiveProgress)
    assert isinstance(open_progress(Console(file=io.StringIO())), PlainProgress)


def test_silence_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        search(progress, Clock())
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_for_the_largest_model_a_line_has_its_size_and_its_parameters() -> None:
    stream = io.StringIO()
    progress = PlainProgress(Console(file=stream, width=80))
    candidate = sized(measured(60.0, use("checkpoint", every=1)), 3)
    progress.trial_ended(2, candidate, best=candidate, baseline=None)
    assert "checkpoint every=1 at layers=3, batch 8: 60.0 samples/s, 4.00 GiB, largest so far (30 M parameters)" in (
        stream.getvalue()
    )
