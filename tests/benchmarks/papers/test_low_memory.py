"""Sohoni et al.'s ladders at the smoke size, produced by the command."""

from __future__ import annotations

import importlib
import math
from pathlib import Path

import pytest

from benchmarks.papers import low_memory
from benchmarks.papers.figures import read
from benchmarks.papers.low_memory_ladders import LADDERS, SIZES

pytestmark = pytest.mark.slow


def test_the_smoke_size_has_every_value_and_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "papers.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    low_memory.main(arguments)
    figures = {(one.table, one.row, one.column): one for one in read(output)}
    without = {place[2]: one.reason for place, one in figures.items() if one.ours is None}
    assert without == {"BLEU": "not measured, for nothing is translated here; see loss per token"}
    assert "on synthetic" in figures["DynamicConv transformer", "32 bit", "loss per token"].reason

    def ours(column: str, row: str, table: str = "WRN-28-2") -> float:
        found = figures[table, row, column].ours
        assert found is not None
        return found

    for ladder in LADDERS:
        plain, small, sparse = (ladder.rungs[number].name for number in (0, -2, -1))
        for part in ("parameters, MB", "gradients, MB", "optimizer state, MB"):
            assert ours(part, small, ladder.table) < 0.55 * ours(part, plain, ladder.table), "16 bit halve them"
            assert ours(part, sparse, ladder.table) == ours(part, small, ladder.table), "sparse weights are dense here"
        assert ours("sum of these parts, MB", small, ladder.table) < ours("peak, MB", small, ladder.table)
        assert ours("activations: times smaller", small, ladder.table) > 8, "16 bit, recomputation, micro-batches"
        assert ours("peak, MB", sparse, ladder.table) > ours("peak, MB", small, ladder.table), "and have masks"
        in_sparse_format = ours("peak in a sparse format, MB", sparse, ladder.table)
        assert in_sparse_format < ours("peak, MB", small, ladder.table)
        assert "calculated" in figures[ladder.table, sparse, "peak in a sparse format, MB"].reason
    assert ours("prediction off by, %", "32 bit") < 5, "as near as the paper's profiler"
    assert "## DynamicConv transformer" in capsys.readouterr().out

    monkeypatch.setattr(low_memory.Runner, "run", lambda *_, **__: pytest.fail("it is there already"))
    monkeypatch.setattr(low_memory.Learner, "run", lambda *_, **__: pytest.fail("it is there already"))
    low_memory.main(arguments)
    assert len(read(output)) == len(figures)


@pytest.mark.parametrize(("workload", "millions"), [("wide_residual", 1.46), ("dynamic_convolution", 38.7)])
def test_the_networks_have_the_papers_parameter_counts(workload: str, millions: float) -> None:
    import torch

    with torch.device("meta"):
        model = importlib.import_module(f"benchmarks.papers.workloads.{workload}").build_model()
    count = sum(parameter.numel() for parameter in model.parameters())
    assert math.isclose(count / 1e6, millions, rel_tol=0.005)


def test_a_dynamic_convolution_weights_earlier_positions_by_its_own_weights() -> None:
    import torch
    from torch.nn import functional

    module = importlib.import_module("benchmarks.papers.workloads.dynamic_convolution")
    convolution = module.DynamicConvolution(8, 3, causal=True).eval()
    states = torch.randn(2, 5, 8)
    gated = functional.glu(convolution.gate(states))
    weights = convolution.weights(gated).unflatten(-1, (4, 3)).softmax(-1)
    expected = torch.zeros(2, 5, 4, 2)
    for place in range(5):
        for tap in range(max(0, 2 - place), 3):
            expected[:, place] += weights[:, place, :, tap, None] * gated[:, place - 2 + tap].unflatten(-1, (4, 2))
    torch.testing.assert_close(convolution(states), convolution.project(expected.flatten(-2)))


def test_batches_are_whole_micro_batches() -> None:
    for sizes in SIZES.values():
        assert all(size.batch % size.micro_batch == 0 for size in sizes.values())
