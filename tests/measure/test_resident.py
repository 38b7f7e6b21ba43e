from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from advisor.measure.memory.cpu import ResidentPeak
from tests.measure.tiny import meter, tiny_training

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_peak_is_that_of_the_timed_steps() -> None:
    training = tiny_training()
    batch = torch.randn(4, 8)
    training.step(batch)
    _, memory = meter().measured_step(training, batch)
    assert memory.peak_resident_bytes is None
    _hold(256 * MIB)  # gone before the steps
    peaks = []
    for taken in (0, 128 * MIB):
        with meter().watching() as completed:
            _hold(taken)
            peaks.append(completed(memory).peak_resident_bytes or 0)
    assert peaks[0] > 0
    assert 120 * MIB < peaks[1] - peaks[0] < 140 * MIB


def _hold(size: int) -> None:
    """Touch so much fresh memory, and give it back; a tensor may get memory that this process has kept."""
    if size:
        with mmap.mmap(-1, size) as memory:
            for page in range(0, size, mmap.PAGESIZE):
                memory[page] = 1


def test_where_the_system_does_not_tell_there_is_no_figure(tmp_path: Path) -> None:
    peak = ResidentPeak(tmp_path / "missing")
    peak.restart()
    assert peak.peak_bytes() is None
    (tmp_path / "status").write_text("Name: x\nVmHWM:\t  2048 kB\n")
    (tmp_path / "clear_refs").touch(mode=0o400)
    assert ResidentPeak(tmp_path).peak_bytes() == 2 * MIB
