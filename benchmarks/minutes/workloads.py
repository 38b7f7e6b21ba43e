"""The workloads: four examples in their size for the machine at hand, and six small models of different kinds."""

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
        name: How rows call it.
        path: The file.
    """

    name: str
    path: Path

    @property
    def own_batch(self) -> int | None:
        """``BATCH_SIZE`` of the file, if it states one; the file is not run."""
        found = re.search(r"^BATCH_SIZE = (\d+)\b", self.path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        return None if found is None else int(found[1])


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and how long.

    Attributes:
        workloads: Whom momadvise is asked about.
        arguments: Of ``momadvise`` besides the goal, the file and the output folder.
        settings: Names of the reference settings that are measured; all of them if empty.
        turn_seconds: What a turn takes at least, unless one step takes longer.
        least_rounds: So many, unless the seconds are over and three were made.
        pair_seconds: What a comparison takes at most.
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
"""By the name that ``--size`` has."""
