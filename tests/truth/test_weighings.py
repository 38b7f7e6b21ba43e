"""A step in micro-batches of any number of samples is a plain step, digit by digit, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from advisor.errors import WorkloadError
from advisor.training.batch.tree import map_tensors
from advisor.training.training import Training
from advisor.workload.batch_layout import BatchLayout
from tests.truth.catalogue import Workload
from tests.truth.conftest import Probe
from tests.truth.harness import loaded
from tests.truth.weighings import WEIGHINGS

_PACKED = """
def build_model():
    return nn.ModuleList([nn.LSTM(8, 16), nn.Linear(16, 6)])

def make_batch(batch_size):
    sequences = [torch.randn(2 + number % 3, 8) for number in range(batch_size)]
    return nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False), torch.randint(6, (batch_size,))

def compute_loss(model, batch):
    return F.cross_entropy(model[1](model[0](batch[0])[1][0][-1]), batch[1])
"""

SAMPLES, PIECES, DRAWS = 7, (1, 2, 3, 4), range(3)


@pytest.mark.parametrize("name", WEIGHINGS)
def test_pieces_of_any_size_are_a_plain_step_or_it_is_said_that_they_are_not(
    name: str, probe: Probe, tmp_path: Path
) -> None:
    workload, layout = WEIGHINGS[name], probe(WEIGHINGS[name])
    assert layout.reduction == workload.reduction
    assert not layout.uncut_because
    assert workload.changes in layout.changes_when_split
    assert bool(workload.changes) == bool(layout.changes_when_split), layout.changes_when_split
    if workload.changes:
        return
    module = loaded(workload.source, tmp_path / "workload.py")
    for draw in DRAWS:
        plain = gradient(module, None, SAMPLES, draw)
        for micro_batch in PIECES:
            assert torch.allclose(gradient(module, layout, micro_batch, draw), plain, rtol=1e-9, atol=1e-12)


def test_uneven_targets_are_refused_where_the_loss_needs_even_ones(probe: Probe, tmp_path: Path) -> None:
    workload = WEIGHINGS["as many targets in every sample, and a mean over samples"]
    module = loaded(workload.source, tmp_path / "workload.py")
    training, batch = made(module, probe(workload), 3, draw=0)
    batch["labels"] = batch["labels"].masked_fill(torch.rand(batch["labels"].shape) < 0.2, -100)
    with pytest.raises(WorkloadError, match="must have as many targets for each sample") as raised:
        training.step(batch)
    assert "at most micro_batch samples" in str(raised.value)
    training.step({name: part[:3] for name, part in batch.items()})


def test_class_weights_that_have_changed_are_refused_before_anything_is_updated(probe: Probe, tmp_path: Path) -> None:
    workload = WEIGHINGS["class weights, looked up by hand"]
    module = loaded(workload.source, tmp_path / "workload.py")
    module.WEIGHTS = 3 * module.WEIGHTS  # the same mean
    training, batch = made(module, probe(workload), 3, draw=0)
    training.step(batch)
    module.WEIGHTS = module.WEIGHTS.flip(0)
    training, batch = made(module, probe(workload), 3, draw=0)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    with pytest.raises(WorkloadError, match="must weigh classes as it did when the policy was measured"):
        training.step(batch)
    assert all(torch.equal(now, then) for now, then in zip(training.model.parameters(), before, strict=True))


def test_a_packed_sequence_is_trained_on_whole_and_the_answer_says_what_to_return_instead(probe: Probe) -> None:
    layout = probe(Workload(_PACKED))
    assert layout.dims["0"] == "uncut"
    assert "return the padded tensor with its lengths" in layout.why_uncut


# ---- helpers


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def made(module: ModuleType, layout: BatchLayout | None, micro_batch: int, draw: int) -> tuple[Training, Any]:
    torch.manual_seed(0)
    training = Training(
        module.build_model().double(),
        compute_loss=module.compute_loss,
        build_optimizer=sgd,
        micro_batch=micro_batch,
        sample_dims=None if layout is None else layout.sample_dims,
        reduction=None if layout is None else layout.reduction,
    )
    torch.manual_seed(100 + draw)
    batch = module.make_batch(SAMPLES)
    return training, map_tensors(batch, lambda one: one.double() if one.is_floating_point() else one)


def gradient(module: ModuleType, layout: BatchLayout | None, micro_batch: int, draw: int) -> torch.Tensor:
    """By how far a step moves the parameters."""
    training, batch = made(module, layout, micro_batch, draw)
    before = torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])
    training.step(batch)
    return before - torch.cat([parameter.detach().flatten() for parameter in training.model.parameters()])
