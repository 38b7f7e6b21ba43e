"""Memory of methods for several devices or a GPU: what is compared with what, and that it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.hardware.detect import detect_hardware
from advisor.hardware.mesh import MeshAxis
from advisor.methods.catalogue import CATALOGUE, get_method
from benchmarks.method_memory import Case, cases, main, read


def distributed() -> dict[str, Case]:
    return {case.method: case for case in cases(detect_hardware("cpu"))}


def test_every_method_for_several_devices_is_a_case() -> None:
    assert set(distributed()) == {method.name for method in CATALOGUE if method.distributes or method.builds_on}


@pytest.mark.parametrize("name", list(distributed()))
def test_both_trials_have_the_same_global_batch_in_as_many_micro_batches(name: str) -> None:
    case = distributed()[name]
    own, other = case.policy(8), case.comparison(8)
    assert own.global_batch == other.global_batch == 8
    assert own.accumulation_steps == other.accumulation_steps
    assert {method.name for method in own.methods} - {method.name for method in other.methods} == {name}
    assert own.gpu_count == 2
    assert other.gpu_count == (2 if other.methods else 1)
    axis = get_method(name).axis
    assert axis is None or own.axes.degree(axis, own.gpu_count) == 2
    assert (own.accumulation_steps > 1) == (axis is MeshAxis.PIPELINE)


@pytest.mark.slow
def test_rows_have_memory_and_no_time_and_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "rows.jsonl"
    command = ["--size", "smoke", "--device", "cpu", "--methods", "zero_1", "--output", str(output)]
    main(command)
    (row,) = read(output)
    assert (row.outcome, row.processes, row.against, row.simulated) == ("ok", 2, "plain", False)
    assert row.peak_bytes is not None
    assert row.against_peak_bytes is not None
    assert 0 < row.peak_bytes < row.against_peak_bytes
    assert "seconds" not in output.read_text()
    capsys.readouterr()
    main(command)
    assert not capsys.readouterr().out
