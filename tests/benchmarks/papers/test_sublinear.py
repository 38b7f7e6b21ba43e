"""Chen et al.'s table at the smoke size, produced by the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers import sublinear
from benchmarks.papers.figures import read

pytestmark = pytest.mark.slow


def test_the_smoke_size_has_every_value_and_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "papers.jsonl"
    arguments = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    sublinear.main(arguments)
    figures = {(one.row, one.column): one for one in read(output)}
    assert all(one.ours is not None for one in figures.values()), figures
    deep = {way: figures[f"32 layers, {way}", "activations / plain"].ours for way in ("every block", "nested halves")}
    assert deep["every block"] < 0.5  # type: ignore[operator]
    assert deep["nested halves"] < deep["every block"]  # type: ignore[operator]
    assert figures["plain", "exponent of the depth, activations"].ours == pytest.approx(1.0, abs=0.1)
    for of in ("activations", "peak", "peak beyond them"):
        column = f"exponent of the depth, {of}"
        exponents = [figures[way, column].ours for way in ("nested halves", "sqrt(n) segments", "plain")]
        assert exponents == sorted(exponents)  # type: ignore[type-var]
    assert "## Exponents" in capsys.readouterr().out

    monkeypatch.setattr(sublinear, "_timed", lambda *_: pytest.fail("it is there already"))
    sublinear.main(arguments)
    assert len(read(output)) == len(figures)
