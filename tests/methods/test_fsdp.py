"""What cannot be sliced is refused before anything is; how ranks train is in ``tests/distributed``."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.training.processes.world import current_world
from advisor.training.training import Training
from advisor.trial.worker.run_trial import standing_for_ranks
from tests.methods.tiny import adamw


class Recurrent(nn.Module):
    """The same block three times (as in ALBERT), each with a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(layer, nn.LayerNorm(8)) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        return inputs.square().mean()


def test_blocks_that_share_parameters_are_refused_with_their_names() -> None:
    with standing_for_ranks(2):
        training = Training(Recurrent(), build_optimizer=adamw, world=current_world())
        with pytest.raises(MethodRefusedError, match=r"blocks share parameters \(0.weight, 0.bias\)"):
            apply_settings(training, [use("fsdp", reshard=True, mixed_precision="none", offload=False)])
