"""The lines of the papers' tables: existing ones are kept, and missing values have reasons."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.json_lines import append
from benchmarks.papers.figures import Figure, markdown, read

FIGURE = Figure(
    paper="sublinear",
    table="Memory",
    row="1,000 layers",
    column="activations / plain",
    theirs=0.146,
    ours=0.073,
    size="paper",
    device="a GPU",
    versions={"torch": "2.13.0"},
    date="2026-01-02",
)


def test_a_page_has_both_values_their_ratio_and_their_circumstances() -> None:
    page = markdown([FIGURE])
    assert "## Memory" in page
    assert "On a GPU, size paper, 2026-01-02, with torch 2.13.0." in page
    assert "| 1,000 layers | activations / plain | 0.146 | 0.073 | 0.50 |  |" in page


def test_a_row_without_a_value_gives_a_reason_and_keeps_the_table_intact() -> None:
    lost = msgspec.structs.replace(FIGURE, row="500 layers", ours=None, reason="out of memory")
    assert "| 500 layers | activations / plain | 0.146 |  |  | out of memory |" in markdown([FIGURE, lost])


def test_values_missing_for_the_same_reason_share_a_line() -> None:
    lost = [
        msgspec.structs.replace(FIGURE, column=column, theirs=theirs, ours=None, reason="refused: no\nway | out")
        for column, theirs in (("peak", None), ("time", 1.3))
    ]
    table = markdown([FIGURE, *lost]).splitlines()
    assert table[-2:] == [
        "| 1,000 layers | activations / plain | 0.146 | 0.073 | 0.50 |  |",
        "| 1,000 layers | peak; time | -; 1.3 |  |  | refused: no way / out |",
    ]


def test_a_later_value_replaces_an_earlier_one_and_a_truncated_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "papers.jsonl"
    assert read(path) == []
    append(path, FIGURE)
    later = msgspec.structs.replace(FIGURE, ours=0.08)
    append(path, later)
    with path.open("ab") as file:
        file.write(b'{"paper": "subl')
    assert read(path) == [later]


def test_a_table_of_several_days_names_them_and_every_version() -> None:
    later = msgspec.structs.replace(FIGURE, row="2,000 layers", versions={"torch": "2.14.0"}, date="2026-02-03")
    assert "On a GPU, size paper, 2026-01-02 to 2026-02-03, with torch 2.13.0 and 2.14.0." in markdown([FIGURE, later])


def test_lines_can_be_read_in_the_order_in_which_they_were_last_written(tmp_path: Path) -> None:
    path = tmp_path / "papers.jsonl"
    other = msgspec.structs.replace(FIGURE, row="2,000 layers")
    append(path, FIGURE, other)
    append(path, FIGURE)
    assert read(path) == [FIGURE, other]
    assert read(path, latest_last=True) == [other, FIGURE]


def test_a_truncated_line_does_not_corrupt_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "papers.jsonl"
    append(path, FIGURE)
    with path.open("ab") as file:
        file.write(b'{"paper":"subl')
    other = msgspec.structs.replace(FIGURE, row="2,000 layers")
    append(path, other)
    assert read(path) == [FIGURE, other]
