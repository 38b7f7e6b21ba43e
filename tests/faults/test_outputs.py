"""What is printed may be lost; the search goes on, its answer is stored, and nothing ends in a traceback."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.cli import main
from advisor.decide.answer import load_answer
from advisor.report.streams import streams_kept
from advisor.trial.folder import StudyFolder
from tests.session.command import COMMAND

TINY = Path(__file__).parents[1] / "session" / "workloads" / "tiny.py"


@contextlib.contextmanager
def stream(path: str = "", encoding: str = "utf-8") -> Iterator[io.TextIOWrapper]:
    """A stream into a file, or into a pipe whose reader is gone."""
    if path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    raw = io.FileIO(descriptor, "wb")
    yield io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding)
    raw.close()


def run(*arguments: str | Path, stdout: io.TextIOWrapper, stderr: io.TextIOWrapper) -> int:
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        return main([str(one) for one in arguments])


@pytest.mark.parametrize("arguments", [("--help",), ("methods",), ("--version",), ("methods", "swap")])
def test_a_full_output_is_said_and_is_no_success(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with stream("/dev/full") as full, stream(str(tmp_path / "said")) as said:
        assert run(*arguments, stdout=full, stderr=said) == 2
    text = (tmp_path / "said").read_text()
    assert (
        "standard output must be writable, but writing failed: No space left on device. Fix that and run the same "
        "command again" in text
    )
    assert len(text.splitlines()) == 1


def test_a_reader_that_wants_no_more_is_a_success() -> None:
    with stream() as gone, stream() as gone_too:
        assert run("methods", stdout=gone, stderr=gone_too) == 0


@pytest.mark.parametrize(("arguments", "status"), [(("no.py",), 2), (("--nonsense",), 2), (("methods",), 0)])
@pytest.mark.parametrize("path", ["/dev/full", ""])
def test_what_is_said_beside_it_may_be_lost(path: str, arguments: tuple[str, ...], status: int, tmp_path: Path) -> None:
    with stream(str(tmp_path / "shown")) as shown, stream(path) as lost:
        assert run(*arguments, stdout=shown, stderr=lost) == status


@pytest.mark.parametrize("verb", ["--version", "hardware", "no.py"])
def test_closed_streams_are_nobodys(verb: str, tmp_path: Path) -> None:
    """What is opened next must not become the standard output of somebody."""
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *COMMAND, verb], cwd=tmp_path, timeout=60, check=False
    )
    assert closed.returncode == (2 if verb == "no.py" else 0)


def test_what_is_opened_first_is_no_standard_stream_where_these_are_closed(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from advisor.report.streams import streams_kept\n"
        "os.close(1); os.close(2)\n"
        "with streams_kept():\n"
        f"    opened = os.open({str(tmp_path / 'precious')!r}, os.O_WRONLY | os.O_CREAT)\n"
        "    print('shown'); os.system('echo shown; echo said >&2')\n"
        "    os._exit(opened)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode > 2
    assert (tmp_path / "precious").read_bytes() == b""


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "+-3% ---- \\u6587\\ud83d\\ude00\\udce9\n"),
        ("latin-1", "±3% ---- \\u6587\\ud83d\\ude00\\udce9\n"),
        ("utf-8", "±3% ──── 文😀\\udce9\n"),
    ],
)
def test_a_stream_shows_what_it_can_and_the_rest_in_ascii(encoding: str, shown: str, tmp_path: Path) -> None:
    text = "±3% ──── 文😀\udce9"
    with (
        stream(str(tmp_path / "shown"), encoding) as out,
        contextlib.redirect_stdout(out),
        streams_kept(),
    ):
        print(text)
    assert (tmp_path / "shown").read_text(encoding) == shown


def test_json_is_json_in_every_encoding(tmp_path: Path) -> None:
    with stream(str(tmp_path / "shown"), "ascii") as out, stream() as gone:
        assert run("文😀.py", "--json", stdout=out, stderr=gone) == 2
    assert "there is no file 文😀.py" in json.loads((tmp_path / "shown").read_text("ascii"))["message"]


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="needs descriptors that do not wait")
def test_a_slow_reader_gets_everything_although_somebody_has_set_the_stream_not_to_wait(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from advisor.report.streams import streams_kept\n"
        "os.set_blocking(1, False)\n"
        "with streams_kept() as streams:\n"
        "    print('x' * 1_000_000)\n"
        "sys.exit(streams.lost is not None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(process.stdout.read()) == 1_000_001
    assert process.returncode == 0


@pytest.mark.slow
def test_a_search_that_nobody_reads_goes_on_and_its_answer_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages go to ``| head``, its answer to a terminal that knows ASCII; then that is full."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("advisor.hardware.detect._held_here", lambda *_: 0)
    quick = ("--search-space", "smoke", "--trials", "1", "--time-limit", "60s", "--memory-limit", "6MiB")
    command = (TINY, *quick, "--device", "cpu", "--output", "out")
    with stream("shown", "ascii") as out, stream() as gone:
        assert run(*command, stdout=out, stderr=gone) == 0
    text = Path("shown").read_text("ascii")
    assert "\nMeasured\n" in text
    assert "\nWhy\n" in text, "to the end, whatever was measured"
    assert "+-" in text
    answer = load_answer(StudyFolder(tmp_path / "out"))
    assert answer is not None
    assert answer.complete
    with stream("/dev/full") as full, stream() as gone:
        assert run(*command, "--json", stdout=full, stderr=gone) == 2
