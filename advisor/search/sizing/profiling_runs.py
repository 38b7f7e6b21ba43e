"""Make the memory model of a combination from its profiling runs."""

from __future__ import annotations

import msgspec

from advisor.measure.measurement import Sizing
from advisor.predict.prediction import MemoryPrediction
from advisor.search.sizing.memory_model import MemoryModel

__all__ = ["memory_model_of"]


def memory_model_of(sizing: Sizing, prediction: MemoryPrediction | None, *, passes: int = 1) -> MemoryModel:
    """The memory model of a combination.

    Args:
        sizing: The profiling runs, at least one.
        prediction: Their prediction allocation by allocation, if there is one.
        passes: Micro-batches of each of their steps.
    """
    points = tuple(msgspec.structs.replace(one, step_seconds=one.step_seconds / passes) for one in sizing.points)
    sizing = msgspec.structs.replace(sizing, points=points)
    return MemoryModel.fit(sizing) if prediction is None else MemoryModel.predicted(prediction, sizing)
