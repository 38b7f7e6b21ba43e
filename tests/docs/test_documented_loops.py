"""Every training loop in the documentation, run as it stands, trains as a plain loop does on the whole batches.

They are found, not listed: a loop that is new is run as well, and one that cannot be found fails.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from advisor.policy.policy import Policy
from advisor.policy.wrapper import write_wrapper
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.reduction import Reduction
from tests.docs.loops import STEPS, Loop, documented_loops, loops_in, texts, without_loops

SAMPLES, MICRO_BATCH, BATCHES = 7, 3, 4
LOOPS = [loop for loop in documented_loops() if "accelerator" not in loop.code]
"""Those of other trainers are run by the tests of the adapters."""


class Mean(nn.Module):
    reduction = "mean"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(inputs), labels, reduction=self.reduction)


class Sum(Mean):
    reduction = "sum"


class Ignoring(nn.Module):
    """Labels of -1 do not count, and some pieces have many of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layers(inputs).flatten(0, 1), labels.flatten(), ignore_index=-1)


@dataclass(frozen=True)
class Case:
    model: type[nn.Module]
    reduction: Reduction | None = None
    max_grad_norm: float | None = None

    def batch(self, seed: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(seed)
        if self.model is not Ignoring:
            inputs = torch.randn(SAMPLES, 8, generator=made, dtype=torch.float64)
            return {"inputs": inputs, "labels": torch.randint(6, (SAMPLES,), generator=made)}
        labels = torch.randint(20, (SAMPLES, 9), generator=made)
        for number, row in enumerate(labels):
            row[1 + number :] = -1
        return {"inputs": labels.clamp(min=0), "labels": labels}


TARGETS = Reduction(targets="labels", ignore_index=-1)
CASES = {
    "mean": Case(Mean),
    "mean, clipped": Case(Mean, max_grad_norm=0.05),
    "sum": Case(Sum, Reduction(kind="sum")),
    "sum, clipped": Case(Sum, Reduction(kind="sum"), max_grad_norm=0.05),
    "targets that are ignored": Case(Ignoring, TARGETS),
    "targets that are ignored, clipped": Case(Ignoring, TARGETS, max_grad_norm=0.05),
}


def test_the_pages_and_the_wrapper_show_the_loops_that_they_are_known_to_show() -> None:
    """Trap: a pattern that finds nothing would pass everything."""
    places = {loop.place.split(" #")[0] for loop in LOOPS}
    assert {"README.md", "docs/how-to.md", "wrapper.py for 1", "wrapper.py for 1:prepare"} <= places
    assert sum(loop.place.startswith("docs/how-to.md") for loop in LOOPS) >= 3


def test_no_training_step_is_shown_where_it_would_not_be_run() -> None:
    for place, text in texts():
        left = [line for line in without_loops(text).splitlines() if STEPS.search(line)]
        assert not left, f"{place} shows a training step outside of code that can be run: {left}"


def test_a_loop_that_divides_by_the_number_of_pieces_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_loop,) = [loop for loop in LOOPS if "clip_grad_norm" in loop.code]
    wrong = Loop("wrong", own_loop.code.replace("training.backward(loss)", "training.backward(loss / 3)"))
    assert wrong != own_loop
    assert loops_in("wrong", f"```python\n{wrong.code}```\n"), "it is found"
    with pytest.raises(AssertionError):
        assert_trains_as_a_plain_loop(wrong, CASES["targets that are ignored"], tmp_path, monkeypatch)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.place)
def test_a_documented_loop_trains_as_a_plain_one(
    loop: Loop, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_trains_as_a_plain_loop(loop, CASES[case], tmp_path, monkeypatch)


# ---- helpers


@pytest.fixture(autouse=True)
def one_process_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For loops that join a group of processes: a group of one."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def assert_trains_as_a_plain_loop(loop: Loop, case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [case.batch(seed) for seed in range(BATCHES)]
    model = built(case)
    wrapper = emitted(case, folder)
    monkeypatch.setitem(sys.modules, "wrapper", wrapper)
    names: dict[str, Any] = {
        "torch": torch,
        "model": model,
        "build_model": lambda **size: model,
        "build_optimizer": sgd,
        "loader": batches,
    }
    exec(compile(loop.once, loop.place, "exec"), names)
    if "training" not in names:  # as the code above it on the page has it
        names["training"] = wrapper.prepare(model)
    for batch in [None] if "loader" in loop.each_time else batches:
        exec(compile(loop.each_time, loop.place, "exec"), names | {"batch": batch})
    expected = plain(case, batches, clipped_in_loop=1.0 if "clip_grad_norm(1.0)" in loop.code else None)
    before = dict(built(case).named_parameters())
    for name, parameter in model.named_parameters():
        moved, exact = parameter - before[name], expected[name] - before[name]
        assert exact.any(), "the plain loop trains"
        assert torch.allclose(moved, exact, rtol=1e-9, atol=1e-12), f"{loop.place}: {name}\n{loop.code}"


def built(case: Case) -> nn.Module:
    torch.manual_seed(0)
    return case.model().double()


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.3)


def emitted(case: Case, folder: Path) -> ModuleType:
    """A wrapper as a search writes it, whose ``prepare`` is given what the case's model file defines."""
    path = folder / "wrapper.py"
    layout = BatchLayout(dims={}, counted_by="", reduction=case.reduction)
    write_wrapper(Policy(micro_batch=MICRO_BATCH), path, headline="h", details="d", layout=layout)
    spec = importlib.util.spec_from_file_location("wrapper", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    prepare = module.prepare
    defined = {"device": "cpu", "build_optimizer": sgd, "max_grad_norm": case.max_grad_norm}
    vars(module)["prepare"] = lambda model, **options: prepare(model, **{**defined, **options})
    return module


def plain(
    case: Case, batches: list[dict[str, torch.Tensor]], *, clipped_in_loop: float | None
) -> dict[str, torch.Tensor]:
    """The parameters after a loop over whole batches that knows nothing of pieces."""
    model = built(case)
    optimizer = sgd(model.parameters())
    for batch in batches:
        model(**batch).backward()
        for norm in (clipped_in_loop, case.max_grad_norm):
            if norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
