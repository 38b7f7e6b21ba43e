"""From the short runs of a combination to its memory model."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.measure.measurement import Sizing
from advisor.methods.catalogue import get_method
from advisor.methods.use import MethodUse
from advisor.predict.prediction import MemoryPrediction
from advisor.search.memory_model import DEFAULT_MARGIN, MemoryModel

__all__ = ["memory_model_of"]


def memory_model_of(uses: Sequence[MethodUse], sizing: Sizing, prediction: MemoryPrediction | None) -> MemoryModel:
    """What short runs teach of a combination, with as much of a limit left free as its methods need.

    Args:
        uses: The methods.
        sizing: The short runs, at least one.
        prediction: What they foretell allocation by allocation, where they do.
    """
    margin = DEFAULT_MARGIN + max((get_method(use.name).memory_margin for use in uses), default=0.0)
    if prediction is None:
        return MemoryModel.fit(sizing, margin=margin)
    return MemoryModel.foreseen(prediction, sizing, margin=margin)
