"""One harness measures the answers of all contenders; one without an answer gives a reason."""

from __future__ import annotations

import importlib.util
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from advisor.errors import TrialError
from advisor.goal import GoalKind
from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import DeviceKind
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.search.sizing.memory_model import MemoryModel
from advisor.session.request import TuneRequest
from advisor.session.setup.limits import CUDA_CONTEXT_BYTES
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import CountResult, TimeResult
from advisor.trial.spec import TimeTrial, TrialSpec
from advisor.workload.missing_sizes import check_sizes
from advisor.workload.sizes import CountedSize, SizeCounts
from advisor.workload.source import resolve_source
from benchmarks.json_lines import append
from benchmarks.papers import advice, child, contenders
from benchmarks.papers import advised as advised_module
from benchmarks.papers.advised import AdviceRequest, Advised, advised
from benchmarks.papers.arena import Arena, Contest, Found
from benchmarks.papers.command import Options, TimeIsUpError
from benchmarks.papers.figures import Figure, read
from benchmarks.papers.runs import WORKLOADS, figure
from benchmarks.search.recordings import RECORDINGS
from benchmarks.search.table import Table
from benchmarks.search.table_lines import Header, Line, Sized
from benchmarks.search.table_lines import read as read_table
from tests.benchmarks.search.tables import complete
from tests.decide.examples import measurement

TINY = WORKLOADS / "tiny_transformer.py"
CHECKPOINT = use("checkpoint", every=1)


@pytest.fixture(autouse=True)
def nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the command's process, which never loads torch; other tests may have loaded it into this one."""
    monkeypatch.setattr("advisor.hardware.detect._held_here", lambda: 0)


def arena(folder: Path, goal: GoalKind = GoalKind.FASTER, limit_bytes: int = 2**23, kind: type[Arena] = Arena) -> Arena:
    options = Options(size="smoke", hardware=detect_hardware("cpu"), output=folder / "papers.jsonl")
    contest = Contest(model="tiny", workload=TINY, goal=goal, limit_bytes=limit_bytes)
    return kind(Runner(folder), options, contest, seconds=0.1, time_limit_seconds=60.0)


@pytest.mark.slow
def test_the_smoke_size_has_an_answer_or_a_reason_for_each_and_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """momadvise itself is only asked for one goal: its own tests cover the others."""
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
    assert without["faster", "grid"].startswith("no exhaustive table was recorded of this model on this device")
    assert without["bigger", "accelerate"] == "it looks for a batch, not for a size of the model"
    assert all(one.ours is not None for place, one in figures.items() if place[:2] not in without)

    assert figures["faster", "untouched", "throughput / untouched"].ours == 1
    assert figures["cheapest", "untouched", "cost / untouched"].ours == 1
    assert figures["bigger", "untouched", "size / untouched"].ours == 1
    assert rates["faster", "untouched"].reason == "plain, batch 4"
    assert rates["bigger", "momadvise"].reason == "checkpoint(every=1), batch 4, layers 8"
    assert 1.5 < figures["bigger", "momadvise", "size / untouched"].ours < 2  # type: ignore[operator]
    by_hand = rates["cheapest", "hand-tuned"].reason
    kept = by_hand.startswith("fused_optimizer + precision(dtype=bf16), batch 4; not compiled")
    assert kept or by_hand.startswith("fused_optimizer, batch 4; without bf16, which took "), by_hand
    if importlib.util.find_spec("accelerate") is not None:
        assert 1 < figures["faster", "accelerate", "trials"].ours < 20, "40 samples do not fit"  # type: ignore[operator]
        assert rates["cheapest", "accelerate"].reason == "plain, batch 4"
    assert "## cheapest" in capsys.readouterr().out

    monkeypatch.setattr(Arena, "time", lambda *_: pytest.fail("it is there already"))
    monkeypatch.setattr(contenders, "momadvise", lambda *_, **__: pytest.fail("it is there already"))
    advice.main(arguments)
    assert len(read(output)) == len(figures)


def test_a_call_asks_at_least_one_contender_and_others_only_if_time_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "papers.jsonl"
    minutes = advice._ANSWER_SECONDS / 60
    advice.main(["--size", "smoke", "--device", "cpu", "--output", str(output), "--minutes", f"{minutes:g}"])
    assert {one.row for one in read(output)} == {"tiny transformer, untouched"}
    assert "minutes are over; the same command continues with the missing ones." in capsys.readouterr().out


def test_momadvise_only_starts_if_its_full_time_is_left(tmp_path: Path) -> None:
    one = arena(tmp_path)
    one.options = msgspec.structs.replace(one.options, minutes=1.0)
    with pytest.raises(TimeIsUpError):
        contenders.momadvise(one, space="smoke", trials=2, time_limit_seconds=60.0)


def recorded(folder: Path, **changes: object) -> Table:
    """A made-up table of the tiny transformer on this machine, in which checkpointing has a calibration."""
    here = {"fingerprint": resolve_source(TINY).fingerprint, "device": detect_hardware("cpu").name, **changes}
    lines: list[Line] = []
    for line in complete():
        if isinstance(line, Header):
            lines.append(msgspec.structs.replace(line, **here))
        elif isinstance(line, Sized):
            words = {one.name: "words of its own" for one in line.settings if one.name == CHECKPOINT.name}
            lines.append(msgspec.structs.replace(line, settled=words, wall_seconds=100.0))
        else:
            lines.append(msgspec.structs.replace(line, wall_seconds=1.0))
    for line in lines:
        append(folder / "tiny-cpu.jsonl", line)
    return Table(lines)


def test_the_grid_is_the_best_of_a_table_of_this_model_on_this_device(tmp_path: Path) -> None:
    table = recorded(tmp_path)
    found = contenders.grid(arena(tmp_path, limit_bytes=table.limit_bytes), space="default", tables=tmp_path)
    label, batch, _ = table.best
    assert found.policy is not None
    assert (found.policy.label, found.policy.micro_batch) == (label, batch)
    assert found.policy.settled == {"checkpoint": "words of its own"}, "the harness runs what was recorded"
    assert found.trials == table.policies
    assert found.seconds == 4 * 100 + 10, "four combinations were sized, ten trials timed"
    assert found.reason == (
        "recorded on 2026-01-01: the best of all 4 combinations of the space made up, not of default"
    )


def test_a_table_of_momadvises_own_space_has_no_note(tmp_path: Path) -> None:
    table = recorded(tmp_path)
    found = contenders.grid(arena(tmp_path, limit_bytes=table.limit_bytes), space="made up", tables=tmp_path)
    assert found.reason.endswith("of the space made up")


def test_a_model_that_cannot_be_recorded_says_so(tmp_path: Path) -> None:
    reasons = {}
    for name, workload in {"tiny": TINY, "small": RECORDINGS["gpt2"].workload}.items():
        one = arena(tmp_path)
        one.contest = msgspec.structs.replace(one.contest, workload=workload)
        reasons[name] = contenders.grid(one, space="default", tables=tmp_path).reason.partition(": ")[2]
    assert reasons == {
        "tiny": "only those of benchmarks.search.record are enumerated",
        "small": "python -m benchmarks.search.record --model gpt2 --device cpu",
    }


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, recording in RECORDINGS.items()
        if recording.workload in {one.workload for one in advice._SIZES["paper"].models}
    ],
)
def test_all_contenders_can_be_compared_with_the_table_of_a_small_model(name: str, tmp_path: Path) -> None:
    """Tables belong to one machine: this gives another one its name."""
    recording = RECORDINGS[name]
    (model,) = (one for one in advice._SIZES["paper"].models if one.workload == recording.workload)
    assert model.goals == (GoalKind.FASTER,)
    (header,) = (one for one in read_table(contenders._TABLES / f"{name}-cpu.jsonl.gz") if isinstance(one, Header))
    hardware = msgspec.structs.replace(detect_hardware("cpu"), name=header.device)
    options = Options(size="paper", hardware=hardware, output=tmp_path / "papers.jsonl")
    contest = Contest(model=model.name, workload=model.workload, goal=GoalKind.FASTER, limit_bytes=model.limit_bytes)
    assert contest.own_batch == header.reference_batch, "plain training is the same there and here"
    with Runner(tmp_path) as runner:
        one = Arena(runner, options, contest, seconds=0.1, time_limit_seconds=60.0)
        found = contenders.grid(one, space="default")
    assert found.policy is not None, found.reason
    assert f"of the space {name}, not of default" in found.reason


def test_small_models_run_only_on_a_cpu_because_their_limits_are_below_a_gpu_context() -> None:
    small = {one.name for one in advice._SIZES["paper"].models if one.kind is DeviceKind.CPU}
    assert small == {"small GPT-2", "small BERT", "small ResNet", "small U-Net"}
    assert all(one.limit_bytes < CUDA_CONTEXT_BYTES for one in RECORDINGS.values())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "another device"}, "no exhaustive table was recorded"),
        ({"fingerprint": "another source"}, "no exhaustive table was recorded"),
        ({"limit_bytes": 2**22}, "its table was recorded below 4 MiB"),
    ],
)
def test_a_table_of_another_model_or_device_does_not_count(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    recorded(tmp_path, **changes)
    found = contenders.grid(arena(tmp_path), space="default", tables=tmp_path)
    assert found.policy is None
    assert found.reason.startswith(reason)


def test_the_harness_uses_the_answers_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs: list[TrialSpec] = []

    def keep(self: Runner, spec: TrialSpec, *, until: float) -> Any:
        specs.append(spec)
        return spec.ended(Outcome.OK, wall_seconds=2.0)

    monkeypatch.setattr(Runner, "run", keep)
    one = arena(tmp_path)
    policy = Policy(methods=(CHECKPOINT,), micro_batch=2, accumulation_steps=3, settled={"checkpoint": "so"})
    one.time(policy, {"layers": 8})
    assert (type(specs[0]), specs[0].policy, specs[0].model_size) == (TimeTrial, policy, {"layers": 8})
    one.time(policy, {"layers": 8})
    assert one.wall_seconds == 4, "what another goal has paid for counts all the same"


class Formats(Arena):
    """Steps in 32 and in 16 bits; those in 16 bits take a given factor longer at each batch, and 64 samples never fit.

    Attributes:
        ratios: Batch -> factor.
        step_seconds: Seconds per sample in 32 bits.
    """

    ratios: Mapping[int, float | None] = {}
    step_seconds = 0.001

    def time(self, policy: Policy, size: Mapping[str, int | float] | None = None) -> TimeResult:
        self.wall_seconds += 1
        if policy.micro_batch >= 64:
            return TimeResult(key="", outcome=Outcome.OUT_OF_MEMORY)
        ratio = self.ratios.get(policy.micro_batch) if any(one.name == "precision" for one in policy.methods) else 1.0
        if ratio is None:
            return TimeResult(key="", outcome=Outcome.TIMEOUT, reason="too long")
        return TimeResult(
            key="",
            outcome=Outcome.OK,
            measurement=measurement(1 / (self.step_seconds * ratio), micro_batch=policy.micro_batch),
        )

    def largest(
        self, settings: Sequence[MethodSetting], size: Mapping[str, int | float] | None = None
    ) -> tuple[Policy | None, MemoryModel | None, int, str]:
        return Policy(methods=tuple(settings), micro_batch=4), None, 1, ""


BF16 = "fused_optimizer + precision(dtype=bf16)"


@pytest.mark.parametrize(
    ("ratios", "step_seconds", "label", "compared", "reason"),
    [
        pytest.param({2: 0.6}, 0.001, BF16, 2, "", id="faster"),
        pytest.param({2: 1.2, 8: 0.6}, 0.001, BF16, 4, "", id="slower only while steps are nothing but launches"),
        pytest.param(
            {2: 8.0, 8: 7.0, 32: 7.25},
            0.0001,
            "fused_optimizer",
            7,
            "without bf16, which took 7.25 times as long here",
            id="emulated, up to what fits",
        ),
        pytest.param(
            {2: 8.0},
            1.0,
            "fused_optimizer",
            2,
            "without bf16, which took 8.00 times as long here",
            id="emulated, and a step takes so long that one of more samples is not waited for",
        ),
        pytest.param({2: None}, 1.0, "fused_optimizer", 2, "without bf16 (timeout: too long)", id="never ends"),
    ],
)
def test_the_hand_tuned_default_notices_that_16_bits_are_slower(
    tmp_path: Path, ratios: Mapping[int, float | None], step_seconds: float, label: str, compared: int, reason: str
) -> None:
    one = arena(tmp_path, kind=Formats)
    assert isinstance(one, Formats)
    one.ratios, one.step_seconds, one.seconds = ratios, step_seconds, 3.0
    found = contenders.hand_tuned(one, compiled=True)
    assert found.policy is not None
    assert found.policy.label == f"compile(scope=blocks) + {label}"
    assert found.reason == reason
    assert found.trials == compared + 1
    assert found.seconds == compared, "the trials that it took to see it are in its seconds"


class Ladder(Arena):
    """Sizes of 1, 2, 4, ... layers; step time is proportional to the layers; from 16 on nothing fits.

    Attributes:
        rates: Samples per second of one layer: plain training, 32 bits and 16 bits.
    """

    rates = (1.0, 2.0, 3.0)

    def count(self) -> CountResult:
        sizes = [CountedSize(size={"layers": 2**power}, parameter_count=100 * 2**power) for power in range(7)]
        return CountResult(key="", outcome=Outcome.OK, counts=SizeCounts(own=sizes[0], listed=tuple(sizes)))

    def time(self, policy: Policy, size: Mapping[str, int | float] | None = None) -> TimeResult:
        rate = self.rates[len(policy.methods)] / (size or {"layers": 1})["layers"]
        return TimeResult(key="", outcome=Outcome.OK, measurement=measurement(rate))

    def largest(
        self, settings: Sequence[MethodSetting], size: Mapping[str, int | float] | None = None
    ) -> tuple[Policy | None, MemoryModel | None, int, str]:
        assert size is not None
        if size["layers"] >= 16:
            return None, None, 1, "not even one sample fits"
        return Policy(methods=tuple(settings), micro_batch=2), None, 2, ""


def test_the_hand_tuned_default_finds_the_largest_size_that_keeps_the_floor(tmp_path: Path) -> None:
    found = contenders.hand_tuned(arena(tmp_path, GoalKind.BIGGER, kind=Ladder), compiled=True)
    assert found.model_size == {"layers": 4}, "three times as fast as plain training with one layer, floor a half"
    assert found.policy is not None
    assert found.policy.label == BF16, "never compiled anew at every size"
    assert found.trials > 2


def test_the_hand_tuned_default_climbs_without_16_bits_if_they_are_slower(tmp_path: Path) -> None:
    one = arena(tmp_path, GoalKind.BIGGER, kind=Ladder)
    assert isinstance(one, Ladder)
    one.rates = (1.0, 4.0, 0.5)
    found = contenders.hand_tuned(one, compiled=True)
    assert found.model_size == {"layers": 8}
    assert found.policy is not None
    assert found.policy.label == "fused_optimizer"
    assert found.reason == "without bf16, which took 8.00 times as long here"


def test_without_accelerate_its_row_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert contenders.accelerate(arena(tmp_path), 128).reason == "accelerate is not installed"


@pytest.mark.parametrize("goal", GoalKind)
def test_requests_to_momadvise_are_valid(tmp_path: Path, goal: GoalKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's request, handled by the program that receives it."""
    requests: list[TuneRequest] = []

    def session(request: TuneRequest, progress: object) -> None:
        request.check()
        requests.append(request)
        raise TrialError("nothing could be measured")

    def ask_here(program: str, request: AdviceRequest, *_: object, **__: object) -> tuple[Advised, str]:
        assert program == advised_module.__name__
        return advised(request), ""

    monkeypatch.setattr("advisor.session.tune.run_session", session)
    monkeypatch.setattr(contenders, "ask", ask_here)
    begin = time.monotonic()
    found = contenders.momadvise(arena(tmp_path, goal), space="smoke", trials=2, time_limit_seconds=5.0)
    (request,) = requests
    assert (request.goal, request.trials, request.time_limit_seconds) == (goal, 2, 5.0)
    assert request.memory_limit_bytes == 2**23
    assert request.global_batch == (4 if goal is GoalKind.CHEAPEST else None), "BATCH_SIZE of the file"
    assert found.policy is None
    assert found.reason == "TrialError: nothing could be measured"
    assert 0 <= found.seconds <= time.monotonic() - begin
    assert request.output is not None
    assert not request.output.parent.exists(), "its study is no part of the answer"


def test_the_answer_of_momadvise_is_its_programs_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(methods=(CHECKPOINT,), micro_batch=4, settled={"checkpoint": "so"})
    said = Advised(policy=policy, model_size={"layers": 8}, trials=7)
    monkeypatch.setattr(contenders, "ask", lambda *_, **__: (said, ""))
    found = contenders.momadvise(arena(tmp_path), space="smoke", trials=2, time_limit_seconds=5.0)
    assert (found.policy, found.model_size, found.trials) == (policy, {"layers": 8}, 7)


def test_a_hanging_momadvise_is_a_row_with_its_reason_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def ask_in_vain(_: str, request: AdviceRequest, *__: object, **___: object) -> tuple[None, str]:
        folders.append(Path(request.output))
        folders[0].mkdir()
        return None, "timeout: it took longer than its limit"

    monkeypatch.setattr(contenders, "ask", ask_in_vain)
    found = contenders.momadvise(arena(tmp_path), space="smoke", trials=2, time_limit_seconds=5.0)
    assert found.policy is None
    assert found.reason == "timeout: it took longer than its limit"
    assert not folders[0].parent.exists()


@pytest.mark.slow
def test_the_end_of_the_call_ends_momadvise_and_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[psutil.Process] = []
    end = child._end

    def look_and_end(program: subprocess.Popen[bytes]) -> None:
        one = psutil.Process(program.pid)
        seen.extend([one, *one.children(recursive=True)])
        end(program)

    monkeypatch.setattr(child, "_end", look_and_end)
    one = arena(tmp_path)
    monkeypatch.setattr(Options, "check_time", lambda *_: None)  # it would not have started at all
    one.options = msgspec.structs.replace(one.options, minutes=0.1, begin=time.monotonic())
    with pytest.raises(TimeIsUpError):
        contenders.momadvise(one, space="default", trials=40, time_limit_seconds=120.0)
    assert len(seen) > 1, "it had begun to start workers"
    assert not [one for one in seen if child._runs(one)]


def every_question() -> list[tuple[str, GoalKind]]:
    return [(one.name, goal) for size in advice._SIZES.values() for one in size.models for goal in one.goals]


@pytest.mark.parametrize(("name", "goal"), every_question())
def test_every_model_can_be_asked_about_for_its_goals(name: str, goal: GoalKind) -> None:
    (model,) = (one for size in advice._SIZES.values() for one in size.models if one.name == name)
    if goal is GoalKind.BIGGER:
        check_sizes(resolve_source(model.workload))
    assert Contest(model=name, workload=model.workload, goal=goal).own_batch


@pytest.mark.parametrize(
    ("tried", "reason"),
    [
        (
            [("plain", 4, 10.0), ("plain", 11, 9.5)],
            "accelerate's (plain, batch 11) has 20 % more: it was measured on the way at 0.95 times this answer",
        ),
        (
            [("plain", 4, 10.0)],
            "accelerate's (plain, batch 11) has 20 % more: it was none of the 7 policies that its time allowed",
        ),
    ],
    ids=["it was slower there", "it was not tried"],
)
def test_a_contender_ahead_of_momadvise_is_named_with_the_reason(
    tmp_path: Path, tried: list[tuple[str, int, float]], reason: str
) -> None:
    one = arena(tmp_path)

    def gained(who: str, gain: float, words: str = "") -> dict[tuple[str, str, str], Figure]:
        place = advice._place(one.contest, who)
        columns = {advice._GAIN: (gain, ""), advice._TELLING: (10 * gain, words)}
        return {
            (*place, column): figure(one.options, "advice", *place, column, ours, reason=remark)
            for column, (ours, remark) in columns.items()
        }

    known = gained("accelerate", 1.2, "plain, batch 11; remark") | gained("grid", 1.1, "plain, batch 9")
    own = list(gained("momadvise", 1.0, "plain, batch 4").values())
    found = Found(policy=Policy(micro_batch=4), trials=7, tried=tried)
    explained = advice._explained(one.contest, own, found, known)
    assert {line.column: line.reason for line in explained}[advice._GAIN] == reason
    close = gained("accelerate", 1.01, "plain, batch 11")
    assert advice._explained(one.contest, own, found, close) == own, "within what two measurements are apart"
