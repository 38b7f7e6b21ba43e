"""Rodriguez et al.'s tables at the smoke size, produced by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import radiology
from benchmarks.papers.figures import read

pytestmark = pytest.mark.slow


def test_the_smoke_size_has_every_value_and_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "papers.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    radiology.main(arguments)
    lines = read(output)
    figures = {(one.table, one.row.removeprefix("64 pixels, "), one.column): one for one in lines}
    absent = {row: one.reason for (_, row, _), one in figures.items() if one.ours is None}
    assert set(absent) == {"AMP (tf32)", "AMP (fp16) + checkpointing + momentum"}, absent
    assert all(reason.startswith("refused: ") for reason in absent.values()), absent

    def ours(table: str, row: str, column: str) -> float:
        value = figures[table, row, column].ours
        assert value is not None
        return value

    memory, loss = radiology._MEMORY, radiology._LOSS
    for phase in ("forward", "backward"):
        ratio = f"{phase} peak / plain"
        assert ours(memory, "checkpointing", ratio) < 0.9, "the decoder is recomputed too"
        assert ours(memory, "momentum", ratio) < 1.0
        together = ours(memory, "AMP (bf16) + checkpointing", ratio)
        assert together < ours(memory, "AMP (bf16)", ratio)
    assert ours(loss, "checkpointing", "error of the first gradient") < 1e-6
    assert ours(loss, "checkpointing", "loss / plain") == pytest.approx(1.0, abs=1e-6)
    assert ours(loss, "momentum", "error of the first gradient") > 0.1, "another model"
    assert "## Loss after training" in capsys.readouterr().out

    monkeypatch.setattr(radiology, "timed", lambda *_, **__: pytest.fail("it is there already"))
    monkeypatch.setattr(radiology.Learning, "under", lambda *_: pytest.fail("it is there already"))
    radiology.main(arguments)
    assert len(read(output)) == len(lines)
