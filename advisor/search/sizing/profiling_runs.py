"""From the short runs of a combination to its memory model."""

from __future__ import annotations

from advisor.measure.measurement import Sizing
from advisor.predict.prediction import MemoryPrediction
from advisor.search.sizing.memory_model import MemoryModel

__all__ = ["memory_model_of"]


def memory_model_of(sizing: Sizing, prediction: MemoryPrediction | None) -> MemoryModel:
    """What short runs teach of a combination.

    Args:
        sizing: The short runs, at least one.
        prediction: What they predict allocation by allocation, where they do.
    """
    return MemoryModel.fit(sizing) if prediction is None else MemoryModel.predicted(prediction, sizing)
