from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from advisor.trial.host_memory import OutOfMemoryEvidence


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine whose processes are in version 2 of control groups."""
    for folder in ("proc/self", "sys/fs/cgroup/box"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (tmp_path / "proc/vmstat").write_text("nr_free_pages 7\noom_kill 3\n")
    (tmp_path / "sys/fs/cgroup/box/memory.events").write_text("low 0\noom 0\noom_kill 1\n")
    return tmp_path


def test_old_kills_are_no_evidence(root: Path) -> None:
    assert not OutOfMemoryEvidence(root).found()


@pytest.mark.parametrize("counter", ["proc/vmstat", "sys/fs/cgroup/box/memory.events"])
def test_a_kill_that_was_counted_since_is(root: Path, counter: str) -> None:
    evidence = OutOfMemoryEvidence(root)
    (root / counter).write_text("oom_kill 4\n")
    assert evidence.found()


def test_the_first_version_of_control_groups_counts_too(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("5:cpu:/\n9:memory:/docker/1\n")
    folder = root / "sys/fs/cgroup/memory/docker/1"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 0\n")
    evidence = OutOfMemoryEvidence(root)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 1\n")
    assert evidence.found()


def test_memory_that_was_all_but_used_up_is_evidence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = OutOfMemoryEvidence(root)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1, total=100))
    assert not evidence.found()
    evidence.look()
    assert evidence.found()


def test_a_machine_without_these_files_has_no_evidence(tmp_path: Path) -> None:
    assert not OutOfMemoryEvidence(tmp_path).found()
