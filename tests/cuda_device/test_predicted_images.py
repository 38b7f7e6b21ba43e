"""Predictions against torch's allocator on the device, for images and sound; the aims are those of the whole table.

Nine policies for each model of fewer blocks, on the device at both batches of the table (of long models at the larger
one), by profile at the larger one.
"""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest

from tests.cuda_device.prediction_table import check, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODELS = ["convnext", "mobilenet", "regnet", "swin", "vit", "whisper"]


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest) -> CompletedProcess[str]:
    """The process that made the rows of all models that this run asks for."""
    asked = [item.callspec.params["model"] for item in request.session.items if item.path == request.path]
    return rows_of(asked)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_predicted_is_what_the_allocator_takes(model: str, ended: CompletedProcess[str]) -> None:
    check(model, ended)
