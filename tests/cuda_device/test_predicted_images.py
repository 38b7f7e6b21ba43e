"""Predictions against torch's allocator on the device, for images and sound; the aims are those of the whole table.

Two to five policies for each model of fewer blocks, on the device and by profile.
"""

from __future__ import annotations

from subprocess import CompletedProcess

import pytest

from tests.cuda_device.prediction_table import MODELS, check, rows_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest) -> CompletedProcess[str]:
    """The process that made the rows of all models that this run asks for."""
    asked = [item.callspec.params["model"] for item in request.session.items if item.path == request.path]
    return rows_of(asked)


@pytest.mark.parametrize("model", MODELS["images"])
def test_what_is_predicted_is_what_the_allocator_takes(model: str, ended: CompletedProcess[str]) -> None:
    check(model, ended)
