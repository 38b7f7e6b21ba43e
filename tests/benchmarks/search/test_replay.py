"""Replays are counted, stored and shown on a generated page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.search.generated import HELD_BACK_NAME
from benchmarks.search.replay import main
from benchmarks.search.report import PAGE, markdown, page
from benchmarks.search.results import Result, read, write


def result(strategy: str = "random", **changes: object) -> Result:
    fields: dict[str, object] = {
        "problem": "made up",
        "combinations": 240,
        "strategy": strategy,
        "budget": 100,
        "reached": (5, 12, 40, None),
        "spent": (100, 100, 100, 100),
        "out_of_memory": (1, 0, 3, 0),
        "failed": (0, 0, 0, 2),
        "versions": {"optuna": "5.0.0"},
        "date": "2026-01-02",
    }
    return Result(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_page_shows_the_lines() -> None:
    text = markdown(
        [result(recorded_on="a made-up device", recorded="2026-01-01"), result("ours", reached=(1, 2, 3, 4))]
    )
    assert "## made up: 240 combinations" in text
    assert (
        "Recorded on a made-up device, 2026-01-01; trial times with noise as in the recording; "
        "4 seeds, at most 100 trials each, on 2026-01-02 with optuna 5.0.0." in text
    )
    assert "| random | 12 | more than 100 | 50% | 75% | none | 12 | 1.0% | 0.5% |" in text
    assert "| ours | 2 | 4 | 100% | 100% | none | 2 | 1.0% | 0.5% |" in text


def test_held_out_problems_come_last_with_the_value_of_their_answers() -> None:
    """With much noise few seeds converge: the quality of the answer after thirty trials says more."""
    text = markdown([result(problem=HELD_BACK_NAME, worth=(0.9, 0.99, 1.0, 0.95)), result()])
    assert text.index("## made up") < text.index("## generated, held out: up to 240 combinations")
    assert "| random | 99.0% | 90.0% |" in text


def test_a_strategy_that_ran_on_fewer_seeds_says_so() -> None:
    text = markdown([result(), result("ours", reached=(1, 2)), result("ours, less", reached=(1, 2), budget=40)])
    assert "4 seeds, at most 100 trials each," in text
    assert "| ours (2 seeds) | 1 | 2 |" in text
    assert "| ours, less (2 seeds, at most 40 trials) | 1 | 2 |" in text


def test_comparisons_are_shown_and_rows_of_another_day_say_so() -> None:
    compared = result("ours, compared", reached=(1, 2, None, 3), compared=(20, 24, None, 22), date="2026-02-02")
    text = markdown([result(), compared, result("ours, compared once")])
    assert "| ours, compared (on 2026-02-02) | 2 | more than 100 | 75% | 75% | 22 | 7 |" in text
    assert "| ours, compared once | 12 | more than 100 | 50% | 75% | not counted | not counted |" in text


def test_a_result_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "search-made-up.jsonl"
    write(path, [result(), result("ours")])
    write(path, [result(reached=(1, 1, 1, 1))])
    assert [(one.strategy, one.median) for one in read(path)] == [("random", 1), ("ours", 12)]
    assert page(tmp_path).startswith("# Search\n")
    assert page(tmp_path / "nothing") == ""


def test_a_simulated_problem_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "search-simulator.jsonl"
    command = ["--simulator", "small", "--seeds", "2", "--budget", "5", "--strategies", "random", "deepspeed"]
    main([*command, "--output", str(output)])
    assert [(one.problem, one.strategy, one.spent) for one in read(output)] == [
        ("simulated small", "random", (5, 5)),
        ("simulated small", "deepspeed", (5, 5)),
    ]
    assert "A new problem for each seed; 2 seeds, at most 5 trials each," in capsys.readouterr().out


def test_the_committed_page_is_up_to_date() -> None:
    assert (PAGE.read_text(encoding="utf-8") if PAGE.exists() else "") == page(), (
        "run: python -m benchmarks.search.report"
    )
