"""A table is recorded end to end, continues where it stopped, and is searched."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.errors import OptionError
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome
from benchmarks.json_lines import append
from benchmarks.search.record import main
from benchmarks.search.recordings import RECORDINGS, SMOKE
from benchmarks.search.replay import main as replay
from benchmarks.search.results import read as read_results
from benchmarks.search.table import Table
from benchmarks.search.table_lines import Header, Sized, Timed, read
from benchmarks.search.timed_batches import first_batch, next_batch

from .tables import CHECKPOINT, LIMIT, lost, sized, timed


@pytest.mark.slow
def test_a_small_table_is_recorded_once_and_searched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "smoke.jsonl"
    command = ["--size", "smoke", "--device", "cpu", "--output", str(output)]
    main([*command, "--combinations", "1"])
    one = read(output)
    assert [type(line) for line in one[:3]] == [Header, Timed, Sized]
    assert one[1].reference is True  # type: ignore[union-attr]
    assert not (tmp_path / "smoke.jsonl.gz").exists(), "a table that is not complete is not packed"
    main(command)
    lines = read(output)
    assert lines[: len(one)] == one, "what was measured is not measured again"
    measured = [line for line in lines if isinstance(line, Timed) and not line.reference]
    assert {line.outcome for line in measured} == {"ok"}
    assert all(line.ratio == pytest.approx(line.step_seconds / line.plain_seconds, abs=1e-4) for line in measured)  # type: ignore[operator]
    assert all(line.peak_bytes is not None and line.peak_bytes <= SMOKE.limit_bytes for line in measured)
    assert sum(line.last for line in lines if isinstance(line, Sized | Timed)) == 4
    capsys.readouterr()
    main(command)
    assert read(output) == lines
    assert capsys.readouterr().out.startswith("complete: ")

    table = Table.read(tmp_path / "smoke.jsonl.gz")
    # Eight samples of the small model fit without recomputation, and more with it.
    plain, checkpointing = Combination(), Combination((CHECKPOINT,))
    assert table.outcome(plain, SMOKE.largest_batch) is Outcome.OUT_OF_MEMORY
    assert table.outcome(checkpointing, SMOKE.largest_batch) is Outcome.OK
    assert table.peak_bytes(checkpointing, 4) < table.peak_bytes(plain, 4)

    results = tmp_path / "search-tables.jsonl"
    replay(["--tables", str(tmp_path / "smoke.jsonl.gz"), "--seeds", "2", "--budget", "4", "--output", str(results)])
    assert "## smoke: 4 combinations" in capsys.readouterr().out
    assert {one.recorded_on for one in read_results(results)} == {table.header.device}

    other = tmp_path / "other.jsonl"
    append(other, msgspec.structs.replace(table.header, limit_bytes=1))
    with pytest.raises(OptionError, match="the file holds one of smoke"):
        main(["--size", "smoke", "--device", "cpu", "--output", str(other)])


def test_half_of_the_predicted_batch_comes_first_then_the_largest_that_fits() -> None:
    assert first_batch(sized(), LIMIT, 40) == 5, "ten samples are promised"
    assert first_batch(sized(CHECKPOINT), LIMIT, 40) == 15
    assert first_batch(sized(CHECKPOINT), LIMIT, 10) == 5, "no more than the largest that may be tried"
    assert first_batch(sized(), 300, 40) == 0
    assert first_batch(Sized(settings=(), outcome="failed"), LIMIT, 40) == 0
    # 950 of 1000 bytes are used: nine samples of 60 in addition to 400.
    assert next_batch(sized(), [timed(batch=4)], LIMIT, 40) == 9
    assert next_batch(sized(), [timed(batch=4), timed(batch=9)], LIMIT, 40) == 0


def test_a_batch_out_of_memory_bounds_the_next_one() -> None:
    assert next_batch(sized(), [timed(batch=4), lost(batch=8)], LIMIT, 40) == 7
    assert next_batch(sized(), [lost(batch=8)], LIMIT, 40) == 4
    assert next_batch(sized(), [lost(batch=1)], LIMIT, 40) == 0
    assert next_batch(sized(), [lost(batch=8, outcome="failed")], LIMIT, 40) == 0
    attempts = [lost(batch=32), lost(batch=16), lost(batch=8), timed(batch=4)]
    assert next_batch(sized(), attempts, LIMIT, 40) == 0, "four batches are enough"


@pytest.mark.parametrize("name", sorted(RECORDINGS))
def test_every_recording_has_its_files(name: str) -> None:
    recording = RECORDINGS[name]
    assert recording.workload.is_file()
    assert recording.space.is_file()
    assert recording.reference_batch < recording.largest_batch


def test_predictions_of_profiling_runs_are_used_beyond_their_batches() -> None:
    # A line through their peaks would give 460 for one sample: the flat part is below the batches of the runs.
    moments = tuple(
        Moment(phase=phase, live=line, parts={})
        for phase, line in (("optimizer", Affine(520.0, 0.0)), ("backward", Affine(400.0, 60.0)))
    )
    prediction = MemoryPrediction(moments=moments, activations=Affine(0.0, 60.0), traced_at=(1, 2))
    forecast = msgspec.structs.replace(sized(), prediction=prediction).forecast
    assert forecast is not None
    assert [forecast.predict(batch) for batch in (1, 4, 10)] == [520, 640, 1000]
