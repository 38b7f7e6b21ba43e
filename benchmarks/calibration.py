"""Predicted step times, calibrated with measurements of the same training."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import msgspec
import numpy as np

from advisor.hardware.rates import DeviceRates
from advisor.predict.roofline import PredictedStep, predict_step
from advisor.predict.step_work import StepWork

__all__ = ["TimePrediction"]


class TimePrediction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicts the time of one training's step at any batch.

    Attributes:
        work: Of a step.
        rates: Of the device.
        measured_seconds: Batch -> measured seconds of a step; empty before the first trial.
    """

    work: StepWork
    rates: DeviceRates
    measured_seconds: dict[int, float] = {}

    def calibrated(self, measured_seconds: Mapping[int, float]) -> TimePrediction:
        """Return a copy calibrated with measured step times.

        One measured batch gives a factor between roofline and device for all batches and phases. Two or more give a
        straight line in the batch, and the roofline only divides the time among the phases. A line that falls, or is
        negative at some batch, is noise: then the median factor is used.

        Args:
            measured_seconds: Batch -> seconds; added to what is known.
        """
        assert all(seconds > 0 for seconds in measured_seconds.values()), f"times are positive, got {measured_seconds}"
        return msgspec.structs.replace(self, measured_seconds=self.measured_seconds | dict(measured_seconds))

    def at(self, batch: int) -> PredictedStep:
        """The predicted step at a batch."""
        roofline = predict_step(self.work, batch, self.rates)
        if not self.measured_seconds:
            return roofline
        factor = self._seconds(batch, roofline) / roofline.predicted_seconds
        return roofline.scaled(factor, tuple(self.measured_seconds))

    def _seconds(self, batch: int, roofline: PredictedStep) -> float:
        batches, seconds = zip(*sorted(self.measured_seconds.items()), strict=True)
        if len(batches) > 1:
            # Weighted so that relative errors count equally: noise is proportional to time.
            slope, intercept = np.polyfit(batches, seconds, 1, w=1 / np.array(seconds))
            line = float(intercept + slope * batch)
            if slope >= 0 and line > 0:
                return line
        factors = [
            measured / predict_step(self.work, known, self.rates).predicted_seconds
            for known, measured in zip(batches, seconds, strict=True)
        ]
        return float(statistics.median(factors)) * roofline.predicted_seconds
