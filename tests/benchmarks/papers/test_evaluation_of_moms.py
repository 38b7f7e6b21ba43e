"""Liu et al.'s tables at the smoke size, produced by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import evaluation_of_moms
from benchmarks.papers.figures import read
from benchmarks.papers.largest import Search
from benchmarks.papers.moms_cases import BATCH, RATE

pytestmark = pytest.mark.slow


def test_the_smoke_size_has_every_value_and_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "papers.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    evaluation_of_moms.main(arguments)
    lines = read(output)
    figures = {(one.row, one.column): one for one in lines}
    absent = {row: one.reason for (row, _), one in figures.items() if one.ours is None}
    assert absent.pop("small ResNet, swapping").startswith("refused: "), "a CPU has nowhere to swap to"
    assert absent.pop("small ResNet, width") == "at none of 8"
    assert all(reason.startswith("out of memory: ") for reason in absent.values()), absent
    assert {row.rpartition(", ")[0] for row in absent} == {"small ResNet, 8 width"}

    def ours(row: str, column: str) -> float:
        value = figures[row, column].ours
        assert value is not None
        return value

    # A method raises the largest batch whatever it does to the throughput: the first half of the paper's finding.
    for row in ("small BERT, checkpoint + 4 bits", "small GPT, checkpoint first"):
        assert ours(row, BATCH) > 1.4, row
        assert ours(row, RATE) > 0
    assert ours("small BERT", BATCH) == ours("small BERT, checkpoint + 4 bits", BATCH), "the mean is over their methods"
    assert ours("small ResNet, budget", BATCH) > 1.4
    assert ours("small GPT, checkpoint first", "throughput at 1/2 of the largest batch, samples/s") > 0
    peaks = [ours(f"small ResNet, 50 layers, {mom}", "peak, MiB") for mom in ("checkpoint first", "exact")]
    assert peaks[0] < 0.8 * peaks[1]
    assert "## Means over the methods" in capsys.readouterr().out

    monkeypatch.setattr(Search, "run", lambda *_: pytest.fail("it is there already"))
    monkeypatch.setattr(evaluation_of_moms, "timed", lambda *_, **__: pytest.fail("it is there already"))
    evaluation_of_moms.main(arguments)
    assert len(read(output)) == len(lines)
