"""``momadvise report``: a page of finished studies, and one message for every mistake; no other file is touched."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from advisor.cli import main
from advisor.decide.answer import load_answer
from advisor.errors import OptionError
from advisor.measure.in_turn import Speedup
from advisor.report.page.page_text import is_page
from advisor.report.page.writing import write_report, write_report_beside
from advisor.trial.folder import StudyFolder
from tests.decide.examples import goal
from tests.report.scenario import CONFIRMED, recommendation

from .folders import faster_study, write_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return write_study(tmp_path / "study", recommendation(), goal())


def refused(*folders: Path, output: Path | None = None) -> str:
    with pytest.raises(OptionError) as error:
        write_report(folders, output)
    return str(error.value)


def test_one_study_has_its_page_in_its_folder(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(study)]) == 0
    assert is_page(study / "report.html")
    assert capsys.readouterr().out == f"written: {study / 'report.html'}\n"


def test_several_have_one_page_here(tmp_path: Path, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = faster_study(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(study), "other"]) == 0
    assert is_page(tmp_path / "report.html")
    assert not (other / "report.html").exists()


def test_the_page_can_be_elsewhere_and_is_written_again(tmp_path: Path, study: Path) -> None:
    output = tmp_path / "elsewhere.html"
    for _ in range(2):
        assert main(["report", str(study), "--output", str(output)]) == 0
    assert is_page(output)
    assert not (study / "report.html").exists()


@pytest.mark.parametrize("started", [True, False])
def test_it_opens_in_the_browser_or_says_that_there_is_none(
    study: Path, started: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with mock.patch("webbrowser.open", return_value=started) as opened:
        assert main(["report", str(study), "--open"]) == 0
    opened.assert_called_once_with((study / "report.html").as_uri())
    assert ("no browser could be started" in capsys.readouterr().err) is not started


def test_a_folder_is_needed_and_those_that_may_be_meant_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "momadvise: error: the following arguments are required: DIR",
        "Try: momadvise report --help",
    ]
    faster_study(Path("momadvise-runs", "gpt2-1"), workload="gpt2")
    for line in ([], ["."], ["momadvise-runs"], ["momadvise-runs/"]):
        assert main(["report", *line]) == 2
        error, listed = capsys.readouterr().err.splitlines()
        assert "but momadvise-runs is a folder of studies" in error
        assert listed.endswith("  momadvise report momadvise-runs/gpt2-1")


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert "file is a file" in refused(tmp_path / "file")
    assert "is not there" in refused(tmp_path / "nowhere")
    assert "has no study.json" in refused(tmp_path / "empty")


def test_of_a_folder_of_studies_each_is_listed_newest_first_with_the_command_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = Path("runs")
    faster_study(runs / "first", date="2026-01-02", workload="gpt2")
    faster_study(runs / "later today", date="2026-01-03", workload="a\x1b[31mb")
    faster_study(runs / "today", date="2026-01-03", workload="resnet")
    os.utime(runs / "today" / "answer.json", (0, 0))
    (runs / "models").mkdir()
    (runs / "notes.txt").touch()
    assert main(["report", "runs"]) == 2
    error, *listed = capsys.readouterr().err.splitlines()
    assert error.endswith("but runs is a folder of studies. Name one of them, or several for one page:")
    assert listed == [
        "  2026-01-03  faster  a\\x1b[31mb  132 samples/s  momadvise report 'runs/later today'",
        "  2026-01-03  faster  resnet      132 samples/s  momadvise report runs/today",
        "  2026-01-02  faster  gpt2        132 samples/s  momadvise report runs/first",
    ]
    assert main(shlex.split(listed[0].split("momadvise ")[1])) == 0, "the command that it says"


@pytest.mark.parametrize(
    ("before", "speed"), [(2.0, "2.10 times the baseline"), (4.0, "2.10 times the baseline, not reproducible")]
)
def test_the_speed_of_a_listed_study_is_the_one_that_its_answer_promises(
    before: float, speed: str, tmp_path: Path
) -> None:
    found = Speedup(value=2.1, low=2.0, high=2.2, rounds=7)
    confirmed = msgspec.structs.replace(CONFIRMED, speedup=found, promise=found, expected_speedup=before)
    write_study(tmp_path / "one", recommendation(confirmation=confirmed), goal())
    assert f"  2026-01-01  faster  gpt2  {speed}  momadvise report " in refused(tmp_path)


def test_studies_that_have_no_answer_yet_are_counted_and_the_oldest_are_not_listed(study: Path, tmp_path: Path) -> None:
    (study / "answer.json").rename(tmp_path / "answer.json")
    held = "is a folder of studies, with one that has no answer that this version can read. Run the command that began"
    assert held in refused(tmp_path)
    for number in range(22):
        (tmp_path / str(number)).mkdir()
        for name in (tmp_path / "answer.json", study / "study.json"):
            (tmp_path / str(number) / name.name).write_bytes(name.read_bytes())
    os.truncate(tmp_path / "21" / "answer.json", 5)
    *listed, older, unread = refused(tmp_path).splitlines()[1:]
    assert len(listed) == 20
    assert older == "  and 1 older one"
    assert unread == "  and 2 studies without an answer that this version can read"


def test_a_study_without_an_answer_is_refused(study: Path) -> None:
    (study / "answer.json").unlink()
    assert "is empty: nothing was measured yet. Run the command that began it again" in refused(study)
    (study / "ledger.jsonl").write_bytes(msgspec.json.encode(recommendation().winner) + b"\n")
    assert "has no answer" in refused(study)


@pytest.mark.parametrize("content", [b"{}", b"", b'{"recommendation": {"winner": 1}, "new": 2}', b"\xff"])
def test_a_study_of_another_version_is_refused_with_that_version(study: Path, content: bytes) -> None:
    (study / "answer.json").write_bytes(content)
    assert "was written by momadvise 0.1.0, or is damaged" in refused(study)


def test_a_marker_that_cannot_be_understood_is_refused(study: Path) -> None:
    (study / "study.json").write_bytes(b"[1]")
    assert "was written by another version of momadvise" in refused(study)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_study_that_may_not_be_read_is_refused(study: Path) -> None:
    (study / "answer.json").chmod(0)
    assert "cannot be read" in refused(study)


def test_a_study_that_cannot_be_read_is_refused(study: Path) -> None:
    (study / "answer.json").unlink()
    (study / "answer.json").mkdir()
    assert "cannot be read: Is a directory" in refused(study)


def test_a_study_may_be_named_once(study: Path) -> None:
    (study.parent / "link").symlink_to(study)
    assert "the same folder as" in refused(study, study.parent / "link")


def test_a_page_shows_at_most_five_studies(tmp_path: Path) -> None:
    said = refused(*(tmp_path / str(number) for number in range(6)))
    assert said == "One page shows at most 5 studies side by side, but 6 were named. Name fewer."


@pytest.mark.parametrize("name", ["answer.json", "ledger.jsonl", "policy.yaml"])
def test_nothing_is_waited_for_that_is_no_file(name: str, study: Path) -> None:
    (study / name).unlink(missing_ok=True)
    os.mkfifo(study / name)
    assert f"{name} is no file" in refused(study)


def test_a_record_without_end_is_not_read(study: Path) -> None:
    with (study / "ledger.jsonl").open("ab") as file:
        file.truncate(2**40)
    assert "ledger.jsonl is larger than any that a study writes" in refused(study)


def test_another_file_is_never_overwritten(tmp_path: Path, study: Path) -> None:
    output = tmp_path / "thesis.html"
    output.write_text("years of work")
    assert "is another file" in refused(study, output=output)
    assert output.read_text() == "years of work"
    (study / "report.html").write_text("mine")
    assert "is another file" in refused(study)
    dangling, pipe = tmp_path / "dangling.html", tmp_path / "pipe.html"
    dangling.symlink_to(tmp_path / "nowhere" / "page.html")
    os.mkfifo(pipe)
    assert "is another file" in refused(study, output=dangling)
    assert "is another file" in refused(study, output=pipe), "and nobody waits for what comes out of it"


def test_a_page_that_cannot_be_written_is_an_error_of_one_line(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = OSError(28, "No space left on device", str(study / "report.html"))
    with mock.patch("advisor.report.page.writing.write_whole", side_effect=full):
        assert main(["report", str(study)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert not (study / "report.html").exists()


def test_the_page_needs_a_folder_that_is_there(tmp_path: Path, study: Path) -> None:
    assert "is a folder" in refused(study, output=tmp_path)
    assert "does not. Make it first" in refused(study, output=tmp_path / "nowhere" / "page.html")


def test_a_damaged_trial_is_left_out(tmp_path: Path) -> None:
    folder = faster_study(tmp_path / "study")
    for path in (folder / "trials").glob("size-*/result.json"):
        path.write_text("{")
    assert is_page(write_report([folder]))


def test_no_torch_is_loaded(study: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom advisor.cli import main\n"
        f"status = main(['report', {str(study)!r}])\nsys.exit(status or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_run_writes_the_page_beside_its_policy(study: Path) -> None:
    answer = load_answer(StudyFolder(study))
    assert answer is not None
    assert "report" not in answer.files
    assert write_report_beside(answer) is None
    assert answer.files["report"] == study / "report.html"


def test_a_page_that_cannot_be_written_costs_a_note_and_no_answer(study: Path) -> None:
    answer = load_answer(StudyFolder(study))
    assert answer is not None
    (study / "report.html").write_text("mine")
    note = write_report_beside(answer)
    assert note is not None
    assert "report.html was not written: --output must be a new file" in note
    (study / "report.html").unlink()
    for error in (OSError(28, "No space left on device"), ValueError("a mistake of ours"), KeyboardInterrupt()):
        with mock.patch("advisor.report.page.writing.page_of", side_effect=error):
            note = write_report_beside(msgspec.structs.replace(answer))
            assert note is not None
            assert note.endswith("The answer is not affected")
