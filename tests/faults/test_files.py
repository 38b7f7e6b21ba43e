"""A file is whole at every moment; what a killed process left goes with the next one, and nothing else does."""

from __future__ import annotations

import ast
import errno
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

import advisor.files
from advisor.errors import OutputFolderError
from advisor.files import PrivateFolder, add_line, write_whole
from advisor.measure.state.first_gradient import save_gradient
from advisor.session.study import open_study
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial
from advisor.trial.worker.failure import failed_result
from tests.session.test_study import MARKER
from tests.trial.specs import spec

PACKAGE = Path(advisor.files.__file__).parent
PLACE = advisor.files._place()
GONE = next(number for number in range(2**22 - 1, 0, -1) if not psutil.pid_exists(number))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this process makes its temporary ones."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_its_content_and_its_name_are_on_disk_before_the_writer_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append((tmp_path / "file").exists())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    write_whole(tmp_path / "file", "text")
    assert synced == [False, True], "the content before it has its name, the folder after"
    synced.clear()
    add_line(tmp_path / "lines", b"one")
    assert len(synced) == 2
    add_line(tmp_path / "lines", b"two")
    assert len(synced) == 3, "the name is there already"
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


def test_a_failure_names_the_file_and_leaves_the_old_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    for write in (lambda: write_whole(path, "new"), lambda: add_line(path, b"more")):
        with pytest.raises(OSError, match="No space left on device") as raised:
            write()
        assert raised.value.filename == str(path), "the system itself does not say which"
    assert path.read_text().startswith("old")
    assert os.listdir(tmp_path) == ["file"]


def test_tensors_that_find_no_room_are_a_full_disk_and_not_torch_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __init__(self, file: object) -> None:
            self.write = full

        def flush(self) -> None: ...

    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda content, file: save(content, Full(file)))
    with pytest.raises(OSError, match="No space left on device") as raised:
        save_gradient(model, tmp_path / "gradient.pt")
    assert raised.value.filename == str(tmp_path / "gradient.pt")
    assert os.listdir(tmp_path) == []


def test_a_model_that_finds_the_disk_full_is_tried_again() -> None:
    try:
        try:
            full()
        except OSError as error:
            raise RuntimeError("the log cannot be written") from error
    except RuntimeError as error:
        result = failed_result(spec(), error)
    assert result.outcome is Outcome.LOST
    assert result.outcome.is_by_chance
    assert result.reason == "the disk is full: No space left on device"


def test_nothing_else_in_the_package_replaces_a_file() -> None:
    """A writer of its own would be neither whole nor on disk."""
    wrote = re.compile(
        r"\.write_text\(|\.write_bytes\(|os\.replace\(|os\.rename\(|open\([^)]*[\"'][wax]|mkstemp|mkdtemp"
    )
    found = {
        (path.relative_to(PACKAGE).as_posix(), line.strip())
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if wrote.search(line) and "os.devnull" not in line
    }
    elsewhere = {(name, line) for name, line in found if name != "files.py"}
    assert elsewhere == {
        ("measure/memory/cpu.py", '(self._root / "clear_refs").write_text("5")'),  # the kernel's
        ("trial/guardian.py", 'Path("/proc/self/oom_score_adj").write_text("1000")'),  # the kernel's
        ("trial/process/connection.py", 'output = log.open("ab")'),  # a log
    }
    assert not [path for path in PACKAGE.rglob("*.py") if "TemporaryDirectory" in _names(path)]


def _names(path: Path) -> set[str]:
    tree = ast.walk(ast.parse(path.read_text()))
    return {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in tree}


def _age(path: Path) -> None:
    """As if it had been written before every process of today began."""
    os.utime(path, (1, 1))


def test_the_half_of_a_studys_first_file_goes_when_it_is_begun_again(tmp_path: Path) -> None:
    half = tmp_path / f".study.json.{PLACE}-{GONE}.part"
    half.write_text("half")
    open_study(tmp_path, MARKER)
    assert not half.exists()


def test_halves_of_files_go_once_their_process_is_gone(tmp_path: Path) -> None:
    open_study(tmp_path, MARKER)
    trial = tmp_path / "trials" / "time-1"
    trial.mkdir(parents=True)
    dead = [folder / f".result.json.{PLACE}-{GONE}.part" for folder in (tmp_path, trial)]
    numbered_anew = tmp_path / f".answer.json.{PLACE}-{os.getpid()}.part"
    alive = tmp_path / f".policy.yaml.{PLACE}-{os.getpid()}.part"
    others = [
        tmp_path / f".answer.json.00000000-{GONE}.part",  # another machine's
        tmp_path / f".notes.{GONE}.part",
        tmp_path / ".wrapper.py.part",
        tmp_path / "answer.json.part",
    ]
    for path in (*dead, numbered_anew, alive, *others):
        path.write_text("half")
    _age(numbered_anew)
    open_study(tmp_path, MARKER)
    left = set(tmp_path.rglob("*"))
    assert left.isdisjoint({*dead, numbered_anew})
    assert left >= {alive, *others}, "what lives, and what is not ours, stays"


@pytest.mark.parametrize("make", [lambda: PrivateFolder("look"), lambda: PrivateFolder("ranks")])
def test_folders_of_dead_processes_go_with_the_next_one(temporary: Path, make: Callable[[], PrivateFolder]) -> None:
    left = temporary / f"momadvise-verify-{PLACE}-{GONE}-abc"
    alive = temporary / f"momadvise-verify-{PLACE}-{os.getpid()}-abc"
    others = [
        temporary / f"momadvise-verify-00000000-{GONE}-abc",
        temporary / "momadvise-mine",
        temporary / f"momadvise-verify-{GONE}",
    ]
    for folder in (left, alive, *others):
        folder.mkdir()
        (folder / "file").write_text("")
    elsewhere = temporary / f"momadvise-look-{PLACE}-{GONE}-abc"
    elsewhere.symlink_to(others[1])
    with make() as own:
        assert own.stat().st_mode & 0o077 == 0, "this user's alone"
        assert set(temporary.iterdir()) == {alive, *others, own}
    assert set(temporary.iterdir()) == {alive, *others}
    assert (others[1] / "file").exists(), "where a link leads is not ours"


@pytest.mark.slow
def test_a_comparison_that_cannot_be_kept_says_so_and_is_no_failure_of_the_trial(tmp_path: Path) -> None:
    """The reference run's gradient cannot be written: the worker reports it, and the next command runs it again."""
    (tmp_path / "file").write_text("no folder")
    with Runner(tmp_path) as runner:
        asked = spec(kind=FidelityTrial, write_gradient_to=str(tmp_path / "file" / "gradient.pt"))
        with pytest.raises(
            OutputFolderError, match=r"gradient.pt cannot be written: File exists\. .* run the same command again"
        ):
            runner.run(asked)
        assert not (tmp_path / "trials" / asked.key / "result.json").exists()
