"""A CPU that others keep busy is measured all the same, but the user is told."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from advisor.hardware.host import host_cores
from advisor.session.setup.other_load import busy_cores, notes_on_load
from tests.methods.tiny import cpu, gpu


def test_nothing_is_said_of_a_gpu_or_an_idle_machine() -> None:
    assert notes_on_load(gpu((9, 0)), busy=lambda: 2.0) == []
    assert notes_on_load(cpu(), busy=lambda: 0.4) == []


def test_busy_cores_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (note,) = notes_on_load(cpu(host_cores=8), busy=lambda: 2.6)
    assert note.startswith("other processes keep 2.6 of 8 cores busy")
    assert "OMP_NUM_THREADS=5" in note


def test_who_has_left_the_others_their_cores_is_told_of_the_scatter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (note,) = notes_on_load(cpu(host_cores=2), busy=lambda: 1.0)
    assert "measurements will be noisy" in note
    assert "OMP_NUM_THREADS" not in note


@pytest.mark.skipif(psutil.cpu_count() != host_cores(), reason="a part of the machine's cores")
def test_another_process_that_works_is_seen() -> None:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert max(busy_cores(0.5) for _ in range(5)) > 0.3
    finally:
        other.kill()
        other.wait()
