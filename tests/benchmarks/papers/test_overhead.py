"""The overhead of momadvise at the smoke size: the wrapper computes the same as a hand-written loop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers import overhead
from benchmarks.papers.figures import read

pytestmark = pytest.mark.slow

LOOPS = "Wrapper beside a hand-written loop"
POLICIES = ("plain", "checkpoint(every=1) + fused_optimizer + precision(dtype=bf16)")


def _largest_error(policy: object) -> float:
    """In per cent: a CPU that multiplies in bf16 natively uses workspace that no trace sees, a lot for a tiny model."""
    return 5 if "bf16" in str(policy) and torch.ops.mkldnn._is_mkldnn_bf16_supported() else 2


def test_the_smoke_size_has_every_value_and_the_wrapper_matches_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "papers.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    overhead.main(arguments)
    figures = {(one.table, one.row, one.column): one.ours for one in read(output)}
    assert None not in figures.values(), figures
    for policy in POLICIES:
        row = f"tiny transformer, {policy}"
        assert figures[LOOPS, row, "largest difference of losses"] == 0, "same numbers, dropout included"
        assert figures[LOOPS, row, "more live bytes at the peak, %"] == 0
        low, high = (figures[LOOPS, row, f"{which} quartile of the turns, %"] for which in ("lower", "upper"))
        assert low <= high  # type: ignore[operator]
        assert abs(figures["Predicted memory", row, "error of the peak, %"]) < _largest_error(policy)  # type: ignore[arg-type]
    row = "tiny transformer, plain"
    wall, stepped = (figures["Trials", row, column] for column in ("wall, s", "of timed steps, s"))
    assert wall > stepped > 0  # type: ignore[operator]
    assert {place[1] for place in figures if place[0] == "Start"} == set(overhead._STARTS)
    assert f"## {LOOPS}" in capsys.readouterr().out

    monkeypatch.setattr(overhead.subprocess, "run", lambda *_, **__: pytest.fail("it is there already"))
    monkeypatch.setattr(overhead, "ask", lambda *_, **__: pytest.fail("it is there already"))
    monkeypatch.setattr(overhead, "timed", lambda *_, **__: pytest.fail("it is there already"))
    overhead.main(arguments)
    assert len(read(output)) == len(figures)


def test_a_loop_that_cannot_run_is_a_row_with_its_reason() -> None:
    request = overhead.LoopComparisonRequest(
        workload=str(overhead._TINY.workload),
        policies=((overhead._EVERY,), ()),
        block="NoSuchBlock",
        batch=2,
        device="cpu",
        seconds=0.01,
    )
    answer, reason = overhead.ask(
        "benchmarks.papers.loop_comparison", request, overhead.LoopComparisonReply, time_limit_seconds=100
    )
    assert answer is not None, reason
    lost, found = answer.found
    assert isinstance(lost, overhead.Lost)
    assert "there is no NoSuchBlock" in lost.reason
    assert isinstance(found, overhead.LoopComparison)
    assert found.losses == found.loop_losses


def test_a_program_that_fails_or_hangs_has_a_reason() -> None:
    request = overhead.Lost(reason="")
    assert overhead.ask("benchmarks.no_such_module", request, overhead.Lost, time_limit_seconds=20)[0] is None
    assert "limit of 0.01 s" in overhead.ask("timeit", request, overhead.Lost, time_limit_seconds=0.01)[1]
