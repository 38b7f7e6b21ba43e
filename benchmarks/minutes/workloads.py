"""The workloads: four examples sized for the machine at hand, and six small models of different kinds."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

__all__ = ["SIZES", "Size", "Workload"]

_ROOT = Path(__file__).resolve().parents[2]
_SMALL = _ROOT / "benchmarks" / "workloads"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A model file.

    Attributes:
        name: Its name in the rows.
        path: The file.
    """

    name: str
    path: Path

    @property
    def own_batch(self) -> int | None:
        """``BATCH_SIZE`` of the file, if it has one; the file is not executed."""
        found = re.search(r"^BATCH_SIZE = (\d+)\b", self.path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return None if found is None else int(found[1])


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and for how long.

    Attributes:
        workloads: The workloads.
        arguments: Arguments of ``momadvise`` besides the goal, the file and the output folder.
        settings: Names of the reference settings to measure; all if empty.
        turn_seconds: Shortest turn, unless a step takes longer.
        least_rounds: Minimum number of rounds, unless the time is up after three.
        pair_seconds: Longest time of a comparison.
    """

    workloads: tuple[Workload, ...]
    arguments: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    turn_seconds: float = 0.4
    least_rounds: int = 8
    pair_seconds: float = 60.0


def _small(*names: str) -> tuple[Workload, ...]:
    return tuple(Workload(name=name, path=_SMALL / f"{name}.py") for name in names)


SIZES = {
    "full": Size(
        workloads=(
            *(
                Workload(name=name, path=_ROOT / "examples" / f"{name}.py")
                for name in ("gpt2", "bert_classifier", "resnet50", "unet")
            ),
            *_small("small_gpt2", "small_bert", "small_resnet", "small_unet", "small_lstm", "small_recommender"),
        ),
    ),
    "smoke": Size(
        workloads=_small("tiny_cnn"),
        arguments=("--search-space", "smoke", "--trials", "2", "--time-limit", "5s"),
        settings=("fused at 2x the batch",),
        turn_seconds=0.02,
        least_rounds=6,
        pair_seconds=1.0,
    ),
}
"""Value of ``--size`` -> size."""
