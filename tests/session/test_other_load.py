"""A device that others keep busy is measured all the same, but the user is told."""

from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.contention import Load
from advisor.session.setup.other_load import notes_on_device, notes_on_load
from tests.methods.tiny import cpu, gpu


def test_nothing_is_said_of_an_idle_machine_nor_of_busy_cores_beside_a_gpu() -> None:
    assert notes_on_load(gpu((9, 0)), Load(2.0, 8)) == []
    assert notes_on_load(cpu(), Load(0.4, 8)) == []


def test_a_busy_gpu_is_named() -> None:
    assert notes_on_load(gpu((9, 0)), Load(2.0, 8, {"GPU 0": 0.5})) == [
        "GPU 0 is 50% busy: measurements will be noisy (--wait-idle waits)"
    ]


def test_busy_cores_are_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (note,) = notes_on_load(cpu(host_cores=8), Load(2.6, 8, names=("cc1plus 260%",)))
    assert note.startswith("other processes keep 2.6 of 8 cores busy (cc1plus 260%)")
    assert "--wait-idle waits" in note
    assert "OMP_NUM_THREADS=5" in note


def test_who_has_left_the_others_their_cores_is_told_of_the_scatter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (note,) = notes_on_load(cpu(host_cores=2), Load(1.0, 2))
    assert "measurements will be noisy" in note
    assert "OMP_NUM_THREADS" not in note


def test_a_device_in_software_is_called_one() -> None:
    (note,) = notes_on_device(msgspec.structs.replace(gpu((9, 0)), simulated=True))
    assert note.startswith("the device is simulated (by MOMADVISE_SIMULATED_DEVICE)")
    assert notes_on_device(gpu((9, 0))) == []
