"""The papers' pages show the lines under each paper's citation."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import msgspec
import pytest

from benchmarks.json_lines import append
from benchmarks.papers import __main__ as command
from benchmarks.papers.command import Options
from benchmarks.papers.figures import read
from benchmarks.papers.page import lines_with_pages, page, page_of, write_page
from tests.benchmarks.papers.test_figures import FIGURE

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


def test_the_committed_pages_match_their_lines() -> None:
    for lines in lines_with_pages(RESULTS):
        assert page_of(lines).read_text(encoding="utf-8") == page(read(lines)), "run: python -m benchmarks.papers.page"
    expected = {page_of(lines) for lines in lines_with_pages(RESULTS)}
    assert set(RESULTS.glob("papers-*.md")) == expected, "a page without lines"


def test_a_paper_has_its_citation_introduction_and_a_section_per_size() -> None:
    small = msgspec.structs.replace(FIGURE, size="smoke", ours=0.5)
    text = page([small, FIGURE])
    citation = '## Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"'
    order = [citation, "Memory against depth", "### Size paper", "#### Memory", "0.073", "### Size smoke", "| 0.5 |"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert text.count(citation) == 1
    assert "--size smoke" not in text, "how to run it is in the module, the page says which"


def test_tables_without_paper_values_come_last() -> None:
    own = msgspec.structs.replace(FIGURE, paper="advice", theirs=None)
    text = page([own, FIGURE])
    assert text.index("## Chen et al.") < text.index("## What to train with\n")


def test_a_paper_without_a_module_keeps_its_values() -> None:
    assert "## forgotten\n" in page([msgspec.structs.replace(FIGURE, paper="forgotten")])


def test_there_is_no_page_without_lines(tmp_path: Path) -> None:
    write_page(tmp_path / "papers-cpu.jsonl")
    assert page([]) == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("paper", [module.__name__.rpartition(".")[2] for module in command._PAPERS])
def test_every_paper_module_has_a_citation_and_an_introduction(paper: str) -> None:
    text = page([msgspec.structs.replace(FIGURE, paper=paper)])
    _, introduction = text.split("\n## ", 1)
    citation, *prose = introduction.split("### ")[0].strip().split("\n\n")
    assert not citation.endswith((".", ":"))
    assert len(prose) >= 2, f"{paper}'s docstring must begin with `CITATION: what is in it.` and say how to read it"


def test_the_process_of_the_command_never_loads_torch() -> None:
    code = "import sys, benchmarks.papers.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=RESULTS.parents[1], check=False).returncode == 0


def test_a_failing_paper_does_not_prevent_the_page_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "papers-cuda.jsonl"

    def fail(options: Options) -> None:
        raise RuntimeError("the device fell off the bus")

    broken, fine = types.ModuleType("broken"), types.ModuleType("fine")
    broken.run, fine.run = fail, lambda options: append(options.output, FIGURE)  # type: ignore[attr-defined]
    monkeypatch.setattr(command, "_PAPERS", (broken, fine))
    monkeypatch.setattr("sys.argv", ["papers", "--device", "cpu", "--output", str(lines)])
    assert command.main() == 1
    assert "#### Memory" in (tmp_path / "papers-gpu.md").read_text()
    assert "not completed: broken" in capsys.readouterr().err
