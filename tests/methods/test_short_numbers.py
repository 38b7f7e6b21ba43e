"""What a forward pass writes to, and counts that it is given, keep their format where all else has 16 bits."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training


class Counting(nn.Module):
    """Counts its steps as a float, keeps a slow mean, and scales by a table that nothing writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1  # type: ignore[operator,assignment]
            self.mean.lerp_(inputs.detach().abs().mean(0).to(self.mean.dtype), 0.001)  # type: ignore[operator,arg-type]
        return self.linear(inputs) * self.scale  # type: ignore[operator,no-any-return]


@pytest.mark.parametrize(
    "method",
    [use("pure_bf16", rounding="stochastic"), use("half_weights", rounding="nearest")],
    ids=lambda method: method.label,
)
def test_a_counter_goes_on_and_a_slow_mean_moves(method: MethodSetting) -> None:
    """Trap: in bfloat16 the counter stopped at 256, and the mean where it began."""

    def trained(settings: list[MethodSetting]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        training = Training(
            Counting(),
            build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            compute_loss=lambda model, batch: model(batch).square().mean(),
        )
        apply_settings(training, settings)
        training.evaluate(lambda model: model(torch.zeros(4, 8)))
        for step in range(300):
            torch.manual_seed(step)
            training.step(torch.randn(4, 8))
        return dict(training.state_dict()["model"])

    plain, short = trained([]), trained([method])
    assert short["steps"].dtype == short["mean"].dtype == torch.float32
    assert float(short["steps"]) == 300
    assert torch.allclose(short["mean"], plain["mean"], rtol=0.02)
    assert short["scale"].dtype.itemsize == 2, "it meets activations, and nothing writes to it"


class CountedFromOutside(nn.Module):
    """Is counted in by its loss, and counts through ``.data``, which has no version."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("losses", torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls.data += 1  # type: ignore[operator,union-attr]
        return self.linear(inputs) * self.scale  # type: ignore[operator,no-any-return]


def test_what_the_loss_counts_and_what_has_no_version_keep_their_format() -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(batch).square().mean()
        model.losses += 1
        return result

    training = Training(
        CountedFromOutside(),
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        compute_loss=loss,
    )
    apply_settings(training, [use("pure_bf16", rounding="nearest")])
    for _ in range(300):
        training.step(torch.randn(4, 8))
    state = training.state_dict()["model"]
    assert float(state["losses"]) == float(state["calls"]) == 300
    assert state["scale"].dtype == torch.bfloat16, "nothing writes to it"


class Observing(nn.Module):
    """Keeps a running maximum that begins at minus infinity, and a buffer that gets another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("largest", torch.tensor(float("-inf")))
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("nothing", torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.largest = torch.maximum(self.largest, inputs.detach().max().to(self.largest.dtype))  # type: ignore[has-type]
            self.last = inputs.detach().mean(0)
            self.nothing = None
        return self.linear(inputs)  # type: ignore[no-any-return]


def test_buffers_that_are_replaced_are_taken_as_they_are() -> None:
    torch.manual_seed(0)
    training = Training(
        Observing(),
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        compute_loss=lambda model, batch: model(batch).square().mean(),
    )
    apply_settings(training, [use("pure_bf16", rounding="stochastic")])
    pickle.dumps(training.model)
    for _ in range(2):
        training.step(torch.randn(4, 8))
    state = training.state_dict()["model"]
    assert 0 < float(state["largest"]) < 6
    assert state["last"].shape == (8,)
    assert "nothing" not in state


class Diffusion(nn.Module):
    """Told a time step, as a float, of every sample; keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.seen: dict[str, torch.Tensor] = {}

    def forward(self, inputs: torch.Tensor, steps: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self.seen = {"inputs": inputs, "steps": steps, "weights": weights}
        phase = torch.sin(steps / 1000)[:, None].to(inputs.dtype)
        return self.linear(inputs + phase) * weights[:, None]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "method",
    [use("pure_bf16", rounding="nearest"), use("half_weights", rounding="nearest")],
    ids=lambda method: method.label,
)
def test_counts_that_a_model_is_called_with_stay_what_they_are(method: MethodSetting) -> None:
    """Trap: the time step 1,001 was 1,000."""
    training = Training(Diffusion(), compute_loss=lambda model, batch: model(*batch).square().mean())
    apply_settings(training, [method])
    weights = torch.tensor([0.1, 1.0, 0.3])
    for steps in ([1.0, 2.0, 3.0], [1.0, 2049.0, 4003.0], [1.0, 2.0, 3.0]):
        training.step((torch.randn(3, 8), torch.tensor(steps), weights))
        seen = training.model.seen
        assert seen["steps"].tolist() == steps
        assert seen["inputs"].dtype.itemsize == seen["weights"].dtype.itemsize == 2
