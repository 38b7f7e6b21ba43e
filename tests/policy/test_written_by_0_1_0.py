"""Policies and wrappers that an earlier momadvise wrote still apply."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import advisor

HERE = Path(__file__).with_name("written_by_0_1_0")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)))


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch), batch)


def plain_step(batch: torch.Tensor) -> tuple[float, nn.Module]:
    plain = model()
    value = loss(plain, batch)
    value.backward()
    torch.optim.AdamW(plain.parameters()).step()
    return value.item(), plain


@pytest.mark.parametrize("by", ["wrapper", "policy"])
def test_what_was_written_then_trains_as_it_did(by: str) -> None:
    batch = torch.linspace(-1, 1, 16).reshape(2, 8)
    if by == "wrapper":
        training = runpy.run_path(str(HERE / "wrapper.py"))["prepare"](model(), compute_loss=loss)
    else:
        training = advisor.apply_policy(HERE / "policy.yaml", model(), compute_loss=loss)
    value, plain = plain_step(batch)
    assert training.step(batch).item() == value
    trained = training.model.state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in plain.state_dict().items())
