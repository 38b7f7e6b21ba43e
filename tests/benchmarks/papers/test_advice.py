"""Advice beside advice: everybody's answer is measured by one harness, and whoever has none says why."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from advisor.errors import TrialError
from advisor.methods.use import MethodUse, use
from advisor.policy.policy import Policy
from advisor.problem.detect import detect_hardware
from advisor.problem.goal import GoalKind
from advisor.problem.missing_sizes import check_sizes
from advisor.problem.sizes import CountedSize, SizeCounts
from advisor.problem.source import resolve_source
from advisor.search.memory_model import MemoryModel
from advisor.session.request import TuneRequest
from advisor.trial.outcome import Outcome
from advisor.trial.runner import Runner
from advisor.trial.spec import TrialResult
from benchmarks.papers import advice, contenders
from benchmarks.papers.command import Options, TimeIsUpError
from benchmarks.papers.contest import Arena, Contest, Found
from benchmarks.papers.figures import read
from benchmarks.papers.runs import WORKLOADS
from benchmarks.search.rows import Header, Line, append
from benchmarks.search.table import Table
from tests.benchmarks.search.tables import complete
from tests.decide.examples import measurement

TINY = WORKLOADS / "tiny_transformer.py"
CHECKPOINT = use("checkpoint", every=1)


@pytest.fixture(autouse=True)
def nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the process of the command, which never loads torch; other tests may have loaded it into this one."""
    monkeypatch.setattr("advisor.problem.detect._held_here", lambda: 0)


def arena(folder: Path, goal: GoalKind = GoalKind.FASTER, limit_bytes: int = 2**23, kind: type[Arena] = Arena) -> Arena:
    options = Options(size="smoke", hardware=detect_hardware("cpu"), output=folder / "papers.jsonl")
    contest = Contest(model="tiny", workload=TINY, goal=goal, limit_bytes=limit_bytes)
    return kind(Runner(folder), options, contest, seconds=0.1, time_limit_seconds=60.0)


@pytest.mark.slow
def test_the_small_size_has_an_answer_or_a_reason_for_each_and_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """momadvise itself is asked for one goal: its own tests have the others."""
    asked = contenders.momadvise

    def ask_once(arena: Arena, **options: object) -> Found:
        if arena.contest.goal is GoalKind.FASTER:
            return asked(arena, **options)  # type: ignore[arg-type]
        size: dict[str, int | float] = {"layers": 8} if arena.contest.goal is GoalKind.BIGGER else {}
        return Found(policy=Policy(methods=(CHECKPOINT,), micro_batch=4), model_size=size, trials=7, seconds=3.0)

    monkeypatch.setattr(contenders, "momadvise", ask_once)
    output = tmp_path / "papers.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    advice.main(arguments)
    figures = {(one.table, one.row.rpartition(", ")[2], one.column): one for one in read(output)}
    rates = {place[:2]: one for place, one in figures.items() if place[2] == "samples/s"}
    assert set(rates) == {(goal.value, who) for goal in GoalKind for who in advice._CONTENDERS}
    without = {place: one.reason for place, one in rates.items() if one.ours is None}
    assert {who for _, who in without} <= {"grid", "accelerate"}
    assert without["faster", "grid"].startswith("no table was recorded")
    assert without["bigger", "accelerate"] == "it looks for a batch, not for a size of the model"
    assert all(one.ours is not None for place, one in figures.items() if place[:2] not in without)

    assert figures["faster", "untouched", "throughput / untouched"].ours == 1
    assert figures["cheapest", "untouched", "cost / untouched"].ours == 1
    assert figures["bigger", "untouched", "size / untouched"].ours == 1
    assert rates["faster", "untouched"].reason == "plain, batch 4"
    assert rates["bigger", "momadvise"].reason == "checkpoint(every=1), batch 4, layers 8"
    assert 1.5 < figures["bigger", "momadvise", "size / untouched"].ours < 2  # type: ignore[operator]
    assert rates["cheapest", "hand-tuned"].reason.startswith("fused_optimizer + precision(dtype=bf16), batch 4;")
    if importlib.util.find_spec("accelerate") is not None:
        assert 1 < figures["faster", "accelerate", "trials"].ours < 20, "40 samples do not fit"  # type: ignore[operator]
        assert rates["cheapest", "accelerate"].reason == "plain, batch 4"
    assert "## cheapest" in capsys.readouterr().out

    monkeypatch.setattr(Arena, "time", lambda *_: pytest.fail("it is there already"))
    monkeypatch.setattr(contenders, "momadvise", lambda *_, **__: pytest.fail("it is there already"))
    advice.main(arguments)
    assert len(read(output)) == len(figures)


def test_a_call_asks_one_at_least_and_no_other_without_the_time_for_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "papers.jsonl"
    minutes = advice._ANSWER_SECONDS / 60
    advice.main(["--size", "smoke", "--device", "cpu", "--output", str(output), "--minutes", f"{minutes:g}"])
    assert {one.row for one in read(output)} == {"tiny transformer, untouched"}
    assert "minutes are over; the same command goes on with what is missing." in capsys.readouterr().out


def test_momadvise_is_asked_only_if_it_has_all_of_its_time(tmp_path: Path) -> None:
    one = arena(tmp_path)
    one.options = msgspec.structs.replace(one.options, minutes=1.0)
    with pytest.raises(TimeIsUpError):
        contenders.momadvise(one, space="smoke", trials=2, time_limit_seconds=60.0)


def recorded(folder: Path, **changes: object) -> Table:
    """A made-up table of the tiny transformer on this machine."""
    here = {"fingerprint": resolve_source(TINY).fingerprint, "device": detect_hardware("cpu").name, **changes}
    lines: list[Line] = [
        msgspec.structs.replace(line, **here) if isinstance(line, Header) else line for line in complete()
    ]
    for line in lines:
        append(folder / "tiny-cpu.jsonl", line)
    return Table(lines)


def test_the_grid_is_the_best_of_a_table_of_this_model_on_this_device(tmp_path: Path) -> None:
    table = recorded(tmp_path)
    found = contenders.grid(arena(tmp_path, limit_bytes=table.limit_bytes), tmp_path)
    label, batch, _ = table.best
    assert found.policy is not None
    assert (found.policy.label, found.policy.micro_batch) == (label, batch)
    assert found.trials == table.policies
    assert found.reason == "recorded on 2026-01-01"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "another device"}, "no table was recorded"),
        ({"fingerprint": "another source"}, "no table was recorded"),
        ({"limit_bytes": 2**22}, "its table was recorded below 4 MiB"),
    ],
)
def test_a_table_of_something_else_is_no_answer(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    recorded(tmp_path, **changes)
    found = contenders.grid(arena(tmp_path), tmp_path)
    assert found.policy is None
    assert found.reason.startswith(reason)


class Ladder(Arena):
    """Sizes of 1, 2, 4, ... layers, a step of which takes as long as it has layers; from 16 on nothing fits."""

    def count(self) -> TrialResult:
        sizes = [CountedSize(size={"layers": 2**power}, parameter_count=100 * 2**power) for power in range(7)]
        return TrialResult(key="", outcome=Outcome.OK, counts=SizeCounts(own=sizes[0], listed=tuple(sizes)))

    def time(self, policy: Policy, size: Mapping[str, int | float] | None = None) -> TrialResult:
        layers = (size or {"layers": 1})["layers"]
        return TrialResult(
            key="", outcome=Outcome.OK, measurement=measurement((3.0 if policy.methods else 1.0) / layers)
        )

    def largest(
        self, uses: Sequence[MethodUse], size: Mapping[str, int | float] | None = None
    ) -> tuple[Policy | None, MemoryModel | None, int, str]:
        assert size is not None
        if size["layers"] >= 16:
            return None, None, 1, "not even one sample fits"
        return Policy(methods=tuple(uses), micro_batch=2), None, 2, ""


def test_who_tunes_by_hand_climbs_to_the_largest_size_that_keeps_the_floor(tmp_path: Path) -> None:
    found = contenders.hand_tuned(arena(tmp_path, GoalKind.BIGGER, kind=Ladder), compiled=True)
    assert found.model_size == {"layers": 4}, "three times as fast as plain training with one layer, floor a half"
    assert found.policy is not None
    assert found.policy.label == "fused_optimizer + precision(dtype=bf16)", "never compiled anew at every size"
    assert found.trials > 2


def test_without_accelerate_its_row_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert contenders.accelerate(arena(tmp_path), 128).reason == "accelerate is not installed"


@pytest.mark.parametrize("goal", GoalKind)
def test_momadvise_is_asked_what_it_can_be_asked(
    tmp_path: Path, goal: GoalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[TuneRequest] = []

    def session(request: TuneRequest, progress: object) -> None:
        request.check()
        requests.append(request)
        raise TrialError("nothing could be measured")

    monkeypatch.setattr("advisor.session.tune.run_session", session)
    begin = time.monotonic()
    found = contenders.momadvise(arena(tmp_path, goal), space="smoke", trials=2, time_limit_seconds=5.0)
    (request,) = requests
    assert (request.goal, request.trials, request.time_limit_seconds) == (goal, 2, 5.0)
    assert request.memory_limit_bytes == 2**23
    assert request.global_batch == (4 if goal is GoalKind.CHEAPEST else None), "BATCH_SIZE of the file"
    assert found.policy is None
    assert found.reason == "TrialError: nothing could be measured"
    assert 0 <= found.seconds <= time.monotonic() - begin


@pytest.mark.parametrize("size", advice._SIZES)
def test_every_model_can_be_asked_about_for_every_goal(size: str) -> None:
    for model, path in advice._SIZES[size].models.items():
        check_sizes(resolve_source(path))
        assert Contest(model=model, workload=path, goal=GoalKind.CHEAPEST).global_batch
