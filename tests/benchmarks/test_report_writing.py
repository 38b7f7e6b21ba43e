"""The benchmark of the report page grows a study to as many policies as it says."""

from __future__ import annotations

from pathlib import Path

from advisor.report.page.finished import read_finished
from advisor.report.page.study_part import study_part
from benchmarks.report_writing import grown, measured_row, page
from tests.report.page.folders import faster_study


def test_a_grown_study_has_so_many_policies_each_with_profiling_runs_and_a_measurement(tmp_path: Path) -> None:
    large = grown(read_finished(faster_study(tmp_path / "study")), 40)
    part = study_part(large, "s0")
    assert len(large.answer.recommendation.ranking) == 40
    assert len([one for one in part.throughput if one.predicted]) >= 34
    assert len({one.combination for one in part.policies}) >= 40


def test_the_page_has_a_line_for_each_report(tmp_path: Path) -> None:
    row = measured_row("a study", [read_finished(faster_study(tmp_path / "study"))], tmp_path / "kept.html")
    assert row.size == (tmp_path / "kept.html").stat().st_size
    assert f"| a study | {row.policies} |" in page([row], "a device")
