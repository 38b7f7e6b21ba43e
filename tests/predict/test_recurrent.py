"""Recurrent layers: what they keep for the backward pass, and what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.phase import Phase
from advisor.predict.step_work import Kind
from advisor.predict.trace.storage_log import StorageLog
from tests.predict.steps import count_step, fake_step, flops, training_of

LAYERS = {
    "one layer": {"num_layers": 1},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "an odd width": {"num_layers": 1, "hidden_size": 37},
    "without bias": {"num_layers": 1, "bias": False},
}


class Last(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.lstm = nn.LSTM(**{"input_size": 16, "hidden_size": 32, "batch_first": True, **options})  # type: ignore[arg-type]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.lstm(inputs)[0]
        return output


def allocated(options: dict[str, object], batch: int, steps: int, *, fake: bool) -> list[int]:
    """Sizes of all that a forward pass allocates."""

    def run() -> list[int]:
        model, inputs = Last(**options), torch.randn(batch, steps, 16)
        with StorageLog(torch.device("cpu")) as log:
            output = model(inputs)
            sizes = sorted(size for _, size in log.events if size > 0)
        del output
        return sizes

    if not fake:
        return run()
    with FakeTensorMode():
        return run()


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(("batch", "steps"), [(4, 10), (3, 1), (16, 33)])
def test_the_workspace_is_that_of_a_real_layer(options: dict[str, object], batch: int, steps: int) -> None:
    """The trap: torch's function for fake tensors returns none, which is most of what such a model keeps."""
    real = allocated(options, batch, steps, fake=False)
    assert allocated(options, batch, steps, fake=True) == real
    assert max(real) > 4 * batch * steps * 32 * 4, "it is several times the output"


def test_a_layer_computes_once_forward_and_twice_backward() -> None:
    works = count_step(training_of(Last(num_layers=1)), torch.randn(4, 10, 16))
    for phase, passes in ((Phase.FORWARD, 1), (Phase.BACKWARD, 2)):
        found = [one for one in works if one.kind is Kind.MATRIX and one.phase is phase]
        assert flops(found) == passes * 2 * 4 * 10 * (4 * 32 * (16 + 32))


def test_fake_layers_have_the_same_work() -> None:
    real = count_step(training_of(Last(num_layers=2)), torch.randn(6, 10, 16))
    fake = fake_step(lambda: Last(num_layers=2), lambda: torch.randn(6, 10, 16))
    assert flops(fake) == flops(real) > 0
