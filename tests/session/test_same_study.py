"""Which requests share a study, and what is done again when only the pick differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import advisor
from advisor.errors import OutputFolderError
from advisor.goal import Preference
from advisor.report.progress import Progress
from tests.session.test_devices import CPU, FOUR_GPUS
from tests.session.workloads import tiny

TINY = Path(tiny.__file__)


class StoppedError(Exception):
    """Raised by a test before the first trial."""


class StoppingBeforeTrials(Progress):
    def stage(self, text: str) -> None:
        raise StoppedError


def open_study(output: Path, **options: Any) -> None:
    """Go as far as the study's folder."""
    with pytest.raises(StoppedError):
        advisor.tune(TINY, price=1.0, output=output, progress=StoppingBeforeTrials(), **options)


def on_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    gpus = tuple(msgspec.structs.replace(gpu, device_count=count) for gpu in (*FOUR_GPUS, *FOUR_GPUS)[:count])
    monkeypatch.setattr("advisor.session.preparation.detect_hardware", lambda device: gpus[0])
    monkeypatch.setattr("advisor.session.preparation.list_devices", lambda: gpus)


def test_the_devices_that_are_meant_by_default_are_the_ones_that_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpus(monkeypatch, 4)
    open_study(tmp_path / "out", goal="cheapest")
    open_study(tmp_path / "out", goal="cheapest", gpus="1,2,4")
    monkeypatch.setattr("advisor.session.preparation.detect_hardware", lambda device: CPU)
    open_study(tmp_path / "cpu", goal="cheapest")
    open_study(tmp_path / "cpu", goal="cheapest", gpus=1)


def test_another_number_of_gpus_is_another_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(monkeypatch, 8)
    open_study(tmp_path / "out", goal="cheapest")
    on_gpus(monkeypatch, 2)
    with pytest.raises(OutputFolderError, match="another study"):
        advisor.tune(TINY, goal="cheapest", price=1.0, output=tmp_path / "out", progress=StoppingBeforeTrials())


@pytest.mark.slow
def test_another_price_or_preference_picks_anew_and_searches_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "goal": "cheapest", "search_space": "smoke", "trials": 2, "time_limit": 100, "memory_limit": "8GiB",
        "output": tmp_path / "out", "device": "cpu",
    }  # fmt: skip
    first = advisor.tune(TINY, price=1.0, **options)
    assert first.complete

    def searched() -> set[str]:
        kinds = ("probe", "size", "time")
        return {path.name for kind in kinds for path in (tmp_path / "out" / "trials").glob(f"{kind}-*")}

    ledger = (tmp_path / "out" / "ledger.jsonl").read_text()
    before = searched()
    # Fewer trials are asked for, too: what was searched stays searched.
    second = advisor.tune(TINY, price=3.0, max_latency=1000.0, **{**options, "trials": 1})
    assert not second.cached
    assert second.complete
    assert second.goal.price is not None
    assert second.goal.price.usd_per_hour == 3.0
    assert second.goal.preference == Preference(max_latency_seconds=1000.0)
    assert second.recommendation.confirmation is not None
    assert {one.policy.key for one in second.recommendation.ranking} == {
        one.policy.key for one in first.recommendation.ranking
    }
    assert any("the pick alone" in note for note in second.notes)
    assert second.trial_budget == first.trial_budget
    assert (tmp_path / "out" / "ledger.jsonl").read_text() == ledger
    repeats = searched() - before  # at most the baseline once more, beside another winner
    assert len(repeats) <= 1
    assert advisor.tune(TINY, price=3.0, max_latency=1000.0, **options).cached
