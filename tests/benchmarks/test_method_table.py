"""The measured table of methods: its smoke size runs, continues where it stopped, and the page shows its rows."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from benchmarks.method_rows import read
from benchmarks.method_table import main, settings_alone

GENERATOR = Path(__file__).resolve().parents[2] / "docs" / "generate_methods.py"


@pytest.mark.slow
def test_rows_are_measured_once_and_shown_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "methods-cpu.jsonl"
    command = ["--size", "smoke", "--device", "cpu", "--methods", "checkpoint", "swap", "--output", str(output)]
    main(command)
    rows = {row.setting: row for row in read(output)}
    assert list(rows) == [
        "plain",
        "checkpoint(every=1)",
        "swap(min_bytes=1048576)",
    ]
    every = rows["checkpoint(every=1)"]
    assert every.outcome == "ok"
    assert every.peak_ratio is not None
    assert every.time_ratio is not None
    assert every.activation_ratio is not None
    assert every.activation_ratio < every.peak_ratio < 1
    assert rows["swap(min_bytes=1048576)"].outcome == "refused"
    assert "CPU" in rows["swap(min_bytes=1048576)"].reason

    # The process ended while it wrote its last row: only that row is measured again.
    lines = output.read_bytes().splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:-1]) + lines[-1][:20] + b"\n")
    capsys.readouterr()
    main(command)
    assert [row.setting for row in read(output)] == list(rows)
    assert capsys.readouterr().out.count("\n") == 1

    generator = runpy.run_path(str(GENERATOR))
    monkeypatch.setitem(generator["_measured"].__globals__, "MEASURED", tmp_path)
    output.write_text("".join(line for line in output.read_text().splitlines(keepends=True) if _is_json(line)))
    text = "\n".join(generator["_measured"]())
    memory = f"peak {every.peak_ratio:.2f} (activations {every.activation_ratio:.2f})"
    assert f"| `checkpoint(every=1)` | {memory}, time {every.time_ratio:.2f}" in text
    assert "- `swap` on smoke: the device is a CPU" in text
    assert every.loss_drift == 0
    assert every.gradient_error == 0
    assert "loss 0, gradient 0" in text


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True


def test_every_method_for_one_device_has_a_row() -> None:
    from advisor.methods.catalogue import CATALOGUE

    alone = {method.name for method in CATALOGUE if not (method.distributes or method.builds_on)}
    assert {setting.name for setting in settings_alone(every=False)} == alone
