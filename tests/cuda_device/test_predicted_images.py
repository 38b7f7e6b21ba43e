"""Predictions against torch's allocator on the device, for images and sound; the aims are those of the whole table.

Nine policies at two batches for each model, on the device and by profile: nothing of the table is left out but depth.
"""

from __future__ import annotations

import pytest

from tests.cuda_device.prediction_table import check


@pytest.mark.slow
@pytest.mark.parametrize("model", ["convnext", "mobilenet", "regnet", "swin", "vit", "whisper"])
def test_what_is_predicted_is_what_the_allocator_takes(model: str) -> None:
    check(model)
