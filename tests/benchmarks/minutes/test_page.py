"""The page of rows: their values, and the targets with the rows that missed them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.json_lines import append
from benchmarks.minutes.page import lines_with_pages, page, write_page
from benchmarks.minutes.rows import read, read_runs

from .examples import beside, row

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


def test_the_committed_pages_match_their_rows() -> None:
    for lines in lines_with_pages(RESULTS):
        text = lines.with_suffix(".md").read_text(encoding="utf-8")
        assert text == page(read_runs(lines)), "run: python -m benchmarks.minutes.page"
    assert set(RESULTS.glob("minutes-*.md")) == {lines.with_suffix(".md") for lines in lines_with_pages(RESULTS)}


def test_a_workload_has_a_summary_line_and_a_table_of_arms() -> None:
    text = page([row()])
    assert (
        "| gpt2 | 14 | 20 | 12 | 215 | fused_optimizer, batch 16 | 1.62 (1.55 to 1.69) | 1.600 (1.584 to 1.616) "
        "| inside | fused at 4x the batch: 1.580 (1.564 to 1.596) | 1.010 (1.000 to 1.020) |"
    ) in text
    assert "| advice | 16 | 16 | 10 | 1.600 (1.584 to 1.616) | 12 |  |" in text
    assert "| bf16 |  |  |  |  |  | not native: bf16 is multiplied at 0.31 times the rate of float32 |" in text
    assert "2 cores, 2026-01-02, with torch 2.13.0." in text


def test_targets_are_met_only_if_every_row_meets_them() -> None:
    text = page([row(), row("unet")])
    assert text.count(": met, in 2 of 2") == 3
    poor = row(
        "unet",
        combinations=5,
        measured=1.4,
        promise=(1.6, 1.5, 1.7),
        advice_beside_best=beside(0.9, rounds=3, half=0.1),
    )
    text = page([row(), poor])
    assert "compared on every workload: **not met**, in 1 of 2 (not in unet: 5)" in text
    assert "**not met**, in 1 of 2 (not in unet: 0.900 (0.810 to 0.990)†)" in text, "three rounds have no interval"
    assert "**not met**, in 1 of 2 (not in unet: below)" in text


def test_nineteen_kept_promises_of_twenty_are_enough_and_eighteen_are_not() -> None:
    kept = [row(repeat=repeat) for repeat in range(1, 19)]
    broken = [row(repeat=repeat, measured=2.0) for repeat in (19, 20)]
    promised = "the measured ratio inside the promised interval in 95 % of the runs"
    assert f"{promised}: met, in 19 of 20 (not in gpt2, run 20: above)" in page([*kept, row(repeat=19), broken[1]])
    assert f"{promised}: **not met**, in 18 of 20" in page([*kept, *broken])


def test_a_missing_value_is_a_missed_target() -> None:
    found = msgspec.structs.replace(row(), advice_beside_best=None, reason="the advice has no figure")
    text = page([found])
    assert "**not met**, in 0 of 1 (not in gpt2: not measured)" in text
    assert "| the advice has no figure |" in text


def test_narrow_intervals_are_counted() -> None:
    vague = row("unet", advice_beside_best=beside(1.0, half=0.2))
    assert "5 of 6 ratios are known to ±1.5 %" in page([row(), vague])


def test_busy_rows_and_smoke_rows_have_sections_of_their_own() -> None:
    text = page([row(busy=True), row(size="smoke"), row()])
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "## a CPU, size full",
        "## a CPU, size full, one core busy",
        "## a CPU, size smoke",
        "## All promises",
    ]


def test_a_later_row_replaces_an_earlier_one_and_a_truncated_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "minutes-cpu.jsonl"
    assert read(path) == read_runs(path) == []
    append(path, row())
    with path.open("ab") as file:
        file.write(b'{"workload":"un')
    append(path, row("unet"))
    append(path, row(measured=1.7))
    append(path, row(busy=True))
    assert read(path) == [row(measured=1.7), row("unet"), row(busy=True)]


def test_there_is_no_page_without_rows(tmp_path: Path) -> None:
    write_page(tmp_path / "minutes-cpu.jsonl")
    assert page([]) == ""
    assert not list(tmp_path.iterdir())


def test_of_an_unsteady_promise_only_the_lower_end_was_said() -> None:
    assert row(measured=90.0, promise=(20.0, 8.0, 40.0)).promise_is == "inside"
    assert row(measured=7.0, promise=(20.0, 8.0, 40.0)).promise_is == "below"
    assert row(measured=31.0, promise=(20.0, 8.0, 30.0)).promise_is == "above"


def test_the_promises_of_all_devices_are_counted_together_and_replaced_runs_stay_visible() -> None:
    elsewhere = msgspec.structs.replace(row("unet", measured=2.0), device="another")
    text = page([row(measured=2.0), elsewhere, row()])
    assert "Of 2 promises above, 1 were kept. From end to end, a promised interval spans a factor of 1.09" in text
    replaced = text.partition("Earlier runs, made again")[2]
    assert replaced.count("| gpt2 |") == 1
    assert "| 2.000 (1.980 to 2.020) | above |" in replaced


def test_where_nothing_was_measured_again_no_earlier_runs_are_listed() -> None:
    assert "Earlier runs" not in page([row()])
