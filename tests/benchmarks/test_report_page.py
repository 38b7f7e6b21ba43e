"""The benchmark of the report page: who asks what it takes starts no browser and changes no result."""

from __future__ import annotations

import pytest

from benchmarks import report_page


def test_the_help_measures_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(report_page, "open_chromium", lambda: pytest.fail("a browser was started"))
    with pytest.raises(SystemExit) as ended:
        report_page.main(["--help"])
    assert ended.value.code == 0
    assert "docs/results/report-page.md" in capsys.readouterr().out
