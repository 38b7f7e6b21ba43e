"""Predictions against torch's allocator on the device, for text; the aims are those of the whole table.

Nine policies for each model of fewer blocks, on the device at both batches of the table, by profile at the larger one.
"""

from __future__ import annotations

import pytest

from tests.cuda_device.prediction_table import check


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bart", "by_hand", "gpt2", "llama", "mamba", "mixtral", "opt", "roberta", "t5"])
def test_what_is_predicted_is_what_the_allocator_takes(model: str) -> None:
    check(model)
