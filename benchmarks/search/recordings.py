"""The workloads with exhaustive tables, and their limits."""

from __future__ import annotations

from pathlib import Path

import msgspec

__all__ = ["RECORDINGS", "SMOKE", "Recording"]

_HERE = Path(__file__).resolve().parent
_WORKLOADS = _HERE.parent / "workloads"
_MIB = 2**20


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What to record.

    Attributes:
        name: Name of the workload.
        workload: Its file.
        space: File of the search space.
        limit_bytes: The memory limit: so low that plain training fits only a fraction of the batch that methods allow.
        largest_batch: Largest batch to try.
        reference_batch: The batch at which plain training is measured repeatedly; it fits.
    """

    name: str
    workload: Path
    space: Path
    limit_bytes: int
    largest_batch: int = 48
    reference_batch: int = 4


def _small(name: str, limit_mib: int) -> Recording:
    return Recording(
        name=name,
        workload=_WORKLOADS / f"small_{name}.py",
        space=_HERE / "spaces" / f"{name}.yaml",
        limit_bytes=limit_mib * _MIB,
    )


RECORDINGS = {
    recording.name: recording
    for recording in (
        _small("gpt2", 24),
        _small("bert", 20),
        _small("resnet", 12),
        _small("unet", 20),
        _small("vit", 24),
        _small("convnext", 24),
    )
}

SMOKE = Recording(
    name="smoke",
    workload=_WORKLOADS / "smoke.py",
    space=_HERE / "spaces" / "smoke.yaml",
    limit_bytes=16 * _MIB,
    largest_batch=16,
    reference_batch=2,
)
