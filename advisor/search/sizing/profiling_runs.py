"""Make the memory model of a combination from its profiling runs."""

from __future__ import annotations

from advisor.measure.measurement import Sizing
from advisor.predict.prediction import MemoryPrediction
from advisor.search.sizing.memory_model import MemoryModel

__all__ = ["memory_model_of"]


def memory_model_of(sizing: Sizing, prediction: MemoryPrediction | None) -> MemoryModel:
    """The memory model of a combination.

    Args:
        sizing: The profiling runs, at least one.
        prediction: Their prediction allocation by allocation, if there is one.
    """
    return MemoryModel.fit(sizing) if prediction is None else MemoryModel.predicted(prediction, sizing)
