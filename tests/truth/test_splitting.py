"""Training on micro-batches equals training on the batch, or is reported as different: for the whole catalogue."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.training.batch.tree import map_tensors
from advisor.training.loss import default_loss
from advisor.trial.outcome import Outcome
from advisor.trial.spec import ProbeTrial
from advisor.workload.batch_layout import BatchLayout
from tests.trial.test_run_trial import Bed
from tests.truth.catalogue import REFUSED, WORKLOADS, Workload

RANDOM = {
    "an autocast of the user's own",
    "dropout",
    "dropout, and a sum",
    "a function that drops out, and a sum",
    "attention with dropout",
    "noise that is added",
    "strong noise, and a sum",
    "a variational autoencoder with noise, and a sum",
}
WHOLE = [name for name, workload in WORKLOADS.items() if not workload.changes]
EXACT = [name for name in WHOLE if name not in RANDOM]


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BatchLayout]:
    """What the probe finds of every workload."""
    bed = Bed(tmp_path_factory.mktemp("probed"))
    found = {}
    for name, workload in WORKLOADS.items():
        result = bed.run(workload.source, kind=ProbeTrial, micro_batch=2)
        assert result.facts is not None, (name, result)
        found[name] = result.facts.batch_layout
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_probe_finds_where_the_samples_are_and_how_the_loss_is_reduced(
    name: str, layouts: dict[str, BatchLayout]
) -> None:
    workload, layout = WORKLOADS[name], layouts[name]
    assert layout.sample_dims == workload.dims
    assert layout.reduction == workload.reduction
    assert workload.changes in layout.changes_when_split
    assert bool(workload.changes) == bool(layout.changes_when_split), layout.changes_when_split


@pytest.mark.parametrize("name", EXACT)
def test_a_step_of_the_wrapper_is_one_of_a_plain_loop(
    name: str, layouts: dict[str, BatchLayout], tmp_path: Path
) -> None:
    workload = WORKLOADS[name]
    module = loaded(workload.source, tmp_path / "workload.py")
    exact_loss, exact = plain(module, workload)
    loss, updates = stepped(module, layouts[name], tmp_path, workload)
    assert loss == pytest.approx(exact_loss, rel=1e-4)
    for ours, theirs in zip(updates, exact, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_the_documented_loop_is_a_step(name: str, moved: bool, layouts: dict[str, BatchLayout], tmp_path: Path) -> None:
    """Trap: it gave gradients as many times too long as there were pieces."""
    workload = WORKLOADS[name]
    module = loaded(workload.source, tmp_path / "workload.py")
    exact_loss, exact = plain(module, workload)
    loss, updates = stepped(module, layouts[name], tmp_path, workload, in_a_loop=True, moved=moved)
    assert loss == pytest.approx(exact_loss, rel=1e-4)
    for ours, theirs in zip(updates, exact, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_what_draws_random_numbers_is_cut_as_well(name: str, layouts: dict[str, BatchLayout], tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    module = loaded(workload.source, tmp_path / "workload.py")
    loss, updates = stepped(module, layouts[name], tmp_path, workload)
    exact_loss, _ = plain(module, workload)
    assert 0.3 < loss / exact_loss < 3, "a sum is no mean"
    assert any(update.any() for update in updates)


@pytest.mark.parametrize("name", REFUSED)
def test_batches_that_do_not_follow_are_refused_with_the_lines_to_write(name: str, tmp_path: Path) -> None:
    source = Workload(REFUSED[name]).source
    result = Bed(tmp_path).run(source, kind=ProbeTrial, micro_batch=2)
    assert result.outcome is Outcome.FAILED
    assert "must return batch_size samples" in result.reason


# ---- helpers


def loaded(source: str, path: Path) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("truth_workload", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sgd(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def made(module: ModuleType, workload: Workload) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    model = module.build_model()
    torch.manual_seed(1)
    return model, module.make_batch(workload.samples)


def plain(module: ModuleType, workload: Workload) -> tuple[float, list[torch.Tensor]]:
    """Loss and update of the user's own loop."""
    model, batch = made(module, workload)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = sgd(model.parameters())
    loss = getattr(module, "compute_loss", default_loss)(model, batch)
    loss.backward()
    optimizer.step()
    return float(loss.detach()), [new.detach() - old for new, old in zip(model.parameters(), before, strict=True)]


def stepped(
    module: ModuleType,
    layout: BatchLayout,
    folder: Path,
    workload: Workload,
    *,
    in_a_loop: bool = False,
    moved: bool = False,
) -> tuple[float, list[torch.Tensor]]:
    """Loss and update of the emitted wrapper, which cuts the batch into uneven pieces."""
    path = folder / "wrapper.py"
    write_wrapper(Policy(micro_batch=workload.micro_batch), path, headline="h", details="d", layout=layout)
    wrapper = loaded(path.read_text(), path)
    model, batch = made(module, workload)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    options = {name: getattr(module, name) for name in workload.options if hasattr(module, name)}
    training = wrapper.prepare(model, device="cpu", build_optimizer=sgd, **options)
    if in_a_loop:
        loss = 0.0
        pieces = training.split(batch)
        assert len(pieces) == 3
        for piece in pieces:
            # As loops do that bring a piece to the device themselves: another object with the same samples.
            part = training.forward(map_tensors(piece, torch.Tensor.clone) if moved else piece)
            training.backward(part)
            loss += float(part.detach())
        training.optimizer_step()
    else:
        loss = float(training.step(batch))
    return loss, [new.detach() - old for new, old in zip(model.parameters(), before, strict=True)]
