"""The command writes one row per workload and run, as soon as it is done, and never twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.minutes import __main__ as command
from benchmarks.minutes.contest import Starter
from benchmarks.minutes.momadvise_run import Advice, Promise
from benchmarks.minutes.rows import Row, read
from benchmarks.minutes.settings import ADVICE, REFERENCE_SET, UNTOUCHED
from benchmarks.minutes.workloads import SIZES

from .examples import FakeStarter, Machine

NAMES = [one.name for one in SIZES["full"].workloads]


class Fakes:
    """Made-up answers and arms; records the calls."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.batches: list[int] = []
        self.busy: list[bool] = []

    def run_momadvise(self, workload: Path, folder: Path, *, arguments: list[str], environment: Any) -> Advice:
        self.asked.append((workload.stem, tuple(arguments)))
        promise = Promise(ratio=1.5, low=1.4, high=1.6)
        return Advice(combinations=13, policies=15, winner="plain", batch=8, baseline_batch=4, promise=promise)

    def starter_of(self, workload: Path, *, own_batch: int, **_: Any) -> Starter:
        self.batches.append(own_batch)
        rates: dict[str, float | str] = {one.name: 10.0 + place for place, one in enumerate(REFERENCE_SET)}
        return FakeStarter(self.machine, rates | {UNTOUCHED.name: 10.0, ADVICE: 15.0})

    @contextmanager
    def one_core_busy(self, wanted: bool) -> Iterator[None]:
        self.busy.append(wanted)
        yield


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    made = Fakes()
    for name in ("run_momadvise", "starter_of", "one_core_busy"):
        monkeypatch.setattr(command, name, getattr(made, name))
    return made


def run(output: Path, *arguments: str) -> list[Row]:
    command.main(["--device", "cpu", "--output", str(output), *arguments])
    return read(output)


def test_every_workload_has_a_row_with_the_complete_reference_set(tmp_path: Path, fakes: Fakes) -> None:
    rows = run(tmp_path / "minutes-cpu.jsonl")
    assert [row.workload for row in rows] == NAMES
    assert len(NAMES) == 10
    assert all([arm.name for arm in row.arms] == [ADVICE, *(one.name for one in REFERENCE_SET)] for row in rows)
    assert {row.best for row in rows} == {REFERENCE_SET[-1].name}
    assert {row.promise_is for row in rows} == {"inside"}
    assert fakes.asked[0] == ("gpt2", ("--device", "cpu")), "the default limit is the product's own"
    assert fakes.busy == [False] * 10
    assert "### small_lstm" in (tmp_path / "minutes-cpu.md").read_text(encoding="utf-8")


def test_existing_rows_are_only_measured_again_on_request(tmp_path: Path, fakes: Fakes) -> None:
    output = tmp_path / "minutes-cpu.jsonl"
    run(output, "--only", "gpt2")
    run(output, "--only", "gpt2,unet")
    assert [name for name, _ in fakes.asked] == ["gpt2", "unet"]
    run(output, "--only", "unet", "--again")
    assert [name for name, _ in fakes.asked] == ["gpt2", "unet", "unet"]
    run(output, "--only", "unet", "--busy")
    run(output, "--only", "unet", "--time-limit", "30s")
    assert fakes.busy == [False, False, False, True, False], "another machine and another limit are other rows"
    assert fakes.asked[-1] == ("unet", ("--device", "cpu", "--time-limit", "30s"))


def test_further_runs_measure_the_advice_and_the_best_of_the_set(tmp_path: Path, fakes: Fakes) -> None:
    rows = run(tmp_path / "minutes-cpu.jsonl", "--only", "gpt2", "--repeat", "3")
    assert [row.repeat for row in rows] == [1, 2, 3]
    assert [len(row.arms) for row in rows] == [7, 2, 2]
    assert {row.best for row in rows} == {REFERENCE_SET[-1].name}


def test_an_interrupted_workload_keeps_the_rows_of_the_others(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "minutes-cpu.jsonl"

    def interrupted(workload: Path, *arguments: Any, **options: Any) -> Advice:
        if workload.stem == "unet":
            raise KeyboardInterrupt
        return fakes.run_momadvise(workload, *arguments, **options)

    monkeypatch.setattr(command, "run_momadvise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(output, "--only", "gpt2,unet")
    assert [row.workload for row in read(output)] == ["gpt2"]


def test_a_file_without_a_batch_size_uses_the_baselines(
    tmp_path: Path, fakes: Fakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(SIZES["full"].workloads[0]), "own_batch", None)
    (row,) = run(tmp_path / "minutes-cpu.jsonl", "--only", "gpt2")
    assert (row.untouched_batch, fakes.batches) == (4, [4])
    monkeypatch.setattr(command, "run_momadvise", lambda *_, **__: Advice(reason="exit status 1: it is broken"))
    (row,) = run(tmp_path / "minutes-cpu.jsonl", "--only", "gpt2", "--again")
    assert row.reason == "the file states no batch, and there is no answer to take it from"


def test_an_unknown_name_is_an_error_that_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--only", "gpt5"])
    assert f"--only must name workloads of {', '.join(NAMES)}, but got gpt5" in capsys.readouterr().err


def test_every_workload_states_its_batch_size() -> None:
    assert all(one.own_batch for size in SIZES.values() for one in size.workloads)


def test_the_process_of_the_command_never_loads_torch() -> None:
    code = "import sys, benchmarks.minutes.__main__; sys.exit('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.slow
def test_the_smoke_size_has_every_value(tmp_path: Path) -> None:
    (row,) = run(tmp_path / "minutes-cpu.jsonl", "--size", "smoke")
    assert row.advice.combinations >= 1, row.advice.reason
    assert row.advice.promise is not None
    first = row.advice.first_figure_seconds
    assert first is not None
    assert 0 < first <= row.advice.wall_seconds
    assert [arm.name for arm in row.arms] == [ADVICE, "fused at 2x the batch"]
    assert all(arm.beside is not None for arm in row.arms), row.arms
    assert row.advice_beside_best is not None, row.reason
