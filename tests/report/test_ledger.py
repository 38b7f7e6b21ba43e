from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from advisor.errors import OutputFolderError
from advisor.measure.measurement import SizePoint, Sizing
from advisor.problem.workload import WorkloadKind, WorkloadSource
from advisor.report.ledger import Ledger
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialKind, TrialResult, TrialSpec
from tests.decide.examples import GIB, measurement, memory, policy

from .scenario import BF16

SOURCE = WorkloadSource(kind=WorkloadKind.FILE, location="/x/gpt2.py", name="gpt2", fingerprint="abc")


def spec(kind: TrialKind = TrialKind.TIME) -> TrialSpec:
    return TrialSpec(
        kind=kind,
        workload=SOURCE,
        policy=policy(BF16, micro_batch=16, accumulation_steps=2),
        device="cpu",
        memory_limit_bytes=8 * GIB,
        measure_seconds=5,
        time_limit_seconds=60,
    )


def ok(rate: float) -> TrialResult:
    return TrialResult(key=spec().key, outcome=Outcome.OK, measurement=measurement(rate), wall_seconds=3.5, warm=True)


def test_a_finished_trial_is_one_json_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(spec(), ok(100))
    (line,) = ledger.path.read_text().splitlines()
    entry = json.loads(line)
    assert entry["key"] == spec().key
    assert (entry["kind"], entry["outcome"], entry["policy"]) == ("time", "ok", "precision(dtype=bf16)")
    assert (entry["micro_batch"], entry["accumulation_steps"]) == (16, 2)
    assert (entry["samples_per_second"], entry["peak_bytes"], entry["wall_seconds"]) == (100, 4 * GIB, 3.5)
    finished = datetime.datetime.fromisoformat(entry["finished_at"])
    assert finished.utcoffset() == datetime.timedelta(0)


def test_entries_are_read_back_in_order(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.read() == ()
    for rate in (100, 200):
        ledger.append(spec(), ok(rate))
    assert [entry.samples_per_second for entry in ledger.read()] == [100, 200]


def test_a_failed_trial_has_no_figures(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(spec(), TrialResult(key="x", outcome=Outcome.CRASHED, reason="signal 11"))
    (entry,) = ledger.read()
    assert (entry.outcome, entry.reason) == (Outcome.CRASHED, "signal 11")
    assert entry.samples_per_second is entry.peak_bytes is None


def test_a_sizing_has_the_peak_of_its_largest_batch(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    points = tuple(SizePoint(micro_batch=n, memory=memory(n * GIB), step_seconds=1.0) for n in (1, 2))
    sizing = Sizing(points=points, out_of_memory_at=None, loss_trace=())
    ledger.append(spec(TrialKind.SIZE), TrialResult(key="x", outcome=Outcome.OK, sizing=sizing))
    assert ledger.read()[0].peak_bytes == 2 * GIB


def test_a_torn_line_costs_no_other_entry(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(spec(), ok(100))
    with ledger.path.open("ab") as file:
        file.write(b'{"finished_at": "2026-')
    ledger.append(spec(), ok(200))
    assert [entry.samples_per_second for entry in ledger.read()] == [100, 200]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputFolderError, match="must be writable"):
        Ledger(tmp_path / "missing" / "ledger.jsonl").append(spec(), ok(1))
