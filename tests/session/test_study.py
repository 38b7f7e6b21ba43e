"""A study folder is ours and this study's, or it is left alone."""

from pathlib import Path

import filelock
import msgspec
import pytest

from advisor.errors import OutputFolderError
from advisor.session.study import StudyMarker, check_folder, default_folders, locked, open_study
from advisor.trial.folder import StudyFolder

MARKER = StudyMarker(
    schema=2,
    workload={"name": "gpt2", "fingerprint": "aa"},
    hardware={"kind": "cuda", "name": "a GPU", "memory_bytes": 2**36, "host_cores": 8, "driver": "550"},
    versions={"torch": "2.13.0"},
    request="rr",
    asked={"goal": "faster"},
    memory_limit_bytes=100,
)


def test_a_new_folder_becomes_the_studys_and_is_recognized_afterwards(tmp_path: Path) -> None:
    folder, marker = open_study(tmp_path / "new", MARKER)
    assert folder.path == tmp_path / "new"
    assert marker == MARKER
    assert open_study(tmp_path / "new", MARKER)[1] == MARKER


def test_a_continued_study_keeps_its_memory_limit(tmp_path: Path) -> None:
    open_study(tmp_path / "new", MARKER)
    later = msgspec.structs.replace(MARKER, memory_limit_bytes=99)
    assert open_study(tmp_path / "new", later)[1].memory_limit_bytes == 100


def test_a_folder_of_another_study_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    open_study(tmp_path, MARKER)
    other = msgspec.structs.replace(MARKER, versions={"torch": "2.14.0"}, asked={"goal": "bigger"})
    with pytest.raises(OutputFolderError, match=r"torch: 2\.13\.0 -> 2\.14\.0, goal: faster -> bigger"):
        check_folder(tmp_path, other)


def test_a_folder_with_other_files_is_refused_and_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(OutputFolderError, match="other files"):
        open_study(tmp_path, MARKER)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_follower_of_another_machine_may_have_started_first(tmp_path: Path) -> None:
    StudyFolder(tmp_path).follower_log(1).write_text("waiting")
    assert open_study(tmp_path, MARKER)[1] == MARKER
    assert (tmp_path / "momadvise-node-1.log").exists()


def test_a_process_that_looks_while_another_begins_the_study_is_not_misled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look for the marker and the look at the files, another rank writes the marker and goes on."""
    (tmp_path / ".study.json.4711").write_text("half of a mark")
    assert check_folder(tmp_path, MARKER) is None

    def listed_late(path: Path) -> list[Path]:
        monkeypatch.undo()
        open_study(tmp_path, MARKER)
        return [path / "trials"]

    monkeypatch.setattr(Path, "iterdir", listed_late)
    assert check_folder(tmp_path, MARKER) == MARKER


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputFolderError, match="is a file"):
        check_folder(tmp_path / "file", MARKER)
    with pytest.raises(OutputFolderError, match="can be written"):
        open_study(tmp_path / "file" / "below", MARKER)


def test_a_marker_that_cannot_be_understood_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(OutputFolderError, match="cannot be understood"):
        open_study(tmp_path, MARKER)
    assert (tmp_path / "study.json").read_text() == "{}"


def test_an_edited_model_gets_a_folder_of_its_own() -> None:
    edited = msgspec.structs.replace(MARKER, workload={"name": "gpt2", "fingerprint": "bb"})
    folders, others = default_folders(MARKER), default_folders(edited)
    first = next(folders)
    assert first != next(others)
    assert first.name.startswith("gpt2-")
    assert next(folders).name == f"{first.name}-2", "for when something else has changed that the model reads"


def test_one_process_at_a_time_tunes_into_a_folder(tmp_path: Path) -> None:
    other = filelock.FileLock(tmp_path / "lock")
    with other, pytest.raises(OutputFolderError, match="another one is using"), locked(tmp_path, on_wait=None):
        pass
    with locked(tmp_path, on_wait=None):
        pass
